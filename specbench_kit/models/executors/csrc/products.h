// Which instructions take the products of numbers narrower than fp32, chosen when a matrix is packed.
#pragma once
#include "tiles.h"

namespace skit {

// kMultiplyAdd widens bf16 to fp32; kDot takes the products of pairs of bf16, and of groups of four bytes; kTiles are
// those of AMX. The first two give the same bits: the products of bf16 numbers are exact in fp32, a pair is summed in
// the order of the inputs, and subnormal numbers are zero in both. A tile sums inputs of even and odd number apart.
enum class Products { kMultiplyAdd, kDot, kTiles };

inline constexpr const char* kProductNames[] = {"fp32 multiply-add", "AVX512-BF16", "AMX"};

inline bool processor_has_dot() { return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"); }

inline Products fastest_products();  // in pairs.h

// The choice for matrices that are packed from now on.
inline Products& products() {
  static Products chosen = fastest_products();
  return chosen;
}

}  // namespace skit
