// The forward pass of a Llama-like decoder over a ragged batch of new tokens.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "cache.h"
#include "matrix.h"
#include "pool.h"

namespace skit {

struct Shape {
  int32_t layers, hidden, heads, kv_heads, head_dim, inner, vocabulary, positions, slots, capacity;
  int32_t outputs;  // rows of the output matrix; a head may have fewer than the vocabulary
  // What a layer reads: 0: embeddings; 1: embeddings and hidden states, and it adds to the state; 2: likewise, and it
  // adds to the normalised state.
  int32_t reads;
  int32_t fused;  // numbers of the target's states that a head makes one state of; 0 without
  float eps;
};

struct Token {
  int32_t id, slot, place, position, prefix;
  size_t seen, seen_end;  // a range of `Batch::seen`: the places that it attends to besides all below `prefix`
};

struct Batch {
  std::vector<Token> tokens;
  std::vector<int32_t> seen;
  std::vector<int32_t> kept;    // the tokens whose logits are computed
  std::vector<int32_t> told;    // the tokens whose hidden states are returned
  std::vector<int32_t> layers;  // the layers whose hidden states are returned
  int32_t threads, vocabulary;
  int32_t computed;           // logits of the first so many tokens are computed, those behind them filled up
  float* logits;              // [kept, padded outputs]
  std::vector<int32_t> best;  // [kept]; -1 for a row that holds NaN
  float* hidden;              // [layers, told, hidden]
  const float* states;        // [tokens, hidden], read together with the embeddings
  float* new_states;          // [tokens, hidden], the states after the layers; null if they are not needed

  int size() const { return int(tokens.size()); }
  int rows() const { return int(kept.size()); }
  Visibility visibility(const Token& token) const {
    return {token.prefix, seen.data() + token.seen, seen.data() + token.seen_end};
  }
};

// The weights of a layer as Python hands them over; a vector that the model lacks is null.
struct LayerWeights {
  const void *qkv, *out, *gate_up, *down;
  const float *input_norm, *post_norm, *qkv_bias, *query_norm, *key_norm, *state_norm;
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void forward(Batch& batch) = 0;
  virtual void move(int slot, int count, const int32_t* from, int to) = 0;
  // Copies the weights of one layer, and those of both ends. One at a time: together they would be held twice.
  virtual void load_layer(int index, const LayerWeights& weights) = 0;
  // The embedding may be null where it is the output matrix.
  virtual void load_ends(const void* head_rows, const void* embedding_rows) = 0;
  // Copies the matrix that makes a head's state of the target's states; the bias may be null.
  virtual void load_fusion(const void* rows, const float* bias) = 0;
  // Writes the head's states [count, hidden] of the target's [count, fused].
  virtual void fuse(const float* states, int count, float* to, int threads) = 0;
  // Returns another decoder over the same weights, with KV of its own.
  virtual std::unique_ptr<Decoder> share_weights(int slots, int capacity) const = 0;

  // Marks the decoder as in use for as long as it lives, unless another turn does already.
  struct Turn {
    explicit Turn(std::atomic<bool>& in_use) : granted(!in_use.exchange(true)), flag(in_use) {}
    Turn(const Turn&) = delete;
    ~Turn() {
      if (granted) flag = false;
    }
    const bool granted;
    std::atomic<bool>& flag;
  };

  const Shape shape;
  Batch scratch_batch;  // kept from one forward to the next, so that its memory is allocated once
  std::atomic<bool> in_use{false};

