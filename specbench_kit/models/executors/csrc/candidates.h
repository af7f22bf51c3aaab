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

inline float largest(const float* values, int size) {
  Floats best = all(-INFINITY);
  int at = 0;
  for (; at + kLanes <= size; at += kLanes) best = max(best, loadf(values + at));
  float top = largest(best);
  for (; at < size; at++) top = std::max(top, values[at]);
  return top;
}

// log of the sum of e^(logit * inverse), of logits of which `top` is the largest.
inline float log_total(const float* logits, int size, float inverse, float top) {
  Floats total = {};
  int at = 0;
  for (; at + kLanes <= size; at += kLanes) total += exponential((loadf(logits + at) - top) * inverse);
  float rest = 0;
  for (; at < size; at++) rest += std::exp((logits[at] - top) * inverse);
  return top * inverse + std::log(sum(total) + rest);
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
  constexpr int kBlock = 8 * kLanes;  // looked at closely only where its largest entry can still get in
  const float inverse = 1.0f / temperature;
  std::vector<float> tops((size + kBlock - 1) / kBlock);
  Best best(count);
  for (int row = 0; row < number; row++) {
    const float* of = logits + size_t(rows[row]) * stride;
    for (int at = 0; at < size; at += kBlock) tops[at / kBlock] = largest(of + at, std::min(kBlock, size - at));
    const float shift = bases[row] - log_total(of, size, inverse, *std::max_element(tops.begin(), tops.end()));
    Best own(std::min(branch, count));
    for (int at = 0; at < size; at += kBlock) {
      const float floor = std::max(own.floor(), best.floor());
      if (!(tops[at / kBlock] * inverse + shift >= floor)) continue;
      for (int i = at; i < std::min(size, at + kBlock); i++)
        if (const float score = of[i] * inverse + shift; score >= floor) own.take({score, row, i});
    }
    for (const Candidate& one : own.found) best.take(one);
  }
  std::sort(best.found.begin(), best.found.end(), std::greater<>());
  return best.found;
}

}  // namespace skit
