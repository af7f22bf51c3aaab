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

// log of the sum of e^(logit * inverse); `top` is the largest logit.
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
  explicit Best(size_t most) : most(most) { found.reserve(most); }
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

constexpr float kRounding = 1e-3f;  // relative or absolute, more than any score is wrong by

// The first entry from `at` on that may be `least` or more, or `size`; most are far from it, so many are looked at together.
inline int next_of(const float* values, int size, int at, float least) {
  constexpr int kBlock = 8 * kLanes;
  const Floats least_of_all = all(least);
  for (; at + kBlock <= size; at += kBlock) {
    Ints found = {};
    for (int i = 0; i < kBlock; i += kLanes) found |= loadf(values + at + i) >= least_of_all;
    if (any(found)) break;
  }
  while (at < size && !(values[at] >= least)) at++;
  return at;
}

// Of the `branch` likeliest entries of each of `rows`, the `count` with the highest base + log-probability above `floor`,
// best first.
inline std::vector<Candidate> candidates(const float* logits, int stride, int size, float temperature,
                                         const std::vector<int32_t>& rows, const std::vector<float>& bases, int branch,
                                         int count, double floor) {
  const float inverse = 1.0f / temperature;
  Best best(count);
  for (size_t row = 0; row < rows.size(); row++) {
    const float least = std::max(best.floor(), float(floor));
    if (bases[row] + kRounding < least) continue;
    const float* of = logits + size_t(rows[row]) * stride;
    const float top = largest(of, size), shift = bases[row] - log_total(of, size, inverse, top);
    Best own(std::min(branch, count));
    const auto cut = [&] {
      const float logit = (std::max(least, own.floor()) - shift) * temperature;
      return logit - kRounding * (1 + std::fabs(logit));
    };
    for (int at = 0; (at = next_of(of, size, at, cut())) < size; at++)
      if (const float score = of[at] * inverse + shift; score > floor) own.take({score, int32_t(row), at});
    for (const Candidate& one : own.found) best.take(one);
  }
  std::sort(best.found.begin(), best.found.end(), std::greater<>());
  return best.found;
}

}  // namespace skit