 protected:
  explicit Decoder(const Shape& model_shape) : shape(model_shape) {}
};

inline void normalise(const float* x, const float* weight, float* y, int size, float eps) {
  Floats squares = {};
  for (int i = 0; i < size; i += kLanes) {
    const Floats v = loadf(x + i);
    squares += v * v;
  }
  const float scale = 1.0f / std::sqrt(sum(squares) / float(size) + eps);
  for (int i = 0; i < size; i += kLanes) store(y + i, loadf(x + i) * scale * loadf(weight + i));
}

inline int likeliest(const float* logits, int size) {
  constexpr int kStep = 8 * kLanes;  // find the step that holds the largest value first, then search only that step
  float top = -INFINITY;
  int best_step = 0;
  for (int at = 0; at < size; at += kStep)
    if (const float step_top = largest(logits + at, std::min(kStep, size - at)); step_top > top)
      top = step_top, best_step = at;
  int at = best_step;
  while (at < size - 1 && logits[at] != top) at++;  // the bound ends the search where NaN equals nothing
  return at;
}

// Returns the index of the largest logit; -1 if one of them is NaN, or infinities of both signs occur.
inline int best_number(const float* logits, int size) {
  Floats sums = {};
  float tail = 0;
  int at = 0;
  for (; at + kLanes <= size; at += kLanes) sums += loadf(logits + at);
  for (; at < size; at++) tail += logits[at];
  return std::isnan(sum(sums) + tail) ? -1 : likeliest(logits, size);
}

// Writes four statistics: of softmax(logits / temperature) the largest probability, the entropy and the margin between
// the two largest probabilities; then the standard deviation of the logits.
inline void describe(const float* logits, int size, float temperature, float* statistics) {
  const int best = likeliest(logits, size);
  const float top = logits[best], inverse = 1.0f / temperature;
  Floats total = {}, weighted = {}, plain = {}, squares = {}, second = broadcast(-INFINITY);
  const auto each = [&](auto&& visit) {
    const int whole = size - size % kLanes;
    for (int at = 0; at < whole; at += kLanes) visit(at, loadf(logits + at) - top, broadcast(1));
    if (whole == size) return;
    Floats values = broadcast(top), live = {};  // lanes beyond the end have weight zero
    std::memcpy(&values, logits + whole, (size - whole) * sizeof(float));
    for (int lane = 0; lane < size - whole; lane++) live[lane] = 1;
    visit(whole, values - top, live);
  };
  each([&](int at, Floats below, Floats live) {
    const Floats weight = exponential(below * inverse) * live;
    total += weight;
    weighted += weight * below;
    plain += below;
    Floats others = live > 0 ? below : broadcast(-INFINITY);
    if (best >= at && best < at + kLanes) others[best - at] = -INFINITY;
    second = max(second, others);
  });
  const Floats mean = broadcast(sum(plain) / float(size));
  each([&](int, Floats below, Floats live) { squares += (below - mean) * (below - mean) * live; });
  const float all_weights = sum(total);
  statistics[0] = 1 / all_weights;
  statistics[1] = std::max(0.0f, std::log(all_weights) - sum(weighted) / all_weights * inverse);
  statistics[2] = (1 - std::exp(largest(second) * inverse)) / all_weights;
  statistics[3] = std::sqrt(sum(squares) / float(size));
}

template <class Kind>
struct Layer {
  Matrix<Kind> qkv, out, gate_up, down;
  std::vector<float> input_norm, post_norm, qkv_bias, query_norm, key_norm, state_norm;
};

template <class Kind>
struct Weights {
  using Stored = typename Kind::Stored;

  Weights(const Shape& s, const float* last_norm, const float* cosine_table, const float* sine_table)
      : layers(s.layers),
        norm(copy(last_norm, s.hidden)),
        cosines(copy(cosine_table, s.positions * s.head_dim / 2)),
        sines(copy(sine_table, s.positions * s.head_dim / 2)) {}

  static std::vector<float> copy(const float* from, int size) {
    return from ? std::vector<float>(from, from + size) : std::vector<float>();
  }

