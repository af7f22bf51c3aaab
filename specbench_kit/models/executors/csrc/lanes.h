// Whole numbers and floats of neighbouring outputs in one register, and codes of a few bits times bytes: what blocks.h
// computes with, for processors with VNNI, with AVX2, and for all others.
#pragma once
#include <cmath>
#include <cstdint>

#include "vector.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace skit {

constexpr int kRegisters = 8;  // of 64 bytes each, which hold the codes of a block

// The codes of a block: the lower four bits of registers j and j + 4 share a byte; a fifth bit of register j is bit j
// of a byte behind them; two further bits of registers 0 to 3 and of 4 to 7 share a byte each. Codes of 8 bits lie as
// they are. `at` is a byte of the register.
template <int kBits>
void pack_code(uint8_t* codes, int j, int at, int code) {
  if constexpr (kBits == 8) {
    codes[64 * j + at] = uint8_t(code);
    return;
  }
  codes[64 * (j % 4) + at] |= uint8_t((code & 15) << (j < 4 ? 0 : 4));
  if constexpr (kBits == 5) codes[256 + at] |= uint8_t(code >> 4 << j);
  if constexpr (kBits == 6) codes[256 + 64 * (j / 4) + at] |= uint8_t(code >> 4 << 2 * (j % 4));
}

template <int kBits>
uint8_t unpack_code(const uint8_t* codes, int j, int at) {
  if constexpr (kBits == 8) return codes[64 * j + at];
  const int low = codes[64 * (j % 4) + at] >> (j < 4 ? 0 : 4) & 15;
  if constexpr (kBits == 5) return uint8_t(low | (codes[256 + at] >> j & 1) << 4);
  if constexpr (kBits == 6) return uint8_t(low | (codes[256 + 64 * (j / 4) + at] >> 2 * (j % 4) & 3) << 4);
  return uint8_t(low);
}

// Rounds some numbers to bytes and returns their scale, which is NaN if one of them is none or infinite.
inline float round_to_bytes(const float* x, int count, int8_t* to) {
  Floats top = {}, finite = {};
  for (int i = 0; i < count; i += kLanes) {
    const Floats value = loadf(x + i);
    top = max(top, value < 0 ? -value : value);
    finite += value - value;
  }
  const float most = largest(top), inverse = most > 0 ? 127.0f / most : 0.0f;
  const Floats magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  for (int i = 0; i < count; i += kLanes) {
    const Ints whole = (Ints)(loadf(x + i) * inverse + magic) - 0x4b400000;
    typedef int8_t Small __attribute__((vector_size(kLanes)));
    const Small bytes = __builtin_convertvector(whole, Small);
    std::memcpy(to + i, &bytes, sizeof bytes);
  }
  return most / 127.0f + sum(finite);
}

inline int32_t sum_of_16(const int8_t* bytes) {
  int32_t total = 0;
  for (int i = 0; i < 16; i++) total += bytes[i];
  return total;
}

#if defined(__AVX512VNNI__)

// Whose sums fit into the registers beside the codes of a block, and of a block of a superblock.
constexpr int kTokens = 5, kSuperTokens = 5;

struct Lanes {
  using Numbers = __m512;
  using Wholes = __m512i;
  static constexpr int kCount = 16;

  static Numbers number(float value) { return _mm512_set1_ps(value); }
  static Wholes whole(int value) { return _mm512_set1_epi32(value); }
  static Numbers halves(const uint8_t* from) { return _mm512_cvtph_ps(load<__m256i>(from)); }
  template <bool kSigned>
  static Wholes bytes(const uint8_t* from) {
    return kSigned ? _mm512_cvtepi8_epi32(load<__m128i>(from)) : _mm512_cvtepu8_epi32(load<__m128i>(from));
  }
  static Numbers to_numbers(Wholes a) { return _mm512_cvtepi32_ps(a); }
  static Numbers multiply(Numbers a, Numbers b) { return _mm512_mul_ps(a, b); }
  static Numbers multiply_add(Numbers a, Numbers b, Numbers c) { return _mm512_fmadd_ps(a, b, c); }
  // a * b - c, rounded once: a compiler would choose which of two products it rounds, for each number of tokens anew.
  static Numbers multiply_subtract(Numbers a, Numbers b, Numbers c) { return _mm512_fmsub_ps(a, b, c); }
  static Wholes add(Wholes a, Wholes b) { return _mm512_add_epi32(a, b); }
  static Wholes multiply(Wholes a, Wholes b) { return _mm512_mullo_epi32(a, b); }
  // Two bytes of each lane, as a pair of 16 bits each.
  template <bool kSigned>
  static Wholes pairs(const uint8_t* left, const uint8_t* right) {
    return _mm512_or_si512(_mm512_and_si512(bytes<kSigned>(left), whole(0xffff)),
                           _mm512_slli_epi32(bytes<kSigned>(right), 16));
  }
  // sum + a[0] * b[0] + a[1] * b[1], with the same two numbers for all lanes.
  static Wholes add_pairs(Wholes sum, Wholes a, const int16_t* b) {
    return _mm512_dpwssd_epi32(sum, a, whole(load<int32_t>(b)));
  }

