// A weight matrix in blocks of two registers of outputs, and its product with a few rows.
//
// Every output is one sum over the inputs in their order, whatever else is computed beside it. That is what makes a
// token's logits independent of its batch, chunk, tree and threads: keep it so.
#pragma once
#include <algorithm>
#include <vector>

#include "memory.h"
#include "vector.h"

namespace skit {

constexpr int kBlock = 2 * kLanes;
inline int padded(int size) { return (size + kBlock - 1) / kBlock * kBlock; }

#if defined(__AVX512F__)
constexpr int kTileRows = 6, kTileBlocks = 2, kVectorBlocks = 4;  // 24 sums, 4 weights and an input in 32 registers
#elif defined(__aarch64__)
constexpr int kTileRows = 4, kTileBlocks = 2, kVectorBlocks = 4;
#else
constexpr int kTileRows = 5, kTileBlocks = 1, kVectorBlocks = 4;  // 16 registers
#endif

template <class Kind>
class Matrix {
 public:
  using Stored = typename Kind::Stored;

  // `rows` is [outputs][inputs]. Stored are blocks [inputs][kBlock]; in 16-bit ones output j lies beside
  // j + kLanes, so that widening is a shift and a mask.
  void pack(const Stored* rows, int outputs, int inputs) {
    outputs_ = outputs;
    inputs_ = inputs;
    data_ = Memory<Stored>(size_t(padded(outputs)) * inputs);
    for (int out = 0; out < outputs; out++)
      for (int in = 0; in < inputs; in++) data_[place(out, in)] = rows[size_t(out) * inputs + in];
  }

  int blocks() const { return padded(outputs_) / kBlock; }

  // y[row][out] = x[row] . w[out], or += it, for the blocks from `first` to `end`.
  template <bool kAdd>
  void multiply(const float* x, int stride_x, int rows, float* y, int stride_y, int first, int end) const {
    const int wide = rows == 1 ? kVectorBlocks : kTileBlocks;
    int block = first;
    for (; block + wide <= end; block += wide) {
      if (rows == 1) tile<1, kVectorBlocks, kAdd, true>(block, x, stride_x, y, stride_y);
      else column<kTileBlocks, kAdd>(block, x, stride_x, rows, y, stride_y);
    }
    for (; block < end; block++) column<1, kAdd>(block, x, stride_x, rows, y, stride_y);
  }

 private:
  size_t place(int out, int in) const {
    const int within = out % kBlock;
    const int lane = sizeof(Stored) == 2 ? within % kLanes * 2 + within / kLanes : within;
    return (size_t(out / kBlock) * inputs_ + in) * kBlock + lane;
  }

  template <int kBlocks, bool kAdd>
  void column(int block, const float* x, int stride_x, int rows, float* y, int stride_y) const {
    int row = 0;
    for (; row + kTileRows <= rows; row += kTileRows)  // only the first tile has to bring the next weights near
      row ? tile<kTileRows, kBlocks, kAdd, false>(block, x + size_t(row) * stride_x, stride_x,
                                                  y + size_t(row) * stride_y, stride_y)
          : tile<kTileRows, kBlocks, kAdd, true>(block, x, stride_x, y, stride_y);
    rest<kTileRows - 1, kBlocks, kAdd>(block, x + size_t(row) * stride_x, stride_x, rows - row,
                                       y + size_t(row) * stride_y, stride_y);
  }

  template <int kRows, int kBlocks, bool kAdd>
  void rest(int block, const float* x, int stride_x, int rows, float* y, int stride_y) const {
    if constexpr (kRows > 0) {
      if (rows == kRows) tile<kRows, kBlocks, kAdd, true>(block, x, stride_x, y, stride_y);
      else rest<kRows - 1, kBlocks, kAdd>(block, x, stride_x, rows, y, stride_y);
    }
  }

  template <int kRows, int kBlocks, bool kAdd, bool kPrefetch>
  void tile(int block, const float* x, int stride_x, float* y, int stride_y) const {
    const size_t stride = size_t(inputs_) * kBlock;
    const Stored* weights = &data_[block * stride];
    Floats sums[kRows][2 * kBlocks] = {};
    for (int in = 0; in < inputs_; in++, weights += kBlock) {
      Floats w[2 * kBlocks];
      for (int b = 0; b < kBlocks; b++) {
        Kind::widen(weights + b * stride, w[2 * b], w[2 * b + 1]);
        if (kPrefetch) {
          const char* next = (const char*)(weights + (b + kBlocks) * stride);
          __builtin_prefetch(next);
          if (sizeof(Stored) == 4) __builtin_prefetch(next + 64);
        }
      }
      for (int row = 0; row < kRows; row++) {
        const float input = x[row * stride_x + in];
        for (int b = 0; b < 2 * kBlocks; b++) sums[row][b] += w[b] * input;
      }
    }
    for (int row = 0; row < kRows; row++)
      for (int b = 0; b < 2 * kBlocks; b++) {
        float* out = y + size_t(row) * stride_y + size_t(block) * kBlock + b * kLanes;
        store(out, kAdd ? loadf(out) + sums[row][b] : sums[row][b]);
      }
  }

  int outputs_ = 0, inputs_ = 0;
  Memory<Stored> data_;
};

}  // namespace skit