  static void load(const Shape& s, Layer<Kind>& layer, const LayerWeights& w) {
    const int projected = (s.heads + 2 * s.kv_heads) * s.head_dim;
    layer.qkv.pack(static_cast<const Stored*>(w.qkv), projected, s.reads ? 2 * s.hidden : s.hidden);
    layer.out.pack(static_cast<const Stored*>(w.out), s.hidden, s.heads * s.head_dim);
    layer.gate_up.pack(static_cast<const Stored*>(w.gate_up), 2 * s.inner, s.hidden);
    layer.down.pack(static_cast<const Stored*>(w.down), s.hidden, s.inner);
    layer.input_norm = copy(w.input_norm, s.hidden);
    layer.post_norm = copy(w.post_norm, s.hidden);
    layer.qkv_bias = copy(w.qkv_bias, projected);
    layer.query_norm = copy(w.query_norm, s.head_dim);
    layer.key_norm = copy(w.key_norm, s.head_dim);
    layer.state_norm = copy(w.state_norm, s.hidden);
  }

  std::vector<Layer<Kind>> layers;
  Matrix<Kind> head, fusion;
  Embedding<Kind> embedding;  // empty if it is the output matrix, which holds it exactly
  std::vector<float> norm, cosines, sines, fusion_bias;
};

template <class Kind>
class LlamaDecoder final : public Decoder {
 public:
  LlamaDecoder(const Shape& model_shape, std::shared_ptr<Weights<Kind>> weights)
      : Decoder(model_shape), weights_(std::move(weights)) {
    for (int i = 0; i < shape.layers; i++)
      caches_.emplace_back(shape.slots, shape.kv_heads, shape.capacity, shape.head_dim);
  }

  void load_layer(int index, const LayerWeights& from) override {
    Weights<Kind>::load(shape, weights_->layers[size_t(index)], from);
  }

  void load_ends(const void* head_rows, const void* embedding_rows) override {
    using Stored = typename Kind::Stored;
    weights_->head.pack(static_cast<const Stored*>(head_rows), shape.outputs, shape.hidden);
    if (!embedding_rows && Matrix<Kind>::kExact) return;
    const auto* rows = static_cast<const Stored*>(embedding_rows ? embedding_rows : head_rows);
    weights_->embedding.load(rows, shape.vocabulary, shape.hidden);
  }

  void load_fusion(const void* rows, const float* bias) override {
    weights_->fusion.pack(static_cast<const typename Kind::Stored*>(rows), shape.hidden, shape.fused);
    weights_->fusion_bias = Weights<Kind>::copy(bias, shape.hidden);
  }

  std::unique_ptr<Decoder> share_weights(int slots, int capacity) const override {
    Shape other = shape;
    other.slots = slots;
    other.capacity = capacity;
    return std::make_unique<LlamaDecoder>(other, weights_);
  }

  void move(int slot, int count, const int32_t* from, int to) override {
    for (auto& cache : caches_)
      for (int i = 0; i < count; i++)
        if (from[i] != to + i) cache.move(slot, from[i], to + i);
  }

  void fuse(const float* states, int count, float* to, int threads) override {
    hidden_.resize(size_t(count) * padded(shape.hidden));
    inputs_.reserve(count, shape.fused);
    taken_ = std::vector<std::atomic<int>>(size_t(threads));
    pool_.run(threads, [&](Worker& worker) {
      multiply<false>(worker, weights_->fusion, states, shape.fused, count, hidden_.data(), padded(shape.hidden));
      const auto mine = worker.share(count);
      for (int t = mine.first; t < mine.end; t++) {
        const float* from = row(hidden_, t, shape.hidden);
        float* state = to + size_t(t) * shape.hidden;
        std::memcpy(state, from, shape.hidden * sizeof(float));
        for (size_t i = 0; i < weights_->fusion_bias.size(); i++) state[i] += weights_->fusion_bias[i];
      }
    });
  }

  void forward(Batch& batch) override {
    reserve(batch);
    pool_.run(batch.threads, [&](Worker& worker) { work(batch, worker); });
  }

