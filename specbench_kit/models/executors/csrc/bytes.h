// Products of 8-bit weights with activations that are rounded to 8 bits as well, in blocks of 64 inputs with one scale.
//
// A block's sum is exact in integers, and the blocks are added in fp32 in their order, so that an output does not
// depend on what is computed beside it, nor on the instructions. Weights are stored with 128 added, in panels of 16
// outputs, [inputs / 4][16][4]: the dot product of bytes takes one side without sign.
#pragma once
#include <immintrin.h>

#include "matrix.h"
#include "products.h"

namespace skit {

// Weights that are given in bf16 and rounded to 8 bits; embeddings stay in bf16.
struct Int8Blocks : BFloat16 {};

constexpr int kScaled = 64;  // inputs with one scale
constexpr int kZero = 128;   // what stands for a weight of zero

template <>
class Inputs<Int8Blocks> {
 public:
  struct Rows {
    const int8_t* bytes;    // [rows][padded inputs]
    const float* scales;    // [rows][blocks]
    const int32_t* shifts;  // [rows][blocks]: what to add, since kZero was added to every weight
    int inputs;
  };
  static constexpr bool kCopied = true;
  static int blocks(int inputs) { return (inputs + kScaled - 1) / kScaled; }

  void reserve(int rows, int inputs) {
    const size_t size = size_t(rows + 2 * kTileHeight) * size_t(blocks(inputs));
    if (scales_.size() >= size) return;
    bytes_.resize(size * kScaled);
    scales_.resize(size);
    shifts_.resize(size);
  }

  template <class Matrix>
  void copy(int row, const float* x, const Matrix& matrix) {
    const int inputs = matrix.inputs(), count = blocks(inputs);
    for (int block = 0; block < count; block++) {
      alignas(64) float values[kScaled] = {};
      std::memcpy(values, x + block * kScaled, sizeof(float) * size_t(std::min(kScaled, inputs - block * kScaled)));
      round_block(values, size_t(row) * size_t(count) + size_t(block));
    }
  }

  Rows rows(const float*, int, int inputs) const { return {bytes_.data(), scales_.data(), shifts_.data(), inputs}; }

 private:
  void round_block(const float* values, size_t at) {
    Floats top = {}, finite = {};
    for (int i = 0; i < kScaled; i += kLanes) {
      const Floats value = loadf(values + i);
      top = max(top, value < 0 ? -value : value);
      finite += value - value;  // NaN where a value is none or infinite, and then the scale is NaN too
    }
    const float most = largest(top), inverse = most > 0 ? 127.0f / most : 0.0f;
    __m512i sums = _mm512_setzero_si512();
    for (int i = 0; i < kScaled; i += kLanes) {
      const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(values + i), _mm512_set1_ps(inverse)));
      sums = _mm512_add_epi32(sums, whole);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(&bytes_[at * kScaled + size_t(i)]), _mm512_cvtsepi32_epi8(whole));
    }
    scales_[at] = most / 127.0f + sum(finite);
    shifts_[at] = -kZero * _mm512_reduce_add_epi32(sums);
  }

  std::vector<int8_t> bytes_;
  std::vector<float> scales_;
  std::vector<int32_t> shifts_;
};

template <>
class Matrix<Int8Blocks> {
 public:
  using Stored = uint16_t;
  using Rows = Inputs<Int8Blocks>::Rows;

  void pack(const Stored* rows, int outputs, int inputs) {
    tiles_ = products() == Products::kTiles;
    outputs_ = outputs;
    inputs_ = inputs;
    data_ = Memory<uint8_t>(size_t(padded(outputs)) * size_t(blocks_in() * kScaled));
    scales_ = Memory<Stored>(size_t(padded(outputs)) * size_t(blocks_in()));
    for (int out = 0; out < outputs; out++)
      for (int block = 0; block < blocks_in(); block++) pack_block(rows + size_t(out) * size_t(inputs), out, block);
  }

  int blocks() const { return padded(outputs_) / kBlock; }
  int inputs() const { return inputs_; }
  static constexpr bool kExact = false;

