// The tile registers of AMX, or a plain C++ emulation of the few instructions that are used.
//
// The emulation (SKIT_EMULATE_TILES) is for processors without AMX: its arithmetic is what Intel's manual states, and
// layout and loops around it are the same code.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__AMX_TILE__) && defined(__linux__) && !defined(SKIT_EMULATE_TILES)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define SKIT_AMX 1
#endif

namespace skit {

constexpr int kTileHeight = 16;    // rows of a tile register
constexpr int kTileRowBytes = 64;  // 16 floats, 32 bf16 or 64 bytes
constexpr int kTileBytes = 1024;

// The sizes of the tile registers: all eight are full unless they are set.
struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  TileConfig() { set(0, 8, kTileHeight, kTileRowBytes); }
  // The size of the registers from `first` to `end`.
  void set(int first, int end, int height, int bytes) {
    for (int tile = first; tile < end; tile++) rows[tile] = uint8_t(height), row_bytes[tile] = uint16_t(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

#if defined(SKIT_AMX)

// Returns whether the processor has AMX for bf16 and bytes, and the system lets this process use it.
inline bool tiles_permitted() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const unsigned needed = 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return (d & needed) == needed && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// GCC's tile instructions do not say that they read memory (only the configuration's first eight bytes), so that it
// leaves out or moves what was written there before.
inline void finish_writes() { asm volatile("" ::: "memory"); }

#define SKIT_TILE_ZERO(tile) _tile_zero(tile)
#define SKIT_TILE_LOAD(tile, from, stride) \
  do {                                     \
    finish_writes();                       \
    _tile_loadd(tile, from, stride);       \
  } while (0)
#define SKIT_TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define SKIT_TILE_PAIRS(sum, rows, columns) _tile_dpbf16ps(sum, rows, columns)
#define SKIT_TILE_BYTES(sum, rows, columns) _tile_dpbsud(sum, rows, columns)
#define SKIT_TILE_SIGNED_BYTES(sum, rows, columns) _tile_dpbssd(sum, rows, columns)

// Holds the tile registers for as long as it lives: a switch of threads is cheaper without them.
struct TilesInUse {
  explicit TilesInUse(const TileConfig& config = {}) {
    finish_writes();
    _tile_loadconfig(&config);
  }
  TilesInUse(const TilesInUse&) = delete;
  ~TilesInUse() { _tile_release(); }
};

#else

#if defined(SKIT_EMULATE_TILES)
inline bool tiles_permitted() { return true; }
#else
inline bool tiles_permitted() { return false; }
#endif

struct EmulatedTiles {
  uint8_t bytes[8][kTileBytes];
  TileConfig config;

  template <class T>
  T get(int tile, int row, int column) const {
    T value;
    std::memcpy(&value, bytes[tile] + row * kTileRowBytes + column * int(sizeof(T)), sizeof(T));
    return value;
  }
  template <class T>
  void set(int tile, int row, int column, T value) {
    std::memcpy(bytes[tile] + row * kTileRowBytes + column * int(sizeof(T)), &value, sizeof(T));
  }

  void zero(int tile) { std::memset(bytes[tile], 0, kTileBytes); }
  void load(int tile, const void* from, long stride) {
    zero(tile);
    for (int row = 0; row < config.rows[tile]; row++)
      std::memcpy(bytes[tile] + row * kTileRowBytes, static_cast<const char*>(from) + row * stride,
                  config.row_bytes[tile]);
  }
  void store(int tile, void* to, long stride) const {
    for (int row = 0; row < config.rows[tile]; row++)
      std::memcpy(static_cast<char*>(to) + row * stride, bytes[tile] + row * kTileRowBytes, config.row_bytes[tile]);
  }

  // TDPBF16PS: the sums of even and of odd inputs are taken apart, added, and added to what was there.
  void pairs(int sum, int rows, int columns) {
    for (int m = 0; m < kTileHeight; m++)
      for (int n = 0; n < 16; n++) {
        float even = 0, odd = 0;
        for (int k = 0; k < 16; k++) {
          even = __builtin_fmaf(number(rows, m, 2 * k), number(columns, k, 2 * n), even);
          odd = __builtin_fmaf(number(rows, m, 2 * k + 1), number(columns, k, 2 * n + 1), odd);
        }
        set(sum, m, n, get<float>(sum, m, n) + (even + odd));
      }
  }

  // TDPBSUD, signed rows by unsigned columns, and TDPBSSD, whose columns are signed too.
  template <class Column>
  void products_of_bytes(int sum, int rows, int columns) {
    for (int m = 0; m < kTileHeight; m++)
      for (int n = 0; n < 16; n++) {
        int32_t total = get<int32_t>(sum, m, n);
        for (int k = 0; k < 64; k++)
          total += int32_t(get<int8_t>(rows, m, k)) * int32_t(get<Column>(columns, k / 4, 4 * n + k % 4));
        set(sum, m, n, total);
      }
  }

  float number(int tile, int row, int column) const {
    const uint32_t word = uint32_t(get<uint16_t>(tile, row, column)) << 16;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
};

inline EmulatedTiles& emulated_tiles() {
  static thread_local EmulatedTiles tiles;
  return tiles;
}

#define SKIT_TILE_ZERO(tile) emulated_tiles().zero(tile)
#define SKIT_TILE_LOAD(tile, from, stride) emulated_tiles().load(tile, from, stride)
#define SKIT_TILE_STORE(tile, to, stride) emulated_tiles().store(tile, to, stride)
#define SKIT_TILE_PAIRS(sum, rows, columns) emulated_tiles().pairs(sum, rows, columns)
#define SKIT_TILE_BYTES(sum, rows, columns) emulated_tiles().products_of_bytes<uint8_t>(sum, rows, columns)
#define SKIT_TILE_SIGNED_BYTES(sum, rows, columns) emulated_tiles().products_of_bytes<int8_t>(sum, rows, columns)

// What a smaller register lacks is zero here, and adds nothing.
struct TilesInUse {
  explicit TilesInUse(const TileConfig& config = {}) { emulated_tiles().config = config; }
};

#endif

}  // namespace skit