 private:
  int rotating() const { return (shape.heads + shape.kv_heads) * shape.head_dim; }
  int reading() const { return shape.reads ? 2 * shape.hidden : shape.hidden; }
  int projected() const { return rotating() + shape.kv_heads * shape.head_dim; }

  void reserve(const Batch& batch) {
    const size_t tokens = batch.size();
    hidden_.resize(tokens * padded(shape.hidden));
    normed_.resize(std::max<size_t>(tokens, batch.rows()) * reading());
    qkv_.resize(tokens * padded(projected()));
    mixed_.resize(tokens * shape.heads * shape.head_dim);
    gate_up_.resize(tokens * padded(2 * shape.inner));
    scores_.resize(size_t(batch.threads) * caches_[0].scratch());
    inputs_.reserve(int(std::max<size_t>(tokens, batch.rows())),
                    std::max({reading(), shape.heads * shape.head_dim, shape.inner}));
    find_tiles(batch);
    const size_t products = 4 * size_t(shape.layers) + 1;
    taken_ = std::vector<std::atomic<int>>(products * size_t(batch.threads));
  }

  // Neighbouring tokens of one slot, which share what they read.
  void find_tiles(const Batch& batch) {
    const int group = shape.heads / shape.kv_heads, most = std::max(1, Cache::kTile / group);
    tiles_.clear();
    const auto& tokens = batch.tokens;
    for (int first = 0, end; first < batch.size(); first = end) {
      for (end = first + 1; end < batch.size() && end - first < most && tokens[end].slot == tokens[first].slot;) end++;
      tiles_.push_back({first, end});
    }
  }

  void work(Batch& batch, Worker& worker) {
    const auto mine = worker.share(batch.size());
    for (int t = mine.first; t < mine.end; t++) embed(batch.tokens[t].id, row(hidden_, t, shape.hidden));
    for (int i = 0; i < shape.layers; i++) {
      keep_hidden(batch, worker, i);
      step(batch, worker, weights_->layers[i], caches_[i]);
    }
    finish(batch, worker);
  }

  static float* row(std::vector<float>& table, int row, int size) { return table.data() + size_t(row) * padded(size); }

  void embed(int token, float* to) const {
    if constexpr (Matrix<Kind>::kExact)
      if (!weights_->embedding) return weights_->head.row(token, to);
    weights_->embedding.row(token, to);
  }

  void step(const Batch& batch, Worker& worker, const Layer<Kind>& layer, Cache& cache) {
    const auto& s = shape;
    const int tokens = batch.size(), wide = padded(s.hidden);
    if (s.reads) join_states(batch, worker, layer);
    else normalise_all(worker, layer.input_norm, tokens);
    multiply<false>(worker, layer.qkv, normed_.data(), reading(), tokens, qkv_.data(), padded(projected()));
    place_keys(batch, worker, layer, cache);
    attend(batch, worker, cache);
    multiply<true>(worker, layer.out, mixed_.data(), s.heads * s.head_dim, tokens, hidden_.data(), wide);
    normalise_all(worker, layer.post_norm, tokens);
    multiply<false>(worker, layer.gate_up, normed_.data(), s.hidden, tokens, gate_up_.data(), padded(2 * s.inner));
    activate(worker, tokens);
    multiply<true>(worker, layer.down, gate_up_.data(), padded(2 * s.inner), tokens, hidden_.data(), wide);
  }

  // The last wait of every part is here: who multiplies reads what all have written.
  // Only the blocks that hold the first `outputs` are computed.
  template <bool kAdd>
  void multiply(Worker& worker, const Matrix<Kind>& matrix, const float* x, int stride_x, int rows, float* y,
                int stride_y, int outputs = std::numeric_limits<int>::max()) {
    worker.barrier();
    if constexpr (Inputs<Kind>::kCopied) {
      const auto copied = worker.share(rows);
      for (int t = copied.first; t < copied.end; t++) inputs_.copy(t, x + size_t(t) * stride_x, matrix);
      worker.barrier();
    }
    const auto in = inputs_.rows(x, stride_x, matrix.inputs());
    const int blocks = outputs < matrix.blocks() * kBlock ? (outputs + kBlock - 1) / kBlock : matrix.blocks();
    worker.divide(taken_.data(), blocks, kVectorBlocks,
                  [&](Range range) { matrix.template multiply<kAdd>(in, rows, y, stride_y, range.first, range.end); });
    worker.barrier();
  }

