// Keys and values of every slot, and attention over them.
//
// Keys are stored in blocks of places, [slot][head][place / kLanes][dim][kLanes], so that one register holds the scores
// of kLanes neighbouring places, each summed over the dimensions in order. Values are stored [slot][head][place][dim];
// an output is one sum over the places in order, in which a masked place has the weight zero. Both orders are fixed,
// and that is why a token's result is bitwise the same in a chain and in a tree.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "memory.h"
#include "vector.h"

namespace skit {

// The cached places that one new token attends to: all places below `prefix`, and of those from there on the ones
// listed.
struct Visibility {
  int prefix;
  const int32_t *extra, *extra_end;
  int end() const { return extra == extra_end ? prefix : std::max(prefix, extra_end[-1] + 1); }
};

class Cache {
 public:
#if defined(__AVX512F__)
  static constexpr int kTile = 6;  // queries that are answered together
#else
  static constexpr int kTile = 4;
#endif

  Cache(int slots, int heads, int capacity, int dim)
      : heads_(heads),
        capacity_((capacity + kLanes - 1) / kLanes * kLanes),
        dim_(dim),
        keys_(size_t(slots) * heads * capacity_ * dim),
        values_(size_t(slots) * heads * capacity_ * dim) {}

  void write(int slot, int head, int place, const float* key, const float* value) {
    for (int i = 0; i < dim_; i++) *key_at(slot, head, place, i) = key[i];
    std::memcpy(&values_[value_at(slot, head, place)], value, dim_ * sizeof(float));
  }

  void move(int slot, int from, int to) {
    for (int head = 0; head < heads_; head++) {
      for (int i = 0; i < dim_; i++) *key_at(slot, head, to, i) = *key_at(slot, head, from, i);
      std::memcpy(&values_[value_at(slot, head, to)], &values_[value_at(slot, head, from)], dim_ * sizeof(float));
    }
  }

  int scratch() const { return kTile * (capacity_ + kLanes * kBlocks); }

  // Answers up to kTile queries of one slot and head; `out[i]` takes `dim` numbers.
  void attend(int slot, int head, int count, const float* const* queries, const Visibility* visible, float* const* out,
              float* scratch) const {
    int end = 0;
    for (int i = 0; i < count; i++) end = std::max(end, visible[i].end());
    const int stride = capacity_ + kLanes * kBlocks;
    exactly<kTile>(count, slot, head, queries, visible, out, scratch, stride, end);
  }

 private:
  static constexpr int kBlocks = 4;  // of keys, scored together so that no sum waits for itself
  static constexpr float kMasked = -1e30f;

  float* key_at(int slot, int head, int place, int i) {
    const size_t base = (size_t(slot) * heads_ + head) * capacity_ * dim_;
    return &keys_[base + (size_t(place / kLanes) * dim_ + i) * kLanes + place % kLanes];
  }
  size_t value_at(int slot, int head, int place) const {
    return ((size_t(slot) * heads_ + head) * capacity_ + place) * dim_;
  }

  template <int kCount>
  void exactly(int count, int slot, int head, const float* const* queries, const Visibility* visible, float* const* out,
               float* scores, int stride, int end) const {
    if (count == kCount) answer<kCount>(slot, head, queries, visible, out, scores, stride, end);
    else if constexpr (kCount > 1) exactly<kCount - 1>(count, slot, head, queries, visible, out, scores, stride, end);
  }

  template <int kCount>
  void answer(int slot, int head, const float* const* queries, const Visibility* visible, float* const* out,
              float* scores, int stride, int end) const {
    constexpr int wide = kCount == 1 ? kBlocks : 2;
    const float* keys = &keys_[(size_t(slot) * heads_ + head) * capacity_ * dim_];
    const int blocks = (end + kLanes - 1) / kLanes;
    int block = 0;
    for (; block + wide <= blocks; block += wide) score<kCount, wide>(keys, block, queries, scores, stride);
    for (; block < blocks; block++) score<kCount, 1>(keys, block, queries, scores, stride);
    for (int i = 0; i < kCount; i++) weigh(scores + i * stride, visible[i], end);
    float totals[kCount] = {};  // in the order of places; side by side, since each addition waits for the one before
    for (int at = 0; at < end; at++)
      for (int i = 0; i < kCount; i++) totals[i] += scores[i * stride + at];
    for (int at = 0; at < dim_; at += 4 * kLanes) switch (std::min(4, (dim_ - at) / kLanes)) {
        case 1:
          mix<kCount, 1>(slot, head, at, scores, stride, end, totals, out);
          break;
        case 2:
          mix<kCount, 2>(slot, head, at, scores, stride, end, totals, out);
          break;
        case 3:
          mix<kCount, 3>(slot, head, at, scores, stride, end, totals, out);
          break;
        default:
          mix<kCount, 4>(slot, head, at, scores, stride, end, totals, out);
      }
  }

  template <int kCount, int kWide>
  void score(const float* keys, int block, const float* const* queries, float* scores, int stride) const {
    Floats sums[kCount][kWide] = {};
    const size_t size = size_t(dim_) * kLanes;
    for (int i = 0; i < dim_; i++)
      for (int b = 0; b < kWide; b++) {
        const Floats key = loadf(keys + (block + b) * size + size_t(i) * kLanes);
        for (int q = 0; q < kCount; q++) sums[q][b] += key * queries[q][i];
      }
    for (int q = 0; q < kCount; q++)
      for (int b = 0; b < kWide; b++) store(scores + q * stride + (block + b) * kLanes, sums[q][b]);
  }

  // Turns scores into weights, zero where the query does not see, up to `end`.
  static void weigh(float* scores, const Visibility& visibility, int end) {
    const int padded = (end + kLanes - 1) / kLanes * kLanes;
    if (visibility.prefix < padded) mask(scores, visibility, padded);
    Floats best = broadcast(kMasked);
    for (int at = 0; at < padded; at += kLanes) best = max(best, loadf(scores + at));
    const Floats top = broadcast(largest(best));
    for (int at = 0; at < padded; at += kLanes) {
      const Floats s = loadf(scores + at);
      store(scores + at, s > kMasked ? exponential(s - top) : Floats{});
    }
  }

  static void mask(float* scores, const Visibility& visibility, int padded) {
    int at = visibility.prefix;
    for (const int32_t* next = visibility.extra; next != visibility.extra_end; at = *next++ + 1)
      std::fill(scores + at, scores + *next, kMasked);
    std::fill(scores + at, scores + padded, kMasked);
  }

  template <int kCount, int kWide>
  void mix(int slot, int head, int first, const float* weights, int stride, int end, const float* totals,
           float* const* out) const {
    Floats sums[kCount][kWide] = {};
    const float* value = &values_[value_at(slot, head, 0) + first];
    for (int at = 0; at < end; at++, value += dim_)
      for (int b = 0; b < kWide; b++) {
        const Floats v = loadf(value + b * kLanes);
        for (int q = 0; q < kCount; q++) sums[q][b] += v * weights[q * stride + at];
      }
    for (int q = 0; q < kCount; q++)
      for (int b = 0; b < kWide; b++) store(out[q] + first + b * kLanes, sums[q][b] / totals[q]);
  }

  int heads_, capacity_, dim_;
  Memory<float> keys_, values_;
};

}  // namespace skit
