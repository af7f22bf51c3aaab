// Blocks of a GGUF file times many rows, by the tiles of AMX.
//
// Of a superblock, a code times the scale of its block is a whole number, which is taken apart into parts that fit into
// bytes: a tile then adds a whole superblock, and of a row one sum per part is put together. Of other types a tile adds
// one block. All of it is exact in integers, so that an output has the bits that it has without tiles.
#pragma once
#include "block_types.h"
#include "lanes.h"
#include "tiles.h"

namespace skit {

// Activations in 8 bits with a scale for each block or superblock, as `Inputs<FileBlocks>` has them, in tiles of
// `height` rows, of which the last may reach beyond the last row.
struct TiledRows {
  const int8_t* bytes;
  const float* scales;
  const int16_t* sums;
  int inputs, rows, height;

  // The height of the fewest tiles that hold some rows: all as high as each other, since a row costs time.
  static int height_for(int rows) {
    const int tiles = (rows + kTileHeight - 1) / kTileHeight;
    return (rows + tiles - 1) / tiles;
  }
};

// Lines of memory that are fetched before they are needed, one now and then: a burst of them would have to be waited
// for.
class Ahead {
 public:
  Ahead(const uint8_t* from, int bytes) : from_(from), lines_(bytes / 64) {}
  void next() {
    if (lines_ <= 0) return;
    __builtin_prefetch(from_);
    from_ += 64, lines_--;
  }

 private:
  const uint8_t* from_;
  int lines_;
};

// One superblock of a group of outputs.
template <BlockType kType>
class TiledSuper {
 public:
  // From how many rows on taking codes apart pays.
  static constexpr int kFewestRows = kType.halves() ? 16 : 8;
  static constexpr int kBlocks = kSuper / kBlockInputs;

  // The registers of rows and of sums come before those of codes.
  static TileConfig config(int height) {
    TileConfig config;
    config.set(0, kType.halves() ? 4 : 6, height, kTileRowBytes);
    return config;
  }

  TiledSuper(const uint8_t* codes, const uint8_t* scales, const uint8_t* supers, int, Ahead& ahead) {
    scale_ = Lanes::halves(supers), floor_ = Lanes::halves(supers + 2 * kGroup);
    for (int b = 0; b < kBlocks; b++, codes += kType.code_bytes(), scales += kType.scale_bytes()) {
      take_apart(codes, scales, b * kRegisters, ahead);
      if (kType.minimum && b % 2 == 0)
        minima_[b / 2] = Lanes::pairs<false>(scales + kGroup, scales + kGroup + kType.scale_bytes());
    }
  }

  // Adds the products of all rows with the superblock whose first block is `block`.
  void add(const TiledRows& in, size_t block, float (*sums)[kGroup], Ahead& ahead) const {
    const size_t s = block / kBlocks;
    const int at_once = kTall * in.height;
    alignas(64) int32_t totals[kParts][kTall * kTileHeight][kGroup];
    for (int row = 0; row < in.rows; row += at_once) {
      const int some = std::min(at_once, in.rows - row);
      const int8_t* bytes = in.bytes + size_t(row) * size_t(in.inputs) + s * kSuper;
      if constexpr (kTall == 1) multiply_three(bytes, in, totals, ahead);
      else multiply_two(bytes, in, some > in.height, totals, ahead);
      // Rows lie too far from each other for a processor to foresee them.
      const bool more = row + at_once < in.rows;
      const int8_t* next = more ? bytes + size_t(at_once) * size_t(in.inputs) : in.bytes + (s + 1) * kSuper;
      for (int r = 0; r < some; r++, next += in.inputs) {
        ahead.next();
        for (int line = 0; line < kSuper; line += 64) __builtin_prefetch(next + line);
        __m512i total = _mm512_load_si512(totals[kParts - 1][r]);
        for (int p = kParts - 2; p >= 0; p--)
          total = Lanes::add(_mm512_slli_epi32(total, kBits), _mm512_load_si512(totals[p][r]));
        const size_t at = size_t(row + r) * size_t(in.inputs / kSuper) + s;
        const __m512 value = times_scale(Lanes::to_numbers(total), in.sums + at * kBlocks);
        float* sum = sums[row + r];
        _mm512_store_ps(sum, Lanes::multiply_add(value, Lanes::number(in.scales[at]), _mm512_load_ps(sum)));
      }
    }
  }