  void normalise_all(Worker& worker, const std::vector<float>& weight, int tokens) {
    const auto mine = worker.share(tokens);
    for (int t = mine.first; t < mine.end; t++)
      normalise(row(hidden_, t, shape.hidden), weight.data(), &normed_[size_t(t) * shape.hidden], shape.hidden,
                shape.eps);
  }

  // The embedding and the state beside it, each normalised; the layer then adds to the state.
  void join_states(const Batch& batch, Worker& worker, const Layer<Kind>& layer) {
    const int size = shape.hidden;
    const auto mine = worker.share(batch.size());
    for (int t = mine.first; t < mine.end; t++) {
      float *joined = &normed_[size_t(t) * reading()], *sum = row(hidden_, t, size);
      const float* state = batch.states + size_t(t) * size;
      normalise(sum, layer.input_norm.data(), joined, size, shape.eps);
      normalise(state, layer.state_norm.data(), joined + size, size, shape.eps);
      std::memcpy(sum, shape.reads == 2 ? joined + size : state, size * sizeof(float));
    }
  }

  void place_keys(const Batch& batch, Worker& worker, const Layer<Kind>& layer, Cache& cache) {
    const auto mine = worker.share(batch.size());
    for (int t = mine.first; t < mine.end; t++) {
      const Token& token = batch.tokens[t];
      float* qkv = row(qkv_, t, projected());
      for (size_t i = 0; i < layer.qkv_bias.size(); i += kLanes)
        store(qkv + i, loadf(qkv + i) + loadf(layer.qkv_bias.data() + i));
      for (int head = 0; head < shape.heads + shape.kv_heads; head++)
        rotate(token.position, qkv + head * shape.head_dim, head < shape.heads ? layer.query_norm : layer.key_norm);
      const float scale = 1.0f / std::sqrt(float(shape.head_dim));
      for (int i = 0; i < shape.heads * shape.head_dim; i += kLanes) store(qkv + i, loadf(qkv + i) * scale);
      for (int head = 0; head < shape.kv_heads; head++)
        cache.write(token.slot, head, token.place, qkv + (shape.heads + head) * shape.head_dim,
                    qkv + rotating() + head * shape.head_dim);
    }
    worker.barrier();
  }

  void rotate(int position, float* head, const std::vector<float>& norm) const {
    const int half = shape.head_dim / 2;
    const float *cosine = &weights_->cosines[size_t(position) * half],
                *sine = &weights_->sines[size_t(position) * half];
    if (!norm.empty()) normalise(head, norm.data(), head, shape.head_dim, shape.eps);
    for (int i = 0; i < half; i++) {
      const float a = head[i], b = head[half + i];
      head[i] = a * cosine[i] - b * sine[i];
      head[half + i] = b * cosine[i] + a * sine[i];
    }
  }

  void attend(const Batch& batch, Worker& worker, const Cache& cache) {
    const auto mine = worker.share(int(tiles_.size()) * shape.kv_heads);
    float* scratch = &scores_[size_t(worker.index()) * cache.scratch()];
    for (int item = mine.first; item < mine.end; item++)
      attend_tile(batch, cache, tiles_[item / shape.kv_heads], item % shape.kv_heads, scratch);
  }

