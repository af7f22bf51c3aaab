// Sums that come out as Python's do.
#pragma once
#include <patchlevel.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace skit {

// `BatchSums` in decoding/latency.py.
struct BatchSums {
  int64_t linear = 0, interactions = 0, pairs = 0, cached = 0, logit_rows = 0, requests = 0, longest = 0;

  void add(int64_t added, int64_t before) {
    linear += added;
    interactions += added * (before + added);
    pairs += added * before + added * (added - 1) / 2;
    cached += before;
    logit_rows += before ? added : 1;
    requests++;
    longest = std::max(longest, added);
  }
};

// The built-in function sum() over floats, which compensates rounding (Neumaier) from Python 3.12 on.
class PythonSum {
 public:
  void add(double value) {
    const double total = total_ + value;
#if PY_VERSION_HEX >= 0x030C0000
    lost_ += std::fabs(total_) >= std::fabs(value) ? (total_ - total) + value : (value - total) + total_;
#endif
    total_ = total;
  }
  double value() const { return lost_ != 0 && std::isfinite(lost_) ? total_ + lost_ : total_; }

 private:
  double total_ = 0, lost_ = 0;
};

}  // namespace skit