  template <bool kAdd>
  static void write(float* to, Numbers value, int width) {
    const __mmask16 mask = __mmask16((1u << width) - 1);
    _mm512_mask_storeu_ps(to, mask, kAdd ? _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), value) : value);
  }
};

// The codes of a block for the lanes from `lane` on, each in a byte of its own.
template <int kBits>
struct Codes {
  __m512i registers[kRegisters];

  Codes(const uint8_t* from, int) {
    if constexpr (kBits == 8) {
      for (int j = 0; j < kRegisters; j++) registers[j] = load<__m512i>(from + 64 * j);
      return;
    }
    const __m512i low = _mm512_set1_epi8(15);
    for (int j = 0; j < 4; j++) {
      const __m512i both = load<__m512i>(from + 64 * j);
      registers[j] = _mm512_and_si512(both, low);
      registers[j + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
    if constexpr (kBits == 5) {
      const __m512i high = load<__m512i>(from + 256);
      for (int j = 0; j < kRegisters; j++)
        set_bits<0x10>(j, j < 4 ? _mm512_slli_epi16(high, 4 - j) : _mm512_srli_epi16(high, j - 4));
    }
    if constexpr (kBits == 6)
      for (int j = 0; j < kRegisters; j++) {
        const __m512i high = load<__m512i>(from + 256 + 64 * (j / 4));
        const int at = 2 * (j % 4);
        set_bits<0x30>(j, at < 4 ? _mm512_slli_epi16(high, 4 - at) : _mm512_srli_epi16(high, at - 4));
      }
  }

  __m512i dot(const int8_t* x, int start) const { return sum<0, kRegisters>(x, start); }
  // total + scale * dot, and with a scale for each half.
  __m512i add(__m512i total, const int8_t* x, __m512i scale) const {
    return _mm512_add_epi32(total, _mm512_mullo_epi32(dot(x, 0), scale));
  }
  __m512i add(__m512i total, const int8_t* x, __m512i left, __m512i right) const {
    const __m512i lower = sum<0, kRegisters / 2>(x, 0), upper = sum<kRegisters / 2, kRegisters>(x, 0);
    total = _mm512_add_epi32(total, _mm512_mullo_epi32(lower, left));
    return _mm512_add_epi32(total, _mm512_mullo_epi32(upper, right));
  }

 private:
  template <int kMask>
  void set_bits(int j, __m512i from) {
    registers[j] = _mm512_ternarylogic_epi32(from, _mm512_set1_epi8(kMask), registers[j], 0xea);  // (a & b) | c
  }

  template <int kFirst, int kEnd>
  __m512i sum(const int8_t* x, int start) const {
    __m512i total = _mm512_set1_epi32(start);
    for (int j = kFirst; j < kEnd; j++)
      total = _mm512_dpbusd_epi32(total, registers[j], _mm512_set1_epi32(load<int32_t>(x + 4 * j)));
    return total;
  }
};

#elif defined(__AVX2__)

// The codes of a block take half of the registers. Totals of superblocks are read and written once for a block, so that
// they may lie in memory, and unpacking a block serves more tokens.
constexpr int kTokens = 3, kSuperTokens = 6;

struct Lanes {
  using Numbers = __m256;
  using Wholes = __m256i;
  static constexpr int kCount = 8;

  static Numbers number(float value) { return _mm256_set1_ps(value); }
  static Wholes whole(int value) { return _mm256_set1_epi32(value); }
  static Numbers halves(const uint8_t* from) { return _mm256_cvtph_ps(load<__m128i>(from)); }
  template <bool kSigned>
  static Wholes bytes(const uint8_t* from) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return kSigned ? _mm256_cvtepi8_epi32(eight) : _mm256_cvtepu8_epi32(eight);
  }
  static Numbers to_numbers(Wholes a) { return _mm256_cvtepi32_ps(a); }
  static Numbers multiply(Numbers a, Numbers b) { return _mm256_mul_ps(a, b); }
  static Numbers multiply_add(Numbers a, Numbers b, Numbers c) { return _mm256_fmadd_ps(a, b, c); }
  static Numbers multiply_subtract(Numbers a, Numbers b, Numbers c) { return _mm256_fmsub_ps(a, b, c); }
  static Wholes add(Wholes a, Wholes b) { return _mm256_add_epi32(a, b); }
  static Wholes multiply(Wholes a, Wholes b) { return _mm256_mullo_epi32(a, b); }
  template <bool kSigned>
  static Wholes pairs(const uint8_t* left, const uint8_t* right) {
    return _mm256_blend_epi16(bytes<kSigned>(left), _mm256_slli_epi32(bytes<kSigned>(right), 16), 0xaa);
  }
  static Wholes add_pairs(Wholes sum, Wholes a, const int16_t* b) {
    return add(sum, _mm256_madd_epi16(a, whole(load<int32_t>(b))));
  }

  template <bool kAdd>
  static void write(float* to, Numbers value, int width) {
    alignas(32) float values[kCount];
    _mm256_store_ps(values, value);
    for (int i = 0; i < width; i++) to[i] = kAdd ? to[i] + values[i] : values[i];
  }
};

// The codes of a block for the lanes from `lane` on, each in a byte of its own.
template <int kBits>
struct Codes {
  __m256i registers[kRegisters];

