// A weight matrix in blocks of two registers of outputs, and its product with a few rows.
//
// Every output is one sum over the inputs in their order, whatever else is computed beside it. That is what makes a
// token's logits independent of its batch, chunk, tree and threads: keep it so.
#pragma once
#include <algorithm>
#include <cstdint>
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

template <int kRows, int kBlocks, class Tile>
void call_tile(int rows, const Tile& tile, int block, int row, int index, int tiles) {
  if (rows == kRows) tile.template operator()<kRows, kBlocks>(block, row, index, tiles);
  else if constexpr (kRows > 1) call_tile<kRows - 1, kBlocks>(rows, tile, block, row, index, tiles);
}

// Calls `tile<rows, blocks>(block, row, index, tiles)` until all rows of the blocks from `first` to `end` are covered.
// `index` counts the tiles of nearly equal height that read the same blocks.
template <class Tile>
void cover(int rows, int first, int end, const Tile& tile) {
  const auto column = [&](int block) {
    const int tiles = (rows + kTileRows - 1) / kTileRows;
    for (int index = 0, row = 0; index < tiles; index++) {
      const int count = (rows - row + tiles - index - 1) / (tiles - index);
      call_tile<kTileRows, 1>(count, tile, block, row, index, tiles);
      row += count;
    }
  };
  const int wide = rows == 1 ? kVectorBlocks : rows <= kFewRows ? kTileBlocks : 1;
  int block = first;
  for (; block + wide <= end; block += wide) {
    if (rows == 1) tile.template operator()<1, kVectorBlocks>(block, 0, 0, 1);
    else if (rows <= kFewRows) call_tile<kFewRows, kTileBlocks>(rows, tile, block, 0, 0, 1);
    else column(block);
  }
  for (; block < end; block++) column(block);
}

constexpr int kPrefetched = 2;  // into the second level of cache: a block is larger than the first

// The rows that a matrix multiplies, as its kind of arithmetic reads them: floats where they are. Other kinds copy
// them.
template <class Kind>
class Inputs {
 public:
  struct Rows {
    const float* x;
    int stride;
  };
  static constexpr bool kCopied = false;
  void reserve(int, int) {}
  Rows rows(const float* x, int stride, int) const { return {x, stride}; }
};

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
  int inputs() const { return inputs_; }

  // Whether the matrix holds its weights as they were given; then `row` writes those of an output.
  static constexpr bool kExact = true;
  void row(int out, float* to) const {
    for (int in = 0; in < inputs_; in++) to[in] = Kind::one(data_[place(out, in)]);
  }

  // y[row][out] = x[row] . w[out], or += it, for the blocks from `first` to `end`.
  template <bool kAdd>
  void multiply(typename Inputs<Kind>::Rows in, int rows, float* y, int stride_y, int first, int end) const {
    cover(rows, first, end, [&]<int kRows, int kBlocks>(int block, int row, int index, int tiles) {
      tile<kRows, kBlocks, kAdd>(block, in.x + size_t(row) * in.stride, in.stride, y + size_t(row) * stride_y, stride_y,
                                 index, tiles);
    });
  }

 private:
  size_t place(int out, int in) const {
    const int within = out % kBlock;
    const int lane = sizeof(Stored) == 2 ? within % kLanes * 2 + within / kLanes : within;
    return (size_t(out / kBlock) * inputs_ + in) * kBlock + lane;
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

  int outputs_ = 0, inputs_ = 0;
  Memory<Stored> data_;
};

// The rows of a matrix that is looked up, as they were given.
template <class Kind>
class Embedding {
 public:
  using Stored = typename Kind::Stored;

  void load(const Stored* rows, int count, int width) {
    width_ = size_t(width);
    rows_ = Memory<Stored>(size_t(count) * width_);
    std::memcpy(&rows_[0], rows, sizeof(Stored) * size_t(count) * width_);
  }
  explicit operator bool() const { return bool(rows_); }
  void row(int index, float* to) const {
    for (size_t at = 0; at < width_; at++) to[at] = Kind::one(rows_[size_t(index) * width_ + at]);
  }

 private:
  Memory<Stored> rows_;
  size_t width_ = 0;
};

}  // namespace skit