 private:
  static constexpr int kSteps = kSuper / kTileRowBytes;
  static constexpr int kBits = 3;  // of a scale in a part
  static constexpr int kParts = kType.halves() ? 3 : 2;
  static constexpr int kTall = kType.halves() ? 1 : 2;  // tiles of rows at once, as many as there are registers for

  __m512 times_scale(__m512 total, const int16_t* sums) const {
    if constexpr (!kType.minimum) return Lanes::multiply(scale_, total);
    __m512i shift = Lanes::whole(0);
    for (int pair = 0; pair < kBlocks / 2; pair++) shift = Lanes::add_pairs(shift, minima_[pair], sums + 2 * pair);
    return Lanes::multiply_subtract(scale_, total, Lanes::multiply(floor_, Lanes::to_numbers(shift)));
  }

  // Stores the parts of a block from register `to` of the superblock on: part 0 + 8 * (part 1 + 8 * part 2) is the code
  // times the scale.
  void take_apart(const uint8_t* from, const uint8_t* scales, int to, Ahead& ahead) {
    const Codes<kType.bits> codes(from, 0);
    if constexpr (kType.halves()) {
      __m512i left[kParts], right[kParts];
      digits_of(Lanes::bytes<true>(scales), left), digits_of(Lanes::bytes<true>(scales + kGroup), right);
      const __m512i upper = _mm512_set1_epi16(short(0xff00));
      for (int j = 0; j < kRegisters; j++) {
        if (j % 2 == 0) ahead.next();
        const __m512i code = _mm512_sub_epi8(codes.registers[j], _mm512_set1_epi8(kType.zero));
        const __m512i odd = _mm512_and_si512(code, upper);
        for (int p = 0; p < kParts; p++) {
          const __m512i factor = j < kRegisters / 2 ? left[p] : right[p];
          const __m512i high = _mm512_mullo_epi16(odd, factor), low = _mm512_mullo_epi16(code, factor);
          _mm512_store_si512(parts_[p][to + j],
                             _mm512_ternarylogic_epi32(upper, high, low, 0xca));  // upper ? high : low
        }
      }
    } else {
      // A code of up to five bits times three bits of a scale fits into a byte: one multiplication serves two.
      const __m512i scale = Lanes::bytes<false>(scales);
      const __m512i low = twice(_mm512_and_si512(scale, Lanes::whole(7))),
                    high = twice(_mm512_srli_epi32(scale, kBits));
      for (int j = 0; j < kRegisters; j++) {
        if (j % 4 == 0) ahead.next();
        _mm512_store_si512(parts_[0][to + j], _mm512_mullo_epi16(codes.registers[j], low));
        _mm512_store_si512(parts_[1][to + j], _mm512_mullo_epi16(codes.registers[j], high));
      }
    }
  }

  // A signed scale in digits from -3 to 4: a code less 32, from -32 to 31, times one of them is a signed byte.
  static void digits_of(__m512i scale, __m512i* digits) {
    for (int p = 0; p < kParts; p++) {
      const __m512i three = Lanes::whole(3);
      const __m512i low = _mm512_sub_epi32(_mm512_and_si512(Lanes::add(scale, three), Lanes::whole(7)), three);
      scale = _mm512_srai_epi32(_mm512_sub_epi32(scale, low), kBits);
      digits[p] = twice(low);
    }
  }

  // A number of each lane, twice in 16 bits.
  static __m512i twice(__m512i a) { return _mm512_mask_blend_epi16(0xaaaaaaaa, a, _mm512_slli_epi32(a, 16)); }

