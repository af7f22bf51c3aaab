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

// A tile is as many sums as fit into the registers beside the weights and an input: up to kFewRows rows of kTileBlocks
// blocks, or up to kTileRows rows of one block.
#if defined(__AVX512F__)
constexpr int kTileRows = 12, kFewRows = 6, kTileBlocks = 2, kVectorBlocks = 4;  // 32 registers
#elif defined(__aarch64__)
constexpr int kTileRows = 8, kFewRows = 4, kTileBlocks = 2, kVectorBlocks = 4;
#else
constexpr int kTileRows = 5, kFewRows = 5, kTileBlocks = 1, kVectorBlocks = 4;  // 16 registers
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
    const int wide = rows == 1 ? kVectorBlocks : rows <= kFewRows ? kTileBlocks : 1;
    int block = first;
    for (; block + wide <= end; block += wide) {
      if (rows == 1) tile<1, kVectorBlocks, kAdd>(block, x, stride_x, y, stride_y, 0, 1);
      else if (rows <= kFewRows) exactly<kFewRows, kTileBlocks, kAdd>(rows, block, x, stride_x, y, stride_y, 0, 1);
      else column<kAdd>(block, x, stride_x, rows, y, stride_y);
    }
    for (; block < end; block++) column<kAdd>(block, x, stride_x, rows, y, stride_y);
  }

 private:
  size_t place(int out, int in) const {
    const int within = out % kBlock;
    const int lane = sizeof(Stored) == 2 ? within % kLanes * 2 + within / kLanes : within;
    return (size_t(out / kBlock) * inputs_ + in) * kBlock + lane;
  }

  // All rows of one block, in tiles of nearly equal height.
  template <bool kAdd>
  void column(int block, const float* x, int stride_x, int rows, float* y, int stride_y) const {
    const int tiles = (rows + kTileRows - 1) / kTileRows;
    for (int index = 0, row = 0; index < tiles; index++) {
      const int count = (rows - row + tiles - index - 1) / (tiles - index);
      exactly<kTileRows, 1, kAdd>(count, block, x + size_t(row) * stride_x, stride_x, y + size_t(row) * stride_y,
                                  stride_y, index, tiles);
      row += count;
    }
  }

  template <int kRows, int kBlocks, bool kAdd>
  void exactly(int rows, int block, const float* x, int stride_x, float* y, int stride_y, int index, int tiles) const {
    if (rows == kRows) tile<kRows, kBlocks, kAdd>(block, x, stride_x, y, stride_y, index, tiles);
    else if constexpr (kRows > 1)
      exactly<kRows - 1, kBlocks, kAdd>(rows, block, x, stride_x, y, stride_y, index, tiles);
  }

  // The tile `index` of `tiles` that read the same blocks; each brings its part of the next blocks near, so that memory
  // and arithmetic are busy all the time.
  template <int kRows, int kBlocks, bool kAdd>
  void tile(int block, const float* x, int stride_x, float* y, int stride_y, int index, int tiles) const {
    const size_t stride = size_t(inputs_) * kBlock;
    const Stored* weights = &data_[block * stride];
    const size_t part = kBlock * sizeof(Stored) / tiles;
    const char* next = reinterpret_cast<const char*>(weights + kBlocks * stride) + part * index * inputs_;
    Floats sums[kRows][2 * kBlocks] = {};
    for (int in = 0; in < inputs_; in++, weights += kBlock, next += part) {
      Floats w[2 * kBlocks];
      for (int b = 0; b < kBlocks; b++) {
        Kind::widen(weights + b * stride, w[2 * b], w[2 * b + 1]);
        __builtin_prefetch(next + b * stride * sizeof(Stored), 0, kPrefetched);
        if (sizeof(Stored) == 4) __builtin_prefetch(next + b * stride * sizeof(Stored) + 64, 0, kPrefetched);
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

  static constexpr int kPrefetched = 2;  // into the second level: a block is larger than the first
  int outputs_ = 0, inputs_ = 0;
  Memory<Stored> data_;
};

}  // namespace skit
