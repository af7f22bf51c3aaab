// Products of bf16 weights with activations that are rounded to bf16, summed in fp32.
//
// An output is one sum in one order, as in matrix.h, so that a token's logits do not depend on what is computed beside
// it. Weights are stored in panels of 16 outputs, [inputs / 2][16][2], the form that both the dot products of pairs and
// the tiles of AMX read. Of a pair the later input comes first: the dot product adds the upper half before the lower.
#pragma once
#include <immintrin.h>

#include <chrono>

#include "matrix.h"
#include "products.h"

namespace skit {

// bf16 weights whose products are taken with activations in bf16.
struct BFloat16Pairs : BFloat16 {};

// Makes subnormal numbers zero for as long as it lives, as the instructions for bf16 always do.
class WithoutSubnormals {
 public:
  WithoutSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  WithoutSubnormals(const WithoutSubnormals&) = delete;
  ~WithoutSubnormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
};

template <>
class Inputs<BFloat16Pairs> {
 public:
  struct Rows {
    const float* floats;    // each a bf16 number: [rows][inputs]
    const uint16_t* pairs;  // [rows][padded inputs], the later input of a pair first
    int inputs;
  };
  static constexpr bool kCopied = true;
  static int padded_inputs(int inputs) { return (inputs + 31) / 32 * 32; }

  void reserve(int rows, int inputs) {
    const size_t size = size_t(rows + 2 * kTileHeight) * padded_inputs(inputs);
    if (floats_.size() < size) floats_.resize(size);
    if (pairs_.size() < size) pairs_.resize(size);
  }

  template <class Matrix>
  void copy(int row, const float* x, const Matrix& matrix) {
    const int inputs = matrix.inputs();
    float* floats = &floats_[size_t(row) * inputs];
    uint16_t* pairs = &pairs_[size_t(row) * padded_inputs(inputs)];
    for (int in = 0; in < inputs; in += 16) {
      const auto rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(x + in)));
      _mm512_storeu_si512(floats + in, _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs + in), _mm256_rol_epi32(rounded, 16));
    }
    std::fill(pairs + inputs, pairs + padded_inputs(inputs), uint16_t(0));
  }

  Rows rows(const float*, int, int inputs) const { return {floats_.data(), pairs_.data(), inputs}; }

 private:
  std::vector<float> floats_;
  std::vector<uint16_t> pairs_;
};

template <>
class Matrix<BFloat16Pairs> {
 public:
  using Stored = uint16_t;

  void pack(const Stored* rows, int outputs, int inputs, Products chosen = products()) {
    products_ = chosen;
    outputs_ = outputs;
    inputs_ = inputs;
    if (products_ == Products::kMultiplyAdd) return widened_.pack(rows, outputs, inputs);
    data_ = Memory<Stored>(size_t(padded(outputs)) * stride() / kLanes);
    for (int out = 0; out < outputs; out++)
      for (int in = 0; in < inputs; in++) data_[place(out, in)] = rows[size_t(out) * inputs + in];
  }

  int blocks() const { return padded(outputs_) / kBlock; }
  int inputs() const { return inputs_; }

  static constexpr bool kExact = true;
  void row(int out, float* to) const {
    if (products_ == Products::kMultiplyAdd) return widened_.row(out, to);
    for (int in = 0; in < inputs_; in++) to[in] = BFloat16::one(data_[place(out, in)]);
  }

  template <bool kAdd>
  void multiply(Inputs<BFloat16Pairs>::Rows in, int rows, float* y, int stride_y, int first, int end) const {
    const WithoutSubnormals flushed;
    if (products_ == Products::kMultiplyAdd)
      widened_.template multiply<kAdd>({in.floats, inputs_}, rows, y, stride_y, first, end);
    else if (products_ == Products::kTiles) multiply_tiles<kAdd>(in.pairs, rows, y, stride_y, first, end);
    else
      cover(rows, first, end, [&]<int kRows, int kBlocks>(int block, int row, int index, int tiles) {
        const size_t from = size_t(row) * Inputs<BFloat16Pairs>::padded_inputs(inputs_);
        dot<kRows, 2 * kBlocks, kAdd>(2 * block, in.pairs + from, y + size_t(row) * stride_y, stride_y, index, tiles);
      });
  }

 private:
  size_t place(int out, int in) const { return out / kLanes * stride() + in / 2 * 32 + out % kLanes * 2 + 1 - in % 2; }

  // Numbers in a panel.
  size_t stride() const { return size_t(Inputs<BFloat16Pairs>::padded_inputs(inputs_)) * kLanes; }

