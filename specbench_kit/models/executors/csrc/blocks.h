// Products of the blocks of a GGUF file, as the file has them, with activations that are rounded to 8 bits.
//
// A block is 32 inputs of one output. Sixteen outputs, a group, lie side by side: register j of a block holds inputs
// 4 j to 4 j + 3 of each of them, so that a lane is an output and a block's scale is one multiplication for all. The
// sum of a block is exact in integers, and what belongs to different scales is added in fp32 in the order of the
// inputs: an output does not depend on what is computed beside it, nor on which instructions take the sums.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "invalid.h"
#include "lanes.h"
#include "matrix.h"

namespace skit {

// Some rows of a file, all of one type, at `data`. `heads` is not 0 where the two numbers that RoPE rotates together
// are neighbours in the file: they are put a half of the head apart. Codes of more than `most_bits` are rounded to
// four, with a scale and a minimum for every block. A list of rows ends with one that has none.
struct FileRows {
  const uint8_t* data;
  int32_t type, rows, heads, most_bits;
};

struct FileBlocks {
  using Stored = FileRows;
};

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

// Activations in 8 bits, with one scale for 32 inputs and, if the inputs are whole superblocks, for 256 as well.
template <>
class Inputs<FileBlocks> {
 public:
  // The activations of all rows with one kind of scale, from some row on.
  struct Scaled {
    const int8_t* bytes;    // [rows][inputs]
    const float* scales;    // [rows][inputs / scaled]
    const int16_t* sums;    // [rows][inputs / 32]: sums of the bytes of a block
    const int16_t* halves;  // [rows][inputs / 16]: sums of the bytes of half a block
  };
  struct Rows {
    Scaled blocks, supers;
    int inputs;
  };
  static constexpr bool kCopied = true;

  void reserve(int rows, int inputs) {
    blocks_.reserve(size_t(rows), size_t(inputs), kBlockInputs);
    supers_.reserve(size_t(rows), size_t(inputs), kSuper);
  }

  template <class Matrix>
  void copy(int row, const float* x, const Matrix& matrix) {
    if (matrix.reads_blocks()) blocks_.round(size_t(row), x, size_t(matrix.inputs()), kBlockInputs);
    if (matrix.reads_supers()) supers_.round(size_t(row), x, size_t(matrix.inputs()), kSuper);
  }

  Rows rows(const float*, int, int inputs) const { return {blocks_.all(), supers_.all(), inputs}; }

 private:
  struct Rounded {
    std::vector<int8_t> bytes;
    std::vector<float> scales;
    std::vector<int16_t> sums;
    std::vector<int16_t> halves;

    void reserve(size_t rows, size_t inputs, size_t scaled) {
      const size_t size = rows * ((inputs + kSuper - 1) / kSuper * kSuper);
      if (bytes.size() >= size) return;
      bytes.resize(size), scales.resize(size / scaled), sums.resize(size / kBlockInputs + 1);
      halves.resize(size / 16);
    }

    Scaled all() const { return {bytes.data(), scales.data(), sums.data(), halves.data()}; }

    void round(size_t row, const float* x, size_t inputs, size_t scaled) {
      int8_t* to = &bytes[row * inputs];
      for (size_t part = 0; part < inputs / scaled; part++)
        scales[row * (inputs / scaled) + part] = round_to_bytes(x + part * scaled, int(scaled), to + part * scaled);
      for (size_t block = 0; block < inputs / kBlockInputs; block++) {
        int16_t* pair = &halves[row * (inputs / 16) + 2 * block];
        for (int h = 0; h < 2; h++) pair[h] = int16_t(sum_of_16(to + block * kBlockInputs + 16 * size_t(h)));
        sums[row * (inputs / kBlockInputs) + block] = int16_t(pair[0] + pair[1]);
      }
    }
  };

  Rounded blocks_, supers_;
};

template <>
class Matrix<FileBlocks> {
 public:
  using Stored = FileRows;
  using Rows = Inputs<FileBlocks>::Rows;
  using Scaled = Inputs<FileBlocks>::Scaled;
  static constexpr bool kExact = true;