  // Two tiles of rows, or one: a tile waits for what was added to it, and meanwhile others are added to.
  void multiply_two(const int8_t* top, const TiledRows& in, bool tall, int32_t (*totals)[2 * kTileHeight][kGroup],
                    Ahead& ahead) const {
    const int8_t* below = top + size_t(in.height) * size_t(in.inputs);
    SKIT_TILE_ZERO(0);
    SKIT_TILE_ZERO(1);
    SKIT_TILE_ZERO(2);
    SKIT_TILE_ZERO(3);
    for (int step = 0; step < kSteps; step++) {
      ahead.next();
      SKIT_TILE_LOAD(4, top + step * kTileRowBytes, in.inputs);
      SKIT_TILE_LOAD(6, parts_[0][step * kTileHeight], kTileRowBytes);
      SKIT_TILE_LOAD(7, parts_[1][step * kTileHeight], kTileRowBytes);
      SKIT_TILE_BYTES(0, 4, 6);
      ahead.next();
      SKIT_TILE_BYTES(1, 4, 7);
      if (!tall) continue;
      SKIT_TILE_LOAD(5, below + step * kTileRowBytes, in.inputs);
      SKIT_TILE_BYTES(2, 5, 6);
      SKIT_TILE_BYTES(3, 5, 7);
    }
    SKIT_TILE_STORE(0, totals[0][0], kTileRowBytes);
    SKIT_TILE_STORE(1, totals[1][0], kTileRowBytes);
    if (!tall) return;
    SKIT_TILE_STORE(2, totals[0][in.height], kTileRowBytes);
    SKIT_TILE_STORE(3, totals[1][in.height], kTileRowBytes);
  }

  void multiply_three(const int8_t* top, const TiledRows& in, int32_t (*totals)[kTileHeight][kGroup],
                      Ahead& ahead) const {
    SKIT_TILE_ZERO(0);
    SKIT_TILE_ZERO(1);
    SKIT_TILE_ZERO(2);
    for (int step = 0; step < kSteps; step++) {
      ahead.next();
      SKIT_TILE_LOAD(3, top + step * kTileRowBytes, in.inputs);
      SKIT_TILE_LOAD(4, parts_[0][step * kTileHeight], kTileRowBytes);
      SKIT_TILE_LOAD(5, parts_[1][step * kTileHeight], kTileRowBytes);
      SKIT_TILE_LOAD(6, parts_[2][step * kTileHeight], kTileRowBytes);
      SKIT_TILE_SIGNED_BYTES(0, 3, 4);
      ahead.next();
      SKIT_TILE_SIGNED_BYTES(1, 3, 5);
      SKIT_TILE_SIGNED_BYTES(2, 3, 6);
    }
    SKIT_TILE_STORE(0, totals[0][0], kTileRowBytes);
    SKIT_TILE_STORE(1, totals[1][0], kTileRowBytes);
    SKIT_TILE_STORE(2, totals[2][0], kTileRowBytes);
  }

  alignas(64) uint8_t parts_[kParts][kSuper / 4][kTileRowBytes];
  __m512 scale_, floor_;
  __m512i minima_[kBlocks / 2];
};

// Some neighbouring blocks, with a scale each, of a group of outputs.
template <BlockType kType>
class TiledBlocks {
 public:
  static constexpr int kFewestRows = 8;
  static constexpr int kBlocks = 4;  // at once, as many as there are registers for

  // A block is half as deep as a register.
  static TileConfig config(int height) {
    TileConfig config;
    config.set(0, kBlocks, height, kTileRowBytes);
    config.set(4, 6, height, kBlockInputs);
    config.set(6, 8, kRegisters, kTileRowBytes);
    return config;
  }

