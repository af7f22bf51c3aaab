// The best next tokens of many rows of logits at once: what a growing tree asks for at every level.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "vector.h"

namespace skit {

struct Candidate {
  float score;
  int32_t row, token;
  bool operator>(const Candidate& other) const {
    return score != other.score ? score > other.score : row != other.row ? row < other.row : token < other.token;
  }
};

// log of the sum of e^(logit * inverse).
inline float log_total(const float* logits, int size, float inverse) {
  const float top = largest(logits, size);
  Floats total = {};
  int at = 0;
  for (; at + kLanes <= size; at += kLanes) total += exponential((loadf(logits + at) - top) * inverse);
  float rest = 0;
  for (; at < size; at++) rest += std::exp((logits[at] - top) * inverse);
  return top * inverse + std::log(sum(total) + rest);
}

constexpr int kColumns = 8 * kLanes;

// Of every `kColumns`-th entry on from each of the first, the largest is an entry of its own: the `number`-th best of all
// cannot lie below the `number`-th best of these.
inline float bound(const float* values, int size, int number) {
  if (number > kColumns) return -INFINITY;
  float tops[kColumns];
  std::fill(tops, tops + kColumns, -INFINITY);
  int at = 0;
  for (; at + kColumns <= size; at += kColumns)
    for (int i = 0; i < kColumns; i += kLanes) store(tops + i, max(loadf(tops + i), loadf(values + at + i)));
  for (int i = 0; at + i < size; i++) tops[i] = std::max(tops[i], values[at + i]);
  std::nth_element(tops, tops + number - 1, tops + kColumns, std::greater<>());
  return tops[number - 1];
}

// At most `most` candidates, the worst in front.
class Best {
 public:
  explicit Best(size_t most) : most(most) {}
  float floor() const { return found.size() < most ? -INFINITY : found.front().score; }
  void take(const Candidate& one) {
    if (found.size() == most) {
      if (!(one > found.front())) return;
      std::pop_heap(found.begin(), found.end(), std::greater<>());
      found.pop_back();
    }
    found.push_back(one);
    std::push_heap(found.begin(), found.end(), std::greater<>());
  }
  std::vector<Candidate> found;

 private:
  size_t most;
};

// Of the `branch` likeliest entries of each of `rows`, the `count` with the highest base + log-probability, best first.
inline std::vector<Candidate> candidates(const float* logits, int stride, int size, float temperature,
                                         const int32_t* rows, const float* bases, int number, int branch, int count) {
  const float inverse = 1.0f / temperature;
  const int each = std::min(branch, count);
  Best best(count);
  for (int row = 0; row < number; row++) {
    const float* of = logits + size_t(rows[row]) * stride;
    const float shift = bases[row] - log_total(of, size, inverse);
    const float floor = std::max(best.floor(), bound(of, size, each) * inverse + shift);
    Best own(each);
    for (int at = 0; at < size; at += kColumns) {
      const int end = std::min(size, at + kColumns);
      if (!(largest(of + at, end - at) * inverse + shift >= floor)) continue;
      for (int i = at; i < end; i++)
        if (const float score = of[i] * inverse + shift; score >= floor) own.take({score, row, i});
    }
    for (const Candidate& one : own.found) best.take(one);
  }
  std::sort(best.found.begin(), best.found.end(), std::greater<>());
  return best.found;
}

}  // namespace skit