  void pack(const FileRows* parts, int outputs, int inputs) {
    outputs_ = outputs, inputs_ = inputs;
    int first = 0;
    for (; parts->rows; parts++) {
      const bool known = with_type(parts->type, [&]<BlockType kType>() {
        if (inputs % kType.scaled()) throw InvalidArgument{"rows that are no whole blocks"};
        if (parts->most_bits && parts->most_bits < kType.bits) pack_part<kType, kQ4_1>(*parts, first);
        else pack_part<kType, kType>(*parts, first);
      });
      if (!known) throw InvalidArgument{"blocks of a type that is unknown"};
      first += parts->rows;
      if (first % kGroup && parts[1].rows) throw InvalidArgument{"parts of a matrix that are no whole groups"};
    }
    if (first != outputs) throw InvalidArgument{"a matrix of another size"};
  }

  int blocks() const { return padded(outputs_) / kBlock; }
  int inputs() const { return inputs_; }
  bool reads_blocks() const { return blocks_; }
  bool reads_supers() const { return supers_; }

  void row(int out, float* to) const {
    const Part& part = part_of(out / kGroup);
    with_type(part.type, [&]<BlockType kType>() {
      for (int b = 0; b < int(count()); b++) {
        const Block block = unpack<kType>(part, out - part.first * kGroup, b);
        for (int i = 0; i < kBlockInputs; i++) to[b * kBlockInputs + i] = weight_of<kType>(block, i);
      }
    });
  }

  template <bool kAdd>
  void multiply(Rows in, int rows, float* y, int stride_y, int first, int end) const {
    const int groups = (outputs_ + kGroup - 1) / kGroup;
    // A group belongs to who has its first output.
    const auto group_at = [&](int block) { return std::min(groups, (block * kBlock + kGroup - 1) / kGroup); };
    const int from = group_at(first), to = group_at(end);
    for (const Part& part : parts_)
      with_type(part.type, [&]<BlockType kType>() {
        const int last = std::min(to, part.first + part.groups);
        for (int group = std::max(from, part.first); group < last; group++)
          multiply_group<kType, kAdd>(part, group, in, rows, y, stride_y);
      });
  }

 private:
  // Neighbouring groups of one type: [groups][stride], a group being the codes of all blocks, then their scales and
  // minima, then what the superblocks have.
  struct Part {
    int type, first, groups;
    size_t stride;
    Memory<uint8_t> data;
  };

  // Bytes that are fetched before they are read: as many as keep the memory busy while several tokens are multiplied.
  static constexpr size_t kAhead = 16384;

  const Part& part_of(int group) const {
    size_t index = 0;
    while (index + 1 < parts_.size() && group >= parts_[index + 1].first) index++;
    return parts_[index];
  }

  size_t count() const { return size_t(inputs_) / kBlockInputs; }
  template <BlockType kType>
  size_t scales_at() const {
    return count() * kType.code_bytes();
  }
  template <BlockType kType>
  size_t supers_at() const {
    return scales_at<kType>() + count() * kType.scale_bytes();
  }
  template <BlockType kType>
  size_t group_bytes() const {
    return (supers_at<kType>() + size_t(inputs_) / kSuper * kType.super_bytes() + 63) / 64 * 64;
  }

  template <BlockType kFrom, BlockType kTo>
  void pack_part(const FileRows& from, int first) {
    Part part = {kTo.number, first / kGroup, (from.rows + kGroup - 1) / kGroup, group_bytes<kTo>(), {}};
    part.data = Memory<uint8_t>(size_t(part.groups) * part.stride + kAhead);
    const int height = from.heads ? from.rows / from.heads : 1;
    for (int row = 0; row < from.rows; row++) {
      const int within = row % height, half = height / 2;
      const int own = from.heads ? row - within + within % half * 2 + within / half : row;
      const uint8_t* source = from.data + size_t(own) * (size_t(inputs_) / kFrom.scaled()) * kFrom.file_bytes;
      for (int b = 0; b < int(count()); b++) {
        const Block block = read_block<kFrom>(source, b);
        if constexpr (kFrom.number == kTo.number) pack_block<kTo>(part, row, b, block);
        else {
          float weights[kBlockInputs];
          for (int i = 0; i < kBlockInputs; i++) weights[i] = weight_of<kFrom>(block, i);
          pack_block<kTo>(part, row, b, round_to_4_bits(weights));
        }
      }
    }
    parts_.push_back(std::move(part));
    (kTo.super ? supers_ : blocks_) = true;
  }