  TiledBlocks(const uint8_t* codes, const uint8_t* scales, const uint8_t*, int count, Ahead& ahead) : count_(count) {
    for (int b = 0; b < count; b++, codes += kType.code_bytes(), scales += kType.scale_bytes()) {
      const Codes<kType.bits> all(codes, 0);
      for (int j = 0; j < kRegisters; j++) {
        if (j % 2 == 0) ahead.next();
        _mm512_store_si512(codes_[b][j], all.registers[j]);
      }
      scale_[b] = Lanes::halves(scales);
      if constexpr (kType.minimum) minimum_[b] = Lanes::halves(scales + 2 * kGroup);
    }
  }

  // Adds the products of all rows with the blocks from `block` on.
  void add(const TiledRows& in, size_t block, float (*sums)[kGroup], Ahead& ahead) const {
    alignas(64) int32_t totals[kBlocks][kTileHeight][kGroup];
    const size_t blocks = size_t(in.inputs / kBlockInputs);
    for (int row = 0; row < in.rows; row += in.height) {
      multiply(in.bytes + size_t(row) * size_t(in.inputs) + block * kBlockInputs, in.inputs, totals);
      const int some = std::min(in.height, in.rows - row);
      for (int r = 0; r < some; r++) {
        ahead.next();
        const size_t at = size_t(row + r) * blocks + block;
        __builtin_prefetch(in.bytes + (at + size_t(in.height) * blocks) * kBlockInputs);
        __m512 sum = _mm512_load_ps(sums[row + r]);
        for (int b = 0; b < count_; b++) {
          const float factor = in.scales[at + size_t(b)], bytes = float(in.sums[at + size_t(b)]);
          const __m512i shift = Lanes::whole(-kType.zero * in.sums[at + size_t(b)]);
          const __m512 total = Lanes::to_numbers(Lanes::add(_mm512_load_si512(totals[b][r]), shift));
          sum = Lanes::multiply_add(total, Lanes::multiply(scale_[b], Lanes::number(factor)), sum);
          if constexpr (kType.minimum) sum = Lanes::multiply_add(minimum_[b], Lanes::number(factor * bytes), sum);
        }
        _mm512_store_ps(sums[row + r], sum);
      }
    }
  }

 private:
  // Blocks beyond the last are multiplied with what is there, and not added.
  void multiply(const int8_t* bytes, int inputs, int32_t (*totals)[kTileHeight][kGroup]) const {
    SKIT_TILE_ZERO(0);
    SKIT_TILE_ZERO(1);
    SKIT_TILE_ZERO(2);
    SKIT_TILE_ZERO(3);
    SKIT_TILE_LOAD(4, bytes, inputs);
    SKIT_TILE_LOAD(6, codes_[0], kTileRowBytes);
    SKIT_TILE_BYTES(0, 4, 6);
    SKIT_TILE_LOAD(5, bytes + kBlockInputs, inputs);
    SKIT_TILE_LOAD(7, codes_[1], kTileRowBytes);
    SKIT_TILE_BYTES(1, 5, 7);
    SKIT_TILE_LOAD(4, bytes + 2 * kBlockInputs, inputs);
    SKIT_TILE_LOAD(6, codes_[2], kTileRowBytes);
    SKIT_TILE_BYTES(2, 4, 6);
    SKIT_TILE_LOAD(5, bytes + 3 * kBlockInputs, inputs);
    SKIT_TILE_LOAD(7, codes_[3], kTileRowBytes);
    SKIT_TILE_BYTES(3, 5, 7);
    SKIT_TILE_STORE(0, totals[0], kTileRowBytes);
    SKIT_TILE_STORE(1, totals[1], kTileRowBytes);
    SKIT_TILE_STORE(2, totals[2], kTileRowBytes);
    SKIT_TILE_STORE(3, totals[3], kTileRowBytes);
  }

  int count_;
  alignas(64) uint8_t codes_[kBlocks][kRegisters][kTileRowBytes];
  __m512 scale_[kBlocks], minimum_[kBlocks];
};

}  // namespace skit
