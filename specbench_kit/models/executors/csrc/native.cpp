// What Python calls. No function throws: one that cannot do its work returns null or the number of what is wrong.
#include "candidates.h"
#include "model.h"

using namespace skit;

namespace {

enum Fault : int { kNone, kToken, kPosition, kSlot, kPlace, kSight, kKept, kMemory };

// Every number that becomes an address is looked at once, so that none reads or writes outside a table.
Fault check(const Shape& shape, const Batch& batch) {
  for (int t = 0; t < batch.tokens; t++) {
    if (batch.token[t] < 0 || batch.token[t] >= shape.vocabulary) return kToken;
    if (batch.position[t] < 0 || batch.position[t] >= shape.positions) return kPosition;
    if (batch.slot[t] < 0 || batch.slot[t] >= shape.slots) return kSlot;
    if (batch.place[t] < 0 || batch.place[t] >= shape.capacity) return kPlace;
    if (batch.prefix[t] < 0 || batch.prefix[t] > shape.capacity || batch.extra_offset[t] > batch.extra_offset[t + 1]) return kSight;
    int last = batch.prefix[t] - 1;
    for (int i = batch.extra_offset[t]; i < batch.extra_offset[t + 1]; last = batch.extra[i++])
      if (batch.extra[i] <= last || batch.extra[i] >= shape.capacity) return kSight;
    if (last < 0) return kSight;
  }
  for (int k = 0; k < batch.kept; k++)
    if (batch.kept_token[k] < 0 || batch.kept_token[k] >= batch.tokens) return kKept;
  return kNone;
}

}  // namespace

extern "C" {

int skit_padded(int size) { return padded(size); }

// `statistics` [rows, 4] of logits [rows, stride], of which the first `size` count.
void skit_describe(const float* logits, int rows, int stride, int size, float temperature, float* statistics) {
  for (int row = 0; row < rows; row++) describe(logits + size_t(row) * stride, size, temperature, statistics + 4 * row);
}

// The best `count` entries [number] of logits [any, stride], of which the first `size` count; returns how many there are.
int skit_candidates(const float* logits, int stride, int size, float temperature, const int32_t* rows, const float* bases,
                    int number, int branch, int count, float* scores, int32_t* places, int32_t* tokens) {
  try {
    const auto best = candidates(logits, stride, size, temperature, rows, bases, number, branch, count);
    for (size_t i = 0; i < best.size(); i++) scores[i] = best[i].score, places[i] = best[i].row, tokens[i] = best[i].token;
    return int(best.size());
  } catch (...) {
    return -1;
  }
}

// `kind`: 0 for fp32 weights, 1 for bf16, 2 for fp16.
Decoder* skit_new(const Shape* shape, int kind, const LayerWeights* layers, const void* head, const void* embedding,
                  const float* norm, const float* cosines, const float* sines) {
  const auto make = [&](auto type) -> Decoder* {
    using Kind = decltype(type);
    const auto weights = std::make_shared<Weights<Kind>>(*shape, layers, head, embedding, norm, cosines, sines);
    return new LlamaDecoder<Kind>(*shape, weights);
  };
  try {
    return kind == 0 ? make(Float32()) : kind == 1 ? make(BFloat16()) : make(Float16());
  } catch (...) {
    return nullptr;
  }
}

Decoder* skit_beside(const Decoder* decoder, int slots, int capacity) {
  try {
    return decoder->beside(slots, capacity).release();
  } catch (...) {
    return nullptr;
  }
}

void skit_delete(Decoder* decoder) { delete decoder; }

int skit_forward(Decoder* decoder, const Batch* batch) {
  if (const Fault fault = check(decoder->shape, *batch)) return fault;
  try {
    decoder->forward(*batch);
  } catch (...) {
    return kMemory;
  }
  return kNone;
}

int skit_move(Decoder* decoder, int slot, int count, const int32_t* from, int to) {
  const int capacity = decoder->shape.capacity;
  if (slot < 0 || slot >= decoder->shape.slots) return kSlot;
  if (to < 0 || to + count > capacity) return kPlace;
  for (int i = 0; i < count; i++)
    if (from[i] < to + i || from[i] >= capacity) return kPlace;
  decoder->move(slot, count, from, to);
  return kNone;
}
}