  template <bool kAdd>
  void multiply(Rows in, int rows, float* y, int stride_y, int first, int end) const {
    if (tiles_) return multiply_tiles<kAdd>(in, rows, y, stride_y, first, end);
    cover(rows, first, end, [&]<int kRows, int kBlocks>(int block, int row, int index, int tiles) {
      const Rows from = {in.bytes + size_t(row) * size_t(blocks_in() * kScaled),
                         in.scales + size_t(row) * size_t(blocks_in()), in.shifts + size_t(row) * size_t(blocks_in()),
                         inputs_};
      dot<kRows, 2 * kBlocks, kAdd>(2 * block, from, y + size_t(row) * size_t(stride_y), stride_y, index, tiles);
    });
  }

 private:
  int blocks_in() const { return Inputs<Int8Blocks>::blocks(inputs_); }
  // The bytes of a panel, and its scales.
  size_t stride() const { return size_t(blocks_in()) * kScaled * kLanes; }
  size_t scale_stride() const { return size_t(blocks_in()) * kLanes; }

  // The largest weight of a block becomes 127; its scale is rounded to bf16 before the weights are divided by it.
  void pack_block(const Stored* row, int out, int block) {
    const int first = block * kScaled, end = std::min(inputs_, first + kScaled);
    const size_t panel = size_t(out / kLanes), lane = size_t(out % kLanes);
    float most = 0, finite = 0;
    for (int in = first; in < end; in++) {
      const float weight = BFloat16::one(row[in]);
      most = std::max(most, std::fabs(weight));
      finite += weight - weight;
    }
    const Stored scale = rounded(most / 127.0f + finite);
    const float divisor = BFloat16::one(scale);
    scales_[panel * scale_stride() + size_t(block) * kLanes + lane] = scale;
    for (int in = first; in < first + kScaled; in++) {
      const float share = in < end && divisor > 0 ? BFloat16::one(row[in]) / divisor : 0.0f;
      const int whole = int(std::lrint(std::clamp(share, -127.0f, 127.0f)));
      data_[panel * stride() + size_t(in / 4) * 64 + lane * 4 + size_t(in % 4)] = uint8_t(kZero + whole);
    }
  }