  template <BlockType kType>
  void pack_block(Part& part, int row, int b, const Block& block) {
    uint8_t* group = &part.data[size_t(row / kGroup) * part.stride];
    const int lane = row % kGroup;
    uint8_t* codes = group + size_t(b) * kType.code_bytes();
    uint8_t* scales = group + scales_at<kType>() + size_t(b) * kType.scale_bytes();
    for (int i = 0; i < kBlockInputs; i++) pack_code<kType.bits>(codes, i / 4, lane * 4 + i % 4, block.codes[i]);
    if constexpr (kType.super) {
      scales[lane] = uint8_t(block.scales[0]);
      scales[kGroup + lane] = uint8_t(kType.halves() ? block.scales[1] : block.minimum);
      uint8_t* super = group + supers_at<kType>() + size_t(b) * kBlockInputs / kSuper * kType.super_bytes();
      std::memcpy(super + 2 * lane, &block.scale, 2);
      std::memcpy(super + 2 * (kGroup + lane), &block.floor, 2);
    } else {
      std::memcpy(scales + 2 * lane, &block.scale, 2);
      if constexpr (kType.minimum) std::memcpy(scales + 2 * (kGroup + lane), &block.floor, 2);
    }
  }

  template <BlockType kType>
  Block unpack(const Part& part, int row, int b) const {
    const uint8_t* group = &part.data[size_t(row / kGroup) * part.stride];
    const int lane = row % kGroup;
    const uint8_t* codes = group + size_t(b) * kType.code_bytes();
    const uint8_t* scales = group + scales_at<kType>() + size_t(b) * kType.scale_bytes();
    Block block = {};
    for (int i = 0; i < kBlockInputs; i++) block.codes[i] = unpack_code<kType.bits>(codes, i / 4, lane * 4 + i % 4);
    if constexpr (kType.super) {
      const uint8_t* super = group + supers_at<kType>() + size_t(b) * kBlockInputs / kSuper * kType.super_bytes();
      block.scale = load<uint16_t>(super + 2 * lane), block.floor = load<uint16_t>(super + 2 * (kGroup + lane));
      block.scales[0] = kType.halves() ? int8_t(scales[lane]) : scales[lane];
      block.scales[1] = kType.halves() ? int8_t(scales[kGroup + lane]) : scales[lane];
      block.minimum = scales[kGroup + lane];
    } else {
      block.scale = load<uint16_t>(scales + 2 * lane);
      if constexpr (kType.minimum) block.floor = load<uint16_t>(scales + 2 * (kGroup + lane));
    }
    return block;
  }

  template <BlockType kType, bool kAdd>
  void multiply_group(const Part& part, int group, const Rows& in, int rows, float* y, int stride_y) const {
    const uint8_t* data = &part.data[size_t(group - part.first) * part.stride];
    const Scaled& all = kType.super ? in.supers : in.blocks;
    const int width = std::min(kGroup, stride_y - group * kGroup);
    constexpr int kMost = kType.super ? kSuperTokens : kTokens;
    for (int row = 0; row < rows;) {
      const int some = std::min(kMost, rows - row);
      const size_t at = size_t(row) * size_t(inputs_);
      const Scaled from = {all.bytes + at, all.scales + at / kType.scaled(), all.sums + at / kBlockInputs,
                           all.halves + at / 16};
      for (int lane = 0; lane < kGroup; lane += Lanes::kCount)
        call_tokens<kType, kMost, kAdd>(some, data, lane, from,
                                        y + size_t(row) * size_t(stride_y) + group * kGroup + lane, stride_y,
                                        std::min(Lanes::kCount, width - lane));
      row += some;
    }
  }

  template <BlockType kType, int kRows, bool kAdd>
  void call_tokens(int rows, const uint8_t* data, int lane, const Scaled& in, float* y, int stride_y, int width) const {
    if (width <= 0) return;
    if (rows == kRows) dot<kType, kRows, kAdd>(data, lane, in, y, stride_y, width);
    else if constexpr (kRows > 1) call_tokens<kType, kRows - 1, kAdd>(rows, data, lane, in, y, stride_y, width);
  }

  template <BlockType kType, int kRows, bool kAdd>
  void dot(const uint8_t* data, int lane, const Scaled& in, float* y, int stride_y, int width) const {
    typename Lanes::Numbers sums[kRows];
    for (auto& sum : sums) sum = Lanes::number(0);
    if constexpr (kType.super) add_supers<kType, kRows>(data, lane, in, sums);
    else add_blocks<kType, kRows>(data, lane, in, sums);
    for (int r = 0; r < kRows; r++) Lanes::write<kAdd>(y + size_t(r) * size_t(stride_y), sums[r], width);
  }