  Codes(const uint8_t* from, int lane) {
    from += 4 * lane;
    if constexpr (kBits == 8) {
      for (int j = 0; j < kRegisters; j++) registers[j] = load<__m256i>(from + 64 * j);
      return;
    }
    const __m256i low = _mm256_set1_epi8(15);
    for (int j = 0; j < 4; j++) {
      const __m256i both = load<__m256i>(from + 64 * j);
      registers[j] = _mm256_and_si256(both, low);
      registers[j + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
    }
    if constexpr (kBits == 5) {
      const __m256i high = load<__m256i>(from + 256);
      for (int j = 0; j < kRegisters; j++)
        set_bits<0x10>(j, j < 4 ? _mm256_slli_epi16(high, 4 - j) : _mm256_srli_epi16(high, j - 4));
    }
    if constexpr (kBits == 6)
      for (int j = 0; j < kRegisters; j++) {
        const __m256i high = load<__m256i>(from + 256 + 64 * (j / 4));
        const int at = 2 * (j % 4);
        set_bits<0x30>(j, at < 4 ? _mm256_slli_epi16(high, 4 - at) : _mm256_srli_epi16(high, at - 4));
      }
  }

  __m256i dot(const int8_t* x, int start) const { return sum<0, kRegisters>(x, start); }
  // The sums of 16 bits are multiplied by the scale where they are widened.
  __m256i add(__m256i total, const int8_t* x, __m256i scale) const {
    return add_narrow<0, kRegisters>(total, x, twice(scale));
  }
  __m256i add(__m256i total, const int8_t* x, __m256i left, __m256i right) const {
    total = add_narrow<0, kRegisters / 2>(total, x, twice(left));
    return add_narrow<kRegisters / 2, kRegisters>(total, x, twice(right));
  }

 private:
  // Products that are added in 16 bits before they are widened: 2 * 127 * (2^bits - 1) each, at most 32767 in all.
  static constexpr int kNarrow = kBits == 5 ? 4 : kBits == 6 ? 2 : 8;

  template <int kMask>
  void set_bits(int j, __m256i from) {
    registers[j] = _mm256_or_si256(registers[j], _mm256_and_si256(from, _mm256_set1_epi8(kMask)));
  }

  template <int kFirst, int kEnd>
  __m256i sum(const int8_t* x, int start) const {
    __m256i total = _mm256_set1_epi32(start);
    if constexpr (kBits == 8) {  // two products of such codes exceed 16 bits: their halves are taken apart
      const __m256i low = _mm256_set1_epi8(15);
      __m256i lower = _mm256_setzero_si256(), upper = _mm256_setzero_si256();
      for (int j = kFirst; j < kEnd; j++) {
        const __m256i four = _mm256_set1_epi32(load<int32_t>(x + 4 * j));
        lower = _mm256_add_epi16(lower, _mm256_maddubs_epi16(_mm256_and_si256(registers[j], low), four));
        const __m256i shifted = _mm256_and_si256(_mm256_srli_epi16(registers[j], 4), low);
        upper = _mm256_add_epi16(upper, _mm256_maddubs_epi16(shifted, four));
      }
      return _mm256_add_epi32(total, _mm256_add_epi32(widen(lower), _mm256_slli_epi32(widen(upper), 4)));
    }
    return add_narrow<kFirst, kEnd>(total, x, _mm256_set1_epi16(1));
  }

  template <int kFirst, int kEnd>
  __m256i add_narrow(__m256i total, const int8_t* x, __m256i factors) const {
    for (int j = kFirst; j < kEnd; j += kNarrow) {
      __m256i narrow = product(j, x);
      for (int i = j + 1; i < j + kNarrow && i < kEnd; i++) {
        narrow = _mm256_add_epi16(narrow, product(i, x));
        // One sum after the other: a compiler would add them in a tree, for which codes leave their registers.
        __asm__("" : "+x"(narrow));
      }
      total = _mm256_add_epi32(total, _mm256_madd_epi16(narrow, factors));
    }
    return total;
  }

  __m256i product(int j, const int8_t* x) const {
    return _mm256_maddubs_epi16(registers[j], _mm256_set1_epi32(load<int32_t>(x + 4 * j)));
  }

  // A number of each lane, twice in 16 bits.
  static __m256i twice(__m256i a) { return _mm256_blend_epi16(a, _mm256_slli_epi32(a, 16), 0xaa); }
  static __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
};

#else

constexpr int kTokens = 2, kSuperTokens = 2;

struct Lanes {
  typedef float Numbers __attribute__((vector_size(64)));
  typedef int32_t Wholes __attribute__((vector_size(64)));
  static constexpr int kCount = 16;

