// The types of blocks of a GGUF file, and a block of each.
//
// A block is 32 inputs of one output. Sixteen outputs, a group, lie side by side: register j of a block holds inputs
// 4 j to 4 j + 3 of each of them, so that a lane is an output and a block's scale is one multiplication for all.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "vector.h"

namespace skit {

constexpr int kGroup = 16;        // outputs side by side
constexpr int kBlockInputs = 32;  // inputs of a block
constexpr int kSuper = 256;       // inputs of a superblock, which share one more scale

// A type of blocks. A weight is scale * (code - zero) - minimum; the scales of a superblock are whole numbers times a
// common one.
struct BlockType {
  int number;      // in the file
  int bits;        // of a code
  int zero;        // the code that stands for zero
  bool minimum;    // whether a block has a minimum
  bool super;      // whether blocks form superblocks
  int file_bytes;  // of a block or superblock in the file

  constexpr int scaled() const { return super ? kSuper : kBlockInputs; }
  // Whether each half of a block has a scale of its own.
  constexpr bool halves() const { return bits == 6; }
  // Bytes of a group: of a block's codes, of its scales and minima, and of what a superblock has besides.
  constexpr int code_bytes() const { return bits * 2 * kBlockInputs; }
  constexpr int scale_bytes() const { return super || !minimum ? 32 : 64; }
  constexpr int super_bytes() const { return super ? 64 : 0; }
};

constexpr BlockType kQ4_0{2, 4, 8, false, false, 18}, kQ4_1{3, 4, 0, true, false, 20},
    kQ5_0{6, 5, 16, false, false, 22}, kQ5_1{7, 5, 0, true, false, 24}, kQ8_0{8, 8, 128, false, false, 34},
    kQ4_K{12, 4, 0, true, true, 144}, kQ5_K{13, 5, 0, true, true, 176}, kQ6_K{14, 6, 32, false, true, 210};

// Calls `visit<type>()` for the type of this number; false if it is unknown.
template <class Visit>
bool with_type(int number, Visit&& visit) {
  const auto is = [&]<BlockType kType>() {
    return number == kType.number && (visit.template operator()<kType>(), true);
  };
  return is.template operator()<kQ4_0>() || is.template operator()<kQ4_1>() || is.template operator()<kQ5_0>() ||
         is.template operator()<kQ5_1>() || is.template operator()<kQ8_0>() || is.template operator()<kQ4_K>() ||
         is.template operator()<kQ5_K>() || is.template operator()<kQ6_K>();
}

// One block of one output, read from a file. Scales and minima of superblocks are whole numbers.
struct Block {
  uint8_t codes[kBlockInputs];
  int scales[2], minimum;  // of each half; the second is the first where the type has one
  uint16_t scale, floor;   // fp16: of the block or superblock; what a minimum is multiplied by, or the minimum itself
};

// Reads block number `block` of a row.
template <BlockType kType>
Block read_block(const uint8_t* row, int block) {
  Block out = {};
  constexpr int kBlocks = kType.scaled() / kBlockInputs;
  const uint8_t* from = row + size_t(block / kBlocks) * kType.file_bytes;
  const int b = block % kBlocks;
  const auto half = [&](int at) { return load<uint16_t>(from + at); };
  if constexpr (kType.bits == 6) {
    const uint8_t *low = from + b / 4 * 64 + b % 2 * 32, *high = from + 128 + b / 4 * 32;
    for (int i = 0; i < kBlockInputs; i++)
      out.codes[i] = uint8_t((b % 4 < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> b % 4 * 2 & 3) << 4);
    for (int i = 0; i < 2; i++) out.scales[i] = int8_t(from[192 + 2 * b + i]);
    out.scale = half(208);
  } else if constexpr (kType.super) {
    const uint8_t *packed = from + 4, *low = from + (kType.bits == 5 ? 48 : 16) + b / 2 * 32, *high = from + 16;
    out.scale = half(0), out.floor = half(2);
    out.scales[0] = b < 4 ? packed[b] & 63 : (packed[b + 4] & 15) | packed[b - 4] >> 6 << 4;
    out.minimum = b < 4 ? packed[b + 4] & 63 : packed[b + 4] >> 4 | packed[b] >> 6 << 4;
    for (int i = 0; i < kBlockInputs; i++) {
      out.codes[i] = b % 2 ? low[i] >> 4 : low[i] & 15;
      if constexpr (kType.bits == 5) out.codes[i] |= uint8_t((high[i] >> b & 1) << 4);
    }
  } else {
    out.scale = half(0), out.floor = kType.minimum ? half(2) : 0;
    const uint8_t* codes = from + (kType.minimum ? 4 : 2);
    const uint32_t high = kType.bits == 5 ? load<uint32_t>(codes) : 0;
    if constexpr (kType.bits == 5) codes += 4;
    for (int i = 0; i < kBlockInputs; i++) {
      if constexpr (kType.bits == 8) out.codes[i] = codes[i] ^ 0x80;
      else out.codes[i] = uint8_t((i < 16 ? codes[i] & 15 : codes[i - 16] >> 4) | (high >> i & 1) << 4);
    }
  }
  if constexpr (!kType.halves()) out.scales[1] = out.scales[0];
  return out;
}

// Returns a weight of a block, as llama.cpp has it.
template <BlockType kType>
float weight_of(const Block& block, int input) {
  const float scale = Float16::one(block.scale), floor = Float16::one(block.floor);
  const float code = float(int(block.codes[input]) - kType.zero);
  if constexpr (kType.halves()) return scale * float(block.scales[input / 16]) * code;
  else if constexpr (kType.super) return scale * float(block.scales[0]) * code - floor * float(block.minimum);
  else return kType.minimum ? scale * code + floor : scale * code;
}

// Returns the block of 4-bit codes that is nearest to some weights: codes between the least and the largest weight,
// then the scale and minimum with the least squared error for these codes, and the codes again for those.
inline Block round_to_4_bits(const float* weights) {
  Block out = {};
  float least = weights[0], most = weights[0], finite = 0;
  for (int i = 0; i < kBlockInputs; i++) {
    least = std::min(least, weights[i]), most = std::max(most, weights[i]);
    finite += weights[i] - weights[i];
  }
  float scale = (most - least) / 15 + finite, floor = least;
  for (int pass = 0; pass < 3; pass++) {
    out.scale = Float16::rounded(scale), out.floor = Float16::rounded(floor);
    const float step = Float16::one(out.scale), start = Float16::one(out.floor);
    float codes = 0, squares = 0, sum = 0, products = 0;
    for (int i = 0; i < kBlockInputs; i++) {
      const float code = step > 0 ? std::clamp(std::nearbyint((weights[i] - start) / step), 0.0f, 15.0f) : 0.0f;
      out.codes[i] = uint8_t(code);
      codes += code, squares += code * code, sum += weights[i], products += code * weights[i];
    }
    const float spread = kBlockInputs * squares - codes * codes;
    if (!(spread > 0)) break;
    scale = (kBlockInputs * products - codes * sum) / spread;
    floor = (sum - scale * codes) / kBlockInputs;
  }
  return out;
}

}  // namespace skit