  static Stored rounded(float value) {
    return Stored(_mm256_extract_epi16(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_set1_ps(value))), 0));
  }

  __m512 scales_at(int panel, int block) const {
    const Stored* from = &scales_[size_t(panel) * scale_stride() + size_t(block) * kLanes];
    const __m256i scales = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(scales), 16));
  }

  template <int kRows, int kPanels, bool kAdd>
  void dot(int panel, Rows in, float* y, int stride_y, int index, int tiles) const {
    const int width = blocks_in() * kScaled;
    const uint8_t* weights = &data_[size_t(panel) * stride()];
    const size_t part = size_t(kTileRowBytes / tiles);
    const uint8_t* next = weights + kPanels * stride() + part * size_t(index * width / 4);
    __m512 sums[kRows][kPanels] = {};
    for (int block = 0; block < blocks_in(); block++) {
      __m512i totals[kRows][kPanels];
      for (int row = 0; row < kRows; row++)
        for (int p = 0; p < kPanels; p++) totals[row][p] = _mm512_set1_epi32(in.shifts[row * blocks_in() + block]);
      for (int at = block * kScaled; at < (block + 1) * kScaled; at += 4, weights += 64, next += part) {
        __m512i w[kPanels];
        for (int p = 0; p < kPanels; p++) {
          w[p] = _mm512_load_si512(weights + size_t(p) * stride());
          __builtin_prefetch(next + size_t(p) * stride(), 0, kPrefetched);
        }
        for (int row = 0; row < kRows; row++) {
          const __m512i four = _mm512_set1_epi32(load<int32_t>(in.bytes + size_t(row) * size_t(width) + at));
          for (int p = 0; p < kPanels; p++) totals[row][p] = _mm512_dpbusd_epi32(totals[row][p], w[p], four);
        }
      }
      for (int p = 0; p < kPanels; p++) {
        const __m512 scales = scales_at(panel + p, block);
        for (int row = 0; row < kRows; row++)
          sums[row][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(totals[row][p]),
                                         _mm512_mul_ps(scales, _mm512_set1_ps(in.scales[row * blocks_in() + block])),
                                         sums[row][p]);
      }
    }
    for (int row = 0; row < kRows; row++)
      for (int p = 0; p < kPanels; p++) {
        float* out = y + size_t(row) * size_t(stride_y) + (panel + p) * kLanes;
        _mm512_storeu_ps(out, kAdd ? _mm512_add_ps(_mm512_loadu_ps(out), sums[row][p]) : sums[row][p]);
      }
  }

  // Two tiles of rows by two panels at a time; a block of inputs is one tile deep.
  template <bool kAdd>
  void multiply_tiles(Rows in, int rows, float* y, int stride_y, int first, int end) const {
    const TilesInUse in_use;
    const int width = blocks_in() * kScaled;
    alignas(64) int32_t totals[2 * kTileHeight][kBlock];
    alignas(64) float sums[2 * kTileHeight][kBlock];
    for (int block = first; block < end; block++)
      for (int row = 0; row < rows; row += 2 * kTileHeight) {
        const int count = std::min(rows - row, 2 * kTileHeight);
        const int8_t *top = in.bytes + size_t(row) * size_t(width), *below = top + kTileHeight * width;
        const uint8_t *left = &data_[size_t(2 * block) * stride()], *right = left + stride();
        std::memset(sums, 0, sizeof sums);
        for (int step = 0; step < blocks_in(); step++) {
          SKIT_TILE_ZERO(0);
          SKIT_TILE_ZERO(1);
          SKIT_TILE_LOAD(4, top + step * kScaled, width);
          SKIT_TILE_LOAD(6, left + step * kTileBytes, kTileRowBytes);
          SKIT_TILE_LOAD(7, right + step * kTileBytes, kTileRowBytes);
          if (row == 0)
            for (int line = 0; line < 32; line++)
              __builtin_prefetch(right + stride() + (step * 32 + line) * 64, 0, kPrefetched);
          SKIT_TILE_BYTES(0, 4, 6);
          SKIT_TILE_BYTES(1, 4, 7);
          SKIT_TILE_STORE(0, totals[0], sizeof totals[0]);
          SKIT_TILE_STORE(1, totals[0] + kLanes, sizeof totals[0]);
          if (count > kTileHeight) {
            SKIT_TILE_ZERO(2);
            SKIT_TILE_ZERO(3);
            SKIT_TILE_LOAD(5, below + step * kScaled, width);
            SKIT_TILE_BYTES(2, 5, 6);
            SKIT_TILE_BYTES(3, 5, 7);
            SKIT_TILE_STORE(2, totals[kTileHeight], sizeof totals[0]);
            SKIT_TILE_STORE(3, totals[kTileHeight] + kLanes, sizeof totals[0]);
          }
          add_block(in, row, count, block, step, totals, sums);
        }
        for (int r = 0; r < count; r++)
          for (int at = 0; at < kBlock; at += kLanes) {
            float* out = y + size_t(row + r) * size_t(stride_y) + size_t(block) * kBlock + at;
            store(out, kAdd ? loadf(out) + loadf(sums[r] + at) : loadf(sums[r] + at));
          }
      }
  }

  void add_block(Rows in, int first_row, int count, int block, int step, const int32_t (*totals)[kBlock],
                 float (*sums)[kBlock]) const {
    for (int panel = 0; panel < 2; panel++) {
      const __m512 scales = scales_at(2 * block + panel, step);
      for (int r = 0; r < count; r++) {
        const size_t at = size_t(first_row + r) * size_t(blocks_in()) + size_t(step);
        const __m512i total =
            _mm512_add_epi32(_mm512_load_si512(totals[r] + panel * kLanes), _mm512_set1_epi32(in.shifts[at]));
        const __m512 sum = _mm512_load_ps(sums[r] + panel * kLanes);
        _mm512_store_ps(
            sums[r] + panel * kLanes,
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), _mm512_mul_ps(scales, _mm512_set1_ps(in.scales[at])), sum));
      }
    }
  }

  bool tiles_ = false;
  int outputs_ = 0, inputs_ = 0;
  Memory<uint8_t> data_;
  Memory<Stored> scales_;
};

}  // namespace skit
