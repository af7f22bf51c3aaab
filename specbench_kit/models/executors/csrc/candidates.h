// The best next tokens over many rows of logits at once: a draft tree asks for them at every level that it grows.
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

// Returns log(sum(e^(logit * inverse))); `top` is the largest logit.
inline float log_total(const float* logits, int size, float inverse, float top) {
  Floats total = {};
  int at = 0;
  for (; at + kLanes <= size; at += kLanes) total += exponential((loadf(logits + at) - top) * inverse);
  float tail = 0;
  for (; at < size; at++) tail += std::exp((logits[at] - top) * inverse);
  return top * inverse + std::log(sum(total) + tail);
}

// A heap of the best `capacity` candidates, at least one, with the worst of them in front.
class TopCandidates {
 public:
  explicit TopCandidates(int capacity) : capacity_(size_t(capacity)) { heap.reserve(capacity_); }
  // The score that a new candidate has to exceed.
  float floor() const { return heap.size() < capacity_ ? -INFINITY : heap.front().score; }
  void add(const Candidate& candidate) {
    if (heap.size() == capacity_) {
      if (!(candidate > heap.front())) return;
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      heap.pop_back();
    }
    heap.push_back(candidate);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }
  std::vector<Candidate> heap;

 private:
  size_t capacity_;
};

constexpr float kRounding = 1e-3f;  // relative and absolute; larger than the rounding error of any score

// Returns the index of the first value from `at` on that is `least` or more, or `size`. Nearly all values are far below
// `least`, so eight registers are compared before anybody looks at a single value.
inline int next_at_least(const float* values, int size, int at, float least) {
  constexpr int kStep = 8 * kLanes;
  const Floats bound = broadcast(least);
  for (; at + kStep <= size; at += kStep) {
    Ints reached = {};
    for (int i = 0; i < kStep; i += kLanes) reached |= loadf(values + at + i) >= bound;
    if (any(reached)) break;
  }
  while (at < size && !(values[at] >= least)) at++;
  return at;
}

// Returns the `count` candidates with the highest base + log-probability above `floor`, best first, chosen among the
// `branch` likeliest tokens of each of `rows`. There are none where `branch` or `count` is not positive.
inline std::vector<Candidate> candidates(const float* logits, int stride, int size, float temperature,
                                         const std::vector<int32_t>& rows, const std::vector<float>& bases, int branch,
                                         int count, double floor) {
  if (branch <= 0 || count <= 0) return {};
  const float inverse = 1.0f / temperature;
  TopCandidates best(count);
  for (size_t row = 0; row < rows.size(); row++) {
    const float least = std::max(best.floor(), float(floor));
    if (bases[row] + kRounding < least) continue;
    const float* row_logits = logits + size_t(rows[row]) * size_t(stride);
    const float top = largest(row_logits, size), shift = bases[row] - log_total(row_logits, size, inverse, top);
    TopCandidates row_best(std::min(branch, count));
    // The bound as a logit, lowered by the rounding error: the exact comparison is made on the score.
    const auto logit_bound = [&] {
      const float logit = (std::max(least, row_best.floor()) - shift) * temperature;
      return logit - kRounding * (1 + std::fabs(logit));
    };
    for (int at = 0; (at = next_at_least(row_logits, size, at, logit_bound())) < size; at++)
      if (const float score = row_logits[at] * inverse + shift; score > floor) row_best.add({score, int32_t(row), at});
    for (const Candidate& candidate : row_best.heap) best.add(candidate);
  }
  std::sort(best.heap.begin(), best.heap.end(), std::greater<>());
  return best.heap;
}

}  // namespace skit
