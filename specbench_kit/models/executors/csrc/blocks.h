// Products of the blocks of a GGUF file, as the file has them, with activations that are rounded to 8 bits.
//
// The sum of a block is exact in integers, and what belongs to different scales is added in fp32 in the order of the
// inputs: an output does not depend on what is computed beside it, nor on which instructions take the sums.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "block_types.h"
#include "invalid.h"
#include "lanes.h"
#include "matrix.h"
#if defined(SKIT_NARROW)
#include "block_tiles.h"
#include "products.h"
#endif

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
  // Tiles read rows beyond the last, and drop what they find.
  static constexpr size_t kSpareRows = 32;

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
      const size_t padded = (inputs + kSuper - 1) / kSuper * kSuper, size = rows * padded;
      grow(bytes, size + kSpareRows * padded), grow(scales, size / scaled);
      grow(sums, size / kBlockInputs + 1), grow(halves, size / 16);
    }

    template <class T>
    static void grow(std::vector<T>& values, size_t size) {
      if (values.size() < size) values.resize(size);
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
#if defined(SKIT_NARROW)
    tiles_ = products() == Products::kTiles;
#endif
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
#if defined(SKIT_NARROW)
        if (tiles_ && rows >= Tiled<kType>::kFewestRows) {
          const TilesInUse in_use(Tiled<kType>::config(TiledRows::height_for(rows)));
          for (int group = std::max(from, part.first); group < last; group++)
            multiply_group_by_tiles<kType, kAdd>(part, group, in, rows, y, stride_y);
          return;
        }
#endif
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

#if defined(SKIT_NARROW)
  template <BlockType kType>
  using Tiled = std::conditional_t<kType.super, TiledSuper<kType>, TiledBlocks<kType>>;

  // The rows whose sums stay near while the blocks of a group pass by.
  static constexpr int kRowsAtOnce = 256;

  template <BlockType kType, bool kAdd>
  void multiply_group_by_tiles(const Part& part, int group, const Rows& in, int rows, float* y, int stride_y) const {
    const uint8_t* data = &part.data[size_t(group - part.first) * part.stride];
    const Scaled& all = kType.super ? in.supers : in.blocks;
    const int width = std::min(kGroup, stride_y - group * kGroup), height = TiledRows::height_for(rows);
    constexpr size_t kBlocks = Tiled<kType>::kBlocks;
    alignas(64) float sums[kRowsAtOnce][kGroup];
    for (int row = 0; row < rows; row += kRowsAtOnce) {
      const int some = std::min(kRowsAtOnce, rows - row);
      const size_t at = size_t(row) * size_t(inputs_);
      const TiledRows from = {
          all.bytes + at, all.scales + at / kType.scaled(), all.sums + at / kBlockInputs, inputs_, some, height};
      std::memset(sums, 0, sizeof(float) * kGroup * size_t(some));
      for (size_t b = 0; b < count(); b += kBlocks) {
        const int blocks = int(std::min(kBlocks, count() - b));
        const uint8_t *codes = data + b * kType.code_bytes(),
                      *scales = data + scales_at<kType>() + b * kType.scale_bytes(),
                      *supers = data + supers_at<kType>() + b * kBlockInputs / kSuper * kType.super_bytes();
        Ahead ahead(codes + kAhead - 2048, blocks * kType.code_bytes());
        const Tiled<kType> tiled(codes, scales, supers, blocks, ahead);
        tiled.add(from, b, sums, ahead);
      }
      for (int r = 0; r < some; r++)
        Lanes::write<kAdd>(y + size_t(row + r) * size_t(stride_y) + group * kGroup, _mm512_load_ps(sums[r]), width);
    }
  }

  bool tiles_ = false;
#endif
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