  template <BlockType kType, int kRows>
  void add_blocks(const uint8_t* data, int lane, const Scaled& in, typename Lanes::Numbers* sums) const {
    const uint8_t* scales = data + scales_at<kType>() + 2 * lane;
    for (size_t b = 0; b < count(); b++, data += kType.code_bytes(), scales += kType.scale_bytes()) {
      for (int line = 0; line < kType.code_bytes() && !lane; line += 64)
        __builtin_prefetch(data + kAhead + line - 2048);
      const Codes<kType.bits> codes(data, lane);
      const auto scale = Lanes::halves(scales);
      for (int r = 0; r < kRows; r++) {
        const size_t at = size_t(r) * count() + b;
        const auto total = codes.dot(in.bytes + at * kBlockInputs, -kType.zero * in.sums[at]);
        const auto factor = Lanes::number(in.scales[at]);
        sums[r] = Lanes::multiply_add(Lanes::to_numbers(total), Lanes::multiply(scale, factor), sums[r]);
        if constexpr (kType.minimum)
          sums[r] = Lanes::multiply_add(Lanes::halves(scales + 2 * kGroup),
                                        Lanes::number(in.scales[at] * float(in.sums[at])), sums[r]);
      }
    }
  }

  template <BlockType kType, int kRows>
  void add_supers(const uint8_t* data, int lane, const Scaled& in, typename Lanes::Numbers* sums) const {
    constexpr int kBlocks = kSuper / kBlockInputs;
    const uint8_t *scales = data + scales_at<kType>() + lane, *supers = data + supers_at<kType>() + 2 * lane;
    for (size_t s = 0; s < count() / kBlocks; s++, supers += kType.super_bytes()) {
      typename Lanes::Wholes totals[kRows], shifts[kRows];
      for (int r = 0; r < kRows; r++) totals[r] = shifts[r] = Lanes::whole(0);
      for (size_t b = s * kBlocks; b < (s + 1) * kBlocks;
           b++, data += kType.code_bytes(), scales += kType.scale_bytes()) {
        for (int line = 0; line < kType.code_bytes() && !lane; line += 64)
          __builtin_prefetch(data + kAhead + line - 2048);
        const Codes<kType.bits> codes(data, lane);
        if constexpr (kType.halves()) {
          const auto left = Lanes::bytes<true>(scales), right = Lanes::bytes<true>(scales + kGroup);
          const auto both = Lanes::pairs<true>(scales, scales + kGroup);
          for (int r = 0; r < kRows; r++) {
            const size_t at = size_t(r) * count() + b;
            totals[r] = codes.add(totals[r], in.bytes + at * kBlockInputs, left, right);
            shifts[r] = Lanes::add_pairs(shifts[r], both, in.halves + 2 * at);
          }
        } else {
          const auto factor = Lanes::bytes<false>(scales);
          for (int r = 0; r < kRows; r++)
            totals[r] = codes.add(totals[r], in.bytes + (size_t(r) * count() + b) * kBlockInputs, factor);
          if (b % 2) continue;  // the minima of two blocks are multiplied together
          const auto both = Lanes::pairs<false>(scales + kGroup, scales + kGroup + kType.scale_bytes());
          for (int r = 0; r < kRows; r++)
            shifts[r] = Lanes::add_pairs(shifts[r], both, in.sums + size_t(r) * count() + b);
        }
      }
      const auto scale = Lanes::halves(supers), floor = Lanes::halves(supers + 2 * kGroup);
      for (int r = 0; r < kRows; r++) {
        if constexpr (kType.halves())
          totals[r] = Lanes::add(totals[r], Lanes::multiply(shifts[r], Lanes::whole(-kType.zero)));
        const auto total = Lanes::to_numbers(totals[r]);
        typename Lanes::Numbers value;
        if constexpr (kType.minimum)
          value = Lanes::multiply_subtract(scale, total, Lanes::multiply(floor, Lanes::to_numbers(shifts[r])));
        else value = Lanes::multiply(scale, total);
        sums[r] = Lanes::multiply_add(value, Lanes::number(in.scales[size_t(r) * count() / kBlocks + s]), sums[r]);
      }
    }
  }

  int outputs_ = 0, inputs_ = 0;
  bool blocks_ = false, supers_ = false;
  std::vector<Part> parts_;
};

// Rows that are looked up, in the same layout.
template <>
class Embedding<FileBlocks> {
 public:
  void load(const FileRows* rows, int count, int width) { rows_.pack(rows, count, width); }
  explicit operator bool() const { return rows_.inputs() > 0; }
  void row(int index, float* to) const { rows_.row(index, to); }

 private:
  Matrix<FileBlocks> rows_;
};

}  // namespace skit