  template <int kRows, int kPanels, bool kAdd>
  void dot(int panel, const uint16_t* x, float* y, int stride_y, int index, int tiles) const {
    const int width = Inputs<BFloat16Pairs>::padded_inputs(inputs_);
    const uint16_t* weights = &data_[panel * stride()];
    const size_t part = kTileRowBytes / tiles;
    const char* next = reinterpret_cast<const char*>(weights + kPanels * stride()) + part * index * (width / 2);
    __m512 sums[kRows][kPanels] = {};
    for (int in = 0; in < width; in += 2, weights += 32, next += part) {
      __m512bh w[kPanels];
      for (int p = 0; p < kPanels; p++) {
        w[p] = reinterpret_cast<__m512bh>(_mm512_load_si512(weights + p * stride()));
        __builtin_prefetch(next + p * stride() * sizeof(Stored), 0, kPrefetched);
      }
      for (int row = 0; row < kRows; row++) {
        const auto pair = reinterpret_cast<__m512bh>(_mm512_set1_epi32(load<int32_t>(x + row * width + in)));
        for (int p = 0; p < kPanels; p++) sums[row][p] = _mm512_dpbf16_ps(sums[row][p], w[p], pair);
      }
    }
    for (int row = 0; row < kRows; row++)
      for (int p = 0; p < kPanels; p++) {
        float* out = y + size_t(row) * stride_y + (panel + p) * kLanes;
        _mm512_storeu_ps(out, kAdd ? _mm512_add_ps(_mm512_loadu_ps(out), sums[row][p]) : sums[row][p]);
      }
  }

  // Two tiles of rows by two panels at a time. Rows beyond the last are computed from whatever is in the buffer, and
  // dropped.
  template <bool kAdd>
  void multiply_tiles(const uint16_t* x, int rows, float* y, int stride_y, int first, int end) const {
    const TilesInUse in_use;
    const int width = Inputs<BFloat16Pairs>::padded_inputs(inputs_), row_bytes = width * int(sizeof(Stored));
    const int steps = width / 32, passes = (rows + 2 * kTileHeight - 1) / (2 * kTileHeight);
    alignas(64) float sums[2 * kTileHeight][2 * kLanes];
    for (int block = first; block < end; block++)
      for (int pass = 0; pass < passes; pass++) {
        const int row = pass * 2 * kTileHeight, count = std::min(rows - row, 2 * kTileHeight);
        const uint16_t *top = x + size_t(row) * width, *below = top + size_t(kTileHeight) * width;
        const Stored *left = &data_[2 * block * stride()], *right = left + stride();
        const int lines = (32 + passes - 1) / passes;
        const char* next = reinterpret_cast<const char*>(right + stride()) + size_t(pass) * steps * lines * 64;
        SKIT_TILE_ZERO(0);
        SKIT_TILE_ZERO(1);
        SKIT_TILE_ZERO(2);
        SKIT_TILE_ZERO(3);
        for (int step = 0; step < steps; step++) {
          SKIT_TILE_LOAD(4, top + step * 32, row_bytes);
          SKIT_TILE_LOAD(6, left + step * 512, kTileRowBytes);
          SKIT_TILE_LOAD(7, right + step * 512, kTileRowBytes);
          for (int line = 0; line < lines; line++, next += 64) __builtin_prefetch(next, 0, kPrefetched);
          SKIT_TILE_PAIRS(0, 4, 6);
          SKIT_TILE_PAIRS(1, 4, 7);
          if (count <= kTileHeight) continue;
          SKIT_TILE_LOAD(5, below + step * 32, row_bytes);
          SKIT_TILE_PAIRS(2, 5, 6);
          SKIT_TILE_PAIRS(3, 5, 7);
        }
        SKIT_TILE_STORE(0, sums[0], sizeof sums[0]);
        SKIT_TILE_STORE(1, sums[0] + kLanes, sizeof sums[0]);
        SKIT_TILE_STORE(2, sums[kTileHeight], sizeof sums[0]);
        SKIT_TILE_STORE(3, sums[kTileHeight] + kLanes, sizeof sums[0]);
        for (int r = 0; r < count; r++)
          for (int at = 0; at < kBlock; at += kLanes) {
            float* out = y + size_t(row + r) * stride_y + size_t(block) * kBlock + at;
            store(out, kAdd ? loadf(out) + loadf(sums[r] + at) : loadf(sums[r] + at));
          }
      }
  }

  Products products_ = Products::kMultiplyAdd;
  int outputs_ = 0, inputs_ = 0;
  Matrix<BFloat16> widened_;
  Memory<Stored> data_;
};

// Returns the seconds of a product that needs no memory beyond the first cache, the shortest of several tries.
inline double seconds_of(Products how) {
  constexpr int kRows = kTileRows, kInputs = 256;
  Matrix<BFloat16Pairs> matrix;
  const std::vector<uint16_t> weights(kBlock * kInputs, 0x3f80);
  matrix.pack(weights.data(), kBlock, kInputs, how);
  Inputs<BFloat16Pairs> inputs;
  inputs.reserve(kRows, kInputs);
  std::vector<float> results(kRows * kBlock);
  double least = 1;
  for (int attempt = 0; attempt < 30; attempt++) {
    const auto start = std::chrono::steady_clock::now();
    matrix.multiply<false>(inputs.rows(nullptr, 0, kInputs), kRows, results.data(), kBlock, 0, 1);
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return least;
}

// Intel's cores without AMX take the products of pairs at half the rate of single ones in fp32, AMD's at twice the
// rate. The bits are the same either way, so the choice may be measured.
inline Products fastest_products() {
  if (tiles_permitted()) return Products::kTiles;
  return seconds_of(Products::kDot) < seconds_of(Products::kMultiplyAdd) ? Products::kDot : Products::kMultiplyAdd;
}

}  // namespace skit