  // All queries of a few tokens that read one head of keys, a cache's tile at a time.
  void attend_tile(const Batch& batch, const Cache& cache, Range tokens, int kv_head, float* scratch) {
    const int group = shape.heads / shape.kv_heads, slot = batch.tokens[tokens.first].slot;
    const float* queries[Cache::kTile];
    float* out[Cache::kTile];
    Visibility visible[Cache::kTile];
    int count = 0;
    for (int t = tokens.first; t < tokens.end; t++)
      for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        queries[count] = row(qkv_, t, projected()) + head * shape.head_dim;
        out[count] = &mixed_[(size_t(t) * shape.heads + head) * shape.head_dim];
        visible[count] = batch.visibility(batch.tokens[t]);
        if (++count == Cache::kTile) {
          cache.attend(slot, kv_head, count, queries, visible, out, scratch);
          count = 0;
        }
      }
    if (count) cache.attend(slot, kv_head, count, queries, visible, out, scratch);
  }

  // silu(gate) * up, in the gate's place.
  void activate(Worker& worker, int tokens) {
    const auto mine = worker.share(tokens);
    for (int t = mine.first; t < mine.end; t++) {
      float* gate = row(gate_up_, t, 2 * shape.inner);
      for (int i = 0; i < shape.inner; i += kLanes) {
        const Floats value = loadf(gate + i);
        store(gate + i, value / (1.0f + exponential(-value)) * loadf(gate + shape.inner + i));
      }
    }
  }

  // As transformers counts them: `layer` is what enters that layer, the last is what the head reads.
  void keep_hidden(const Batch& batch, Worker& worker, int layer) {
    const size_t told = batch.told.size();
    for (size_t wanted = 0; wanted < batch.layers.size(); wanted++) {
      if (batch.layers[wanted] != layer) continue;
      worker.barrier();
      const auto mine = worker.share(int(told));
      for (int t = mine.first; t < mine.end; t++) {
        const float* from = row(hidden_, batch.told[t], shape.hidden);
        float* to = batch.hidden + (wanted * told + t) * shape.hidden;
        if (layer < shape.layers) std::memcpy(to, from, shape.hidden * sizeof(float));
        else normalise(from, weights_->norm.data(), to, shape.hidden, shape.eps);
      }
      worker.barrier();
    }
  }

  void finish(Batch& batch, Worker& worker) {
    const auto all_mine = worker.share(batch.new_states ? batch.size() : 0);
    for (int t = all_mine.first; t < all_mine.end; t++)
      std::memcpy(batch.new_states + size_t(t) * shape.hidden, row(hidden_, t, shape.hidden),
                  shape.hidden * sizeof(float));
    const auto mine = worker.share(batch.rows());
    for (int k = mine.first; k < mine.end; k++)
      normalise(row(hidden_, batch.kept[k], shape.hidden), weights_->norm.data(), &normed_[size_t(k) * shape.hidden],
                shape.hidden, shape.eps);
    keep_hidden(batch, worker, shape.layers);
    multiply<false>(worker, weights_->head, normed_.data(), shape.hidden, batch.rows(), batch.logits,
                    padded(shape.outputs), batch.computed);
    for (int k = mine.first; k < mine.end; k++) {
      float* logits = batch.logits + size_t(k) * padded(shape.outputs);
      const int best = batch.best[k] = best_number(logits, batch.computed);
      // So far below the best one that they are next to impossible, and yet no logarithm of theirs is infinite.
      std::fill(logits + batch.computed, logits + batch.vocabulary, best < 0 ? NAN : logits[best] - kFarBelow);
    }
  }

  static constexpr float kFarBelow = 120;

  std::shared_ptr<Weights<Kind>> weights_;  // not changed once they are loaded
  std::vector<Cache> caches_;
  std::vector<float> hidden_, normed_, qkv_, mixed_, gate_up_, scores_;
  Inputs<Kind> inputs_;
  std::vector<Range> tiles_;
  std::vector<std::atomic<int>> taken_;  // by product and thread, see `Worker::divide`
  Pool pool_;
};

}  // namespace skit
