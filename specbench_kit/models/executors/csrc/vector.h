// One register of floats, as wide as the registers of the machine that the compiler builds for.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace skit {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * kLanes), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes), may_alias));

template <class V, class T>
inline V load(const T* from) {
  V value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline Floats loadf(const float* from) { return load<Floats>(from); }
inline void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }
// A register whose every lane is `value`.
inline Floats broadcast(float value) { return value - Floats{}; }
inline Floats max(Floats a, Floats b) { return a > b ? a : b; }

inline float sum(Floats v) {
  float total = 0;
  for (int lane = 0; lane < kLanes; lane++) total += v[lane];
  return total;
}

inline float largest(Floats v) {
  float top = v[0];
  for (int lane = 1; lane < kLanes; lane++) top = v[lane] > top ? v[lane] : top;
  return top;
}

// Reduces a comparison: true if it holds in at least one lane.
inline bool any(Ints truths) {
  uint64_t pairs[kLanes / 2], bits = 0;
  std::memcpy(pairs, &truths, sizeof truths);
  for (uint64_t pair : pairs) bits |= pair;
  return bits;
}

inline float largest(const float* values, int size) {
  Floats best = broadcast(-INFINITY);
  int at = 0;
  for (; at + kLanes <= size; at += kLanes) best = max(best, loadf(values + at));
  float top = largest(best);
  for (; at < size; at++) top = values[at] > top ? values[at] : top;
  return top;
}

// e^x to within 2 units in the last place, for x <= 88; below -87 it stays at e^-87.
inline Floats exponential(Floats x) {
  x = x < -87.0f ? broadcast(-87.0f) : x;
  x = x > 88.0f ? broadcast(88.0f) : x;
  const Floats magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const Floats whole = (x * 1.44269504f + magic) - magic;
  const Floats rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Floats series = broadcast(1.9875691500e-4f);
  for (float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    series = series * rest + factor;
  series = series * (rest * rest) + (rest + 1.0f);
  return (Floats)((Ints)series + (__builtin_convertvector(whole, Ints) << 23));
}

// The stored forms of weights: `widen` loads two registers of them as floats, `one` converts a single weight.
struct Float32 {
  using Stored = float;
  static void widen(const Stored* from, Floats& low, Floats& high) {
    low = loadf(from);
    high = loadf(from + kLanes);
  }
  static float one(Stored value) { return value; }
};

struct BFloat16 {
  using Stored = uint16_t;
  static void widen(const Stored* from, Floats& low, Floats& high) {
    const Words words = load<Words>(from);
    low = (Floats)(words << 16);
    high = (Floats)(words & 0xffff0000u);
  }
  static float one(Stored value) {
    const uint32_t word = uint32_t(value) << 16;
    float result;
    std::memcpy(&result, &word, sizeof result);
    return result;
  }
};

struct Float16 {
  using Stored = uint16_t;
  // The bits of exponent and fraction, moved into a float, give a number 2^112 times too small; multiplying is exact.
  // What is infinite or no number has the largest exponent here and there.
  static Floats wide(Words half) {
    const Words bits = half & 0x7fffu;
    const Floats size = (Floats)(bits << 13) * 0x1p112f;
    const Words special = (Words)(bits >= 0x7c00u) & 0x7f800000u;
    return (Floats)((Words)size | special | ((half & 0x8000u) << 16));
  }
  static void widen(const Stored* from, Floats& low, Floats& high) {
    const Words words = load<Words>(from);
    low = wide(words & 0xffffu);
    high = wide(words >> 16);
  }
  static float one(Stored value) { return wide(Words{} + uint32_t(value))[0]; }
  // The nearest number, the even one of two; one that is too large becomes infinite, and what is no number stays none.
  static Stored rounded(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return Stored(sign | 0x7e00u);
    if (size >= 0x47800000u) return Stored(sign | 0x7c00u);
    // Below the normal numbers the steps are 2^-24, as those of a float beside one half, which adding rounds to.
    if (size < 0x38800000u) {
      const float moved = std::fabs(value) + 0.5f;
      std::memcpy(&bits, &moved, sizeof bits);
      return Stored(sign | (bits - 0x3f000000u));
    }
    // Thirteen bits of the fraction go; what a full fraction carries over is the exponent's, up to infinity.
    return Stored(sign | ((size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13));
  }
};

}  // namespace skit