  static Numbers number(float value) { return value - Numbers{}; }
  static Wholes whole(int value) { return value - Wholes{}; }
  static Numbers halves(const uint8_t* from) {
    Numbers result;
    for (int i = 0; i < kCount; i++) result[i] = Float16::one(load<uint16_t>(from + 2 * i));
    return result;
  }
  template <bool kSigned>
  static Wholes bytes(const uint8_t* from) {
    Wholes result;
    for (int i = 0; i < kCount; i++) result[i] = kSigned ? int8_t(from[i]) : from[i];
    return result;
  }
  static Numbers to_numbers(Wholes a) { return __builtin_convertvector(a, Numbers); }
  static Numbers multiply(Numbers a, Numbers b) { return a * b; }
  static Numbers multiply_add(Numbers a, Numbers b, Numbers c) { return a * b + c; }
  static Numbers multiply_subtract(Numbers a, Numbers b, Numbers c) { return a * b - c; }
  static Wholes add(Wholes a, Wholes b) { return a + b; }
  static Wholes multiply(Wholes a, Wholes b) { return a * b; }
  template <bool kSigned>
  static Wholes pairs(const uint8_t* left, const uint8_t* right) {
    return (bytes<kSigned>(left) & 0xffff) | bytes<kSigned>(right) << 16;
  }
  static Wholes add_pairs(Wholes sum, Wholes a, const int16_t* b) {
    return sum + (a << 16 >> 16) * b[0] + (a >> 16) * b[1];
  }

  template <bool kAdd>
  static void write(float* to, Numbers value, int width) {
    for (int i = 0; i < width; i++) to[i] = kAdd ? to[i] + value[i] : value[i];
  }
};

// The codes of a block, each in a byte of its own.
template <int kBits>
struct Codes {
  uint8_t registers[kRegisters][64];

  Codes(const uint8_t* from, int) {
    for (int j = 0; j < kRegisters; j++)
      for (int at = 0; at < 64; at++) registers[j][at] = unpack_code<kBits>(from, j, at);
  }

  Lanes::Wholes dot(const int8_t* x, int start) const { return sum(0, kRegisters, x, start); }
  Lanes::Wholes add(Lanes::Wholes total, const int8_t* x, Lanes::Wholes scale) const {
    return total + scale * sum(0, kRegisters, x, 0);
  }
  Lanes::Wholes add(Lanes::Wholes total, const int8_t* x, Lanes::Wholes left, Lanes::Wholes right) const {
    return total + left * sum(0, kRegisters / 2, x, 0) + right * sum(kRegisters / 2, kRegisters, x, 0);
  }

 private:
  Lanes::Wholes sum(int first, int end, const int8_t* x, int start) const {
    Lanes::Wholes total = Lanes::whole(start);
    for (int j = first; j < end; j++)
      for (int lane = 0; lane < Lanes::kCount; lane++)
        for (int i = 0; i < 4; i++) total[lane] += registers[j][4 * lane + i] * x[4 * j + i];
    return total;
  }
};

#endif

}  // namespace skit
