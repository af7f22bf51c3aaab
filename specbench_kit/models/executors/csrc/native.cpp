// The module `native` that Python imports. Bad input raises ValueError, whose message names what was asked for.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "blocks.h"
#include "candidates.h"
#include "model.h"
#include "python.h"
#if defined(SKIT_NARROW)
#include "bytes.h"
#include "pairs.h"
#endif

using namespace skit;

namespace {

// The logits [kept, padded outputs] of a forward. The first `size` of each row were computed. Python reads and writes
// them as a buffer.
struct Logits {
  PyObject_HEAD float* values;
  int rows, stride, size;

  static Logits* make(int rows, int stride, int size) {
    auto* logits = PyObject_New(Logits, type);
    if (!logits) throw PythonError();
    const size_t bytes = size_t(std::max(1, rows)) * size_t(stride) * sizeof(float);
    logits->values = static_cast<float*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    logits->rows = rows, logits->stride = stride, logits->size = size;
    if (logits->values) return logits;
    Py_DECREF(logits);
    throw std::bad_alloc();
  }

  static inline PyTypeObject* type = nullptr;
};

void free_logits(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  std::free(reinterpret_cast<Logits*>(self)->values);
  PyObject_Free(self);
  Py_DECREF(type);
}

int lend_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto* logits = reinterpret_cast<Logits*>(self);
  return PyBuffer_FillInfo(view, self, logits->values, Py_ssize_t(logits->rows) * logits->stride * sizeof(float), 0,
                           flags);
}

// describe(temperature): returns max probability, entropy, margin and standard deviation of every row.
PyObject* describe_rows(PyObject* self, PyObject* const* values, Py_ssize_t count) {
  return guarded([&] {
    const auto* logits = reinterpret_cast<Logits*>(self);
    const float temperature = float(arguments(values, count, 1).real(0));
    OwnedRef list(PyList_New(logits->rows));
    for (int row = 0; row < logits->rows; row++) {
      float statistics[4];
      describe(logits->values + size_t(row) * size_t(logits->stride), logits->size, temperature, statistics);
      list.set(row, Py_BuildValue("[dddd]", double(statistics[0]), double(statistics[1]), double(statistics[2]),
                                  double(statistics[3])));
    }
    return list.release();
  });
}

// candidates(temperature, rows, bases, branch, count, floor): returns the best as (score, row, token), best first.
PyObject* find_candidates(PyObject* self, PyObject* const* values, Py_ssize_t count) {
  return guarded([&] {
    const auto* logits = reinterpret_cast<Logits*>(self);
    const Arguments args = arguments(values, count, 6);
    const auto rows = numbers(args[1]);
    const auto bases = reals(args[2]);
    for (const int row : rows)
      if (row < 0 || row >= logits->rows) throw InvalidArgument{"a row that is not there"};
    if (rows.size() != bases.size()) throw InvalidArgument{"rows and bases of different number"};
    const auto best = candidates(logits->values, logits->stride, logits->size, float(args.real(0)), rows, bases,
                                 args.number(3), args.number(4), args.real(5));
    OwnedRef list(PyList_New(Py_ssize_t(best.size())));
    for (size_t i = 0; i < best.size(); i++) {
      OwnedRef candidate(PyTuple_New(3));
      candidate.set(0, PyFloat_FromDouble(double(best[i].score)));
      candidate.set(1, PyLong_FromLong(best[i].row));
      candidate.set(2, PyLong_FromLong(best[i].token));
      list.set(Py_ssize_t(i), candidate.release());
    }
    return list.release();
  });
}

PyMethodDef method(const char* name, PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef kLogitsMethods[] = {method("describe", describe_rows), method("candidates", find_candidates), {}};
PyType_Slot kLogitsSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(free_logits)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(lend_buffer)},
    {Py_tp_methods, kLogitsMethods},
    {0, nullptr},
};
PyType_Spec kLogits = {"native.Logits", sizeof(Logits), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                       kLogitsSlots};

const char* const kDecoder = "skit.Decoder";

Decoder* decoder_of(PyObject* capsule) {
  auto* decoder = static_cast<Decoder*>(PyCapsule_GetPointer(capsule, kDecoder));
  if (!decoder) throw PythonError();
  return decoder;
}

PyObject* capsule_of(Decoder* decoder) {
  return PyCapsule_New(decoder, kDecoder, [](PyObject* capsule) {
    delete static_cast<Decoder*>(PyCapsule_GetPointer(capsule, kDecoder));
  });
}

// make(shape, kind, norm, cosines, sines): returns a decoder whose matrices are still to be loaded. `shape` is the
// structure of model.h, the last three are addresses. `kind` is 0 for fp32 weights, 1 for bf16, 2 for fp16; in the
// build for narrow products it is 3 for bf16 products and 4 for 8-bit products, with weights in bf16. In every build it
// is 5 for the blocks of a GGUF file, whose weights are lists of `FileRows`.
PyObject* make(PyObject*, PyObject* const* values, Py_ssize_t count) {
  return guarded([&] {
    const Arguments args = arguments(values, count, 5);
    const Bytes shape_bytes(args[0]);
    const Shape& shape = *static_cast<const Shape*>(shape_bytes.data(sizeof(Shape)));
    const auto build = [&](auto type) -> Decoder* {
      using Kind = decltype(type);
      const auto *norm = static_cast<const float*>(args.address(2)),
                 *cosines = static_cast<const float*>(args.address(3)),
                 *sines = static_cast<const float*>(args.address(4));
      return new LlamaDecoder<Kind>(shape, std::make_shared<Weights<Kind>>(shape, norm, cosines, sines));
    };
    switch (args.number(1)) {
      case 5:
        return capsule_of(build(FileBlocks()));
#if defined(SKIT_NARROW)
      case 3:
        return capsule_of(build(BFloat16Pairs()));
      case 4:
        return capsule_of(build(Int8Blocks()));
#else
      case 0:
        return capsule_of(build(Float32()));
      case 1:
        return capsule_of(build(BFloat16()));
      case 2:
        return capsule_of(build(Float16()));
#endif
      default:
        throw InvalidArgument{"a kind of weights that this build lacks"};
    }
  });
}

// load_layer(decoder, index, weights): copies the weights of a layer, a structure of model.h.
PyObject* load_layer(PyObject*, PyObject* const* values, Py_ssize_t count) {
  return guarded([&] {
    const Arguments args = arguments(values, count, 3);
    Decoder& decoder = *decoder_of(args[0]);
    const Bytes bytes(args[2]);
    const int index = args.number(1);
    if (index < 0 || index >= decoder.shape.layers) throw InvalidArgument{"a layer that is not there"};
    decoder.load_layer(index, *static_cast<const LayerWeights*>(bytes.data(sizeof(LayerWeights))));
    Py_RETURN_NONE;
  });
}

// load_both_ends(decoder, head, embedding): copies the output matrix and the embeddings, given as addresses; None for
// the embeddings says that they are the rows of the output matrix.
PyObject* load_both_ends(PyObject*, PyObject* const* values, Py_ssize_t count) {
  return guarded([&] {
    const Arguments args = arguments(values, count, 3);
    Decoder& decoder = *decoder_of(args[0]);
    if (args[2] == Py_None && decoder.shape.outputs < decoder.shape.vocabulary)
      throw InvalidArgument{"embeddings that its output matrix lacks"};
    decoder.load_ends(args.address(1), args.address(2));
    Py_RETURN_NONE;
  });
}

// load_fusion(decoder, rows, bias): copies the matrix that makes a head's states of the target's; addresses.
PyObject* load_fusion(PyObject*, PyObject* const* values, Py_ssize_t count) {
  return guarded([&] {
    const Arguments args = arguments(values, count, 3);
    Decoder& decoder = *decoder_of(args[0]);
    if (decoder.shape.fused <= 0) throw InvalidArgument{"states that it does not read"};
    decoder.load_fusion(args.address(1), static_cast<const float*>(args.address(2)));
    Py_RETURN_NONE;
  });
}

// fuse(decoder, states, count, to, threads): writes the head's states [count, hidden] of the target's [count, fused].
PyObject* fuse(PyObject*, PyObject* const* values, Py_ssize_t count) {
  return guarded([&] {
    const Arguments args = arguments(values, count, 5);
    Decoder& decoder = *decoder_of(args[0]);
    const Decoder::Turn turn(decoder.in_use);
    if (!turn.granted) throw InvalidArgument{"two forwards at once: a decoder computes one at a time"};
    const auto* states = static_cast<const float*>(args.address(1));
    auto* to = static_cast<float*>(args.address(3));
    const int rows = args.number(2), threads = args.number(4);
    if (decoder.shape.fused <= 0 || rows < 0) throw InvalidArgument{"states that it does not read"};
    {
      const WithoutGil released;
      decoder.fuse(states, rows, to, threads);
    }
    Py_RETURN_NONE;
  });
}

#if defined(SKIT_NARROW)
// products(name): returns how products are computed from the next model on, after choosing `name` unless it is None.
// The empty name says that this processor cannot run this build.
PyObject* choose_products(PyObject*, PyObject* const* values, Py_ssize_t count) {
  return guarded([&] {
    const Arguments args = arguments(values, count, 1);
    if (!processor_has_dot()) return PyUnicode_FromString("");
    if (args[0] != Py_None) {
      int chosen = 0;
      while (chosen < 3 && PyUnicode_CompareWithASCIIString(args[0], kProductNames[chosen])) chosen++;
      if (chosen == 3 || (Products(chosen) == Products::kTiles && !tiles_permitted()))
        throw InvalidArgument{"products that this processor does not have"};
      products() = Products(chosen);
    }
    return PyUnicode_FromString(kProductNames[int(products())]);
  });
}
#endif

// share_weights(decoder, slots, capacity): returns another decoder over the same weights, with KV of its own.
PyObject* share_weights(PyObject*, PyObject* const* values, Py_ssize_t count) {
  return guarded([&] {
    const Arguments args = arguments(values, count, 3);
    return capsule_of(decoder_of(args[0])->share_weights(args.number(1), args.number(2)).release());
  });
}

// Adds a `Row` of base.py to the batch. Every number that becomes an address is checked here, once, so that no forward
// reads or writes outside a table.
void add_row(const Shape& shape, PyObject* row, Batch& batch) {
  if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != 7) throw InvalidArgument{"something that is not a row"};
  const auto number_at = [&](int field) { return number(PyTuple_GET_ITEM(row, field)); };
  const int slot = number_at(0), start = number_at(2), prefix = number_at(3), keep = number_at(5);
  const int states = std::max(number_at(6), keep);
  const List ids(PyTuple_GET_ITEM(row, 1));
  const int count = ids.size();
  PyObject* row_parents = PyTuple_GET_ITEM(row, 4);
  if (slot < 0 || slot >= shape.slots) throw InvalidArgument{"a slot that is not there"};
  if (keep < 0 || keep > count) throw InvalidArgument{"logits of a token that is not in the batch"};
  if (states > count) throw InvalidArgument{"hidden states of a token that is not in the batch"};
  if (start < 0 || prefix < 0 || prefix > start) throw InvalidArgument{"a prefix that ends behind its tokens"};
  std::vector<int32_t> parents;
  if (row_parents != Py_None) parents = numbers(row_parents);
  if (row_parents != Py_None && int(parents.size()) != start - prefix + count)
    throw InvalidArgument{"parents of other nodes"};
  for (int i = 0; i < count; i++) {
    Token token = {number(ids[i]), slot, start + i, start + i, start + i + 1, batch.seen.size(), batch.seen.size()};
    if (row_parents != Py_None) {
      token.prefix = prefix;
      for (int node = start - prefix + i; node != -1; node = parents[node]) {
        if (parents[node] < -1 || parents[node] >= node) throw InvalidArgument{"a token that comes before its parent"};
        batch.seen.push_back(prefix + node);
      }
      token.seen_end = batch.seen.size();
      std::reverse(batch.seen.begin() + token.seen, batch.seen.end());
      token.position = prefix + int(token.seen_end - token.seen) - 1;
    }
    if (token.id < 0 || token.id >= shape.vocabulary) throw InvalidArgument{"a token id outside its vocabulary"};
    if (token.position >= shape.positions) throw InvalidArgument{"a position beyond its context"};
    if (token.place >= shape.capacity) throw InvalidArgument{"a place beyond its slot"};
    if (i >= count - keep) batch.kept.push_back(batch.size());
    if (i >= count - states) batch.told.push_back(batch.size());
    batch.tokens.push_back(token);
  }
}

// forward(decoder, rows, threads, vocabulary, computed, layers, hidden, states, new_states): returns the logits, and
// the likeliest token of each of their rows, -1 for a row that holds NaN. The last three arguments are addresses, see
// `Batch`.
PyObject* forward(PyObject*, PyObject* const* values, Py_ssize_t count) {
  return guarded([&] {
    const Arguments args = arguments(values, count, 9);
    Decoder& decoder = *decoder_of(args[0]);
    // Buffers and KV belong to the decoder, and the GIL is released while they are in use.
    const Decoder::Turn turn(decoder.in_use);
    if (!turn.granted) throw InvalidArgument{"two forwards at once: a decoder computes one at a time"};
    Batch& batch = decoder.scratch_batch;
    batch.tokens.clear(), batch.seen.clear(), batch.kept.clear(), batch.told.clear();
    const List rows(args[1]);
    for (int row = 0; row < rows.size(); row++) add_row(decoder.shape, rows[row], batch);
    batch.threads = args.number(2);
    batch.vocabulary = std::min(args.number(3), decoder.shape.outputs);
    batch.computed = std::min(args.number(4), batch.vocabulary);
    if (batch.computed < 1) throw InvalidArgument{"logits of no token"};
    batch.layers = numbers(args[5]);
    batch.hidden = static_cast<float*>(args.address(6));
    batch.states = static_cast<const float*>(args.address(7));
    batch.new_states = static_cast<float*>(args.address(8));
    batch.best.resize(batch.rows());
    OwnedRef result(PyTuple_New(2));
    auto* logits = Logits::make(batch.rows(), padded(decoder.shape.outputs), batch.computed);
    result.set(0, reinterpret_cast<PyObject*>(logits));
    batch.logits = logits->values;
    {
      const WithoutGil released;
      decoder.forward(batch);
    }
    OwnedRef best(PyList_New(batch.rows()));
    for (int row = 0; row < batch.rows(); row++) best.set(row, PyLong_FromLong(batch.best[row]));
    result.set(1, best.release());
    return result.release();
  });
}

// move(decoder, slot, places, to): moves the KV at `places`, in rising order, to `to` and the places after it.
PyObject* move(PyObject*, PyObject* const* values, Py_ssize_t count) {
  return guarded([&] {
    const Arguments args = arguments(values, count, 4);
    Decoder& decoder = *decoder_of(args[0]);
    const int slot = args.number(1), to = args.number(3);
    const auto from = numbers(args[2]);
    if (slot < 0 || slot >= decoder.shape.slots) throw InvalidArgument{"a slot that is not there"};
    if (to < 0 || to + int(from.size()) > decoder.shape.capacity) throw InvalidArgument{"a place beyond its slot"};
    for (size_t i = 0; i < from.size(); i++)
      if (from[i] < to + int(i) || from[i] >= decoder.shape.capacity) throw InvalidArgument{"a place beyond its slot"};
    decoder.move(slot, int(from.size()), from.data(), to);
    Py_RETURN_NONE;
  });
}

PyMethodDef kFunctions[] = {method("make", make),
                            method("load_layer", load_layer),
                            method("load_both_ends", load_both_ends),
                            method("load_fusion", load_fusion),
                            method("fuse", fuse),
                            method("share_weights", share_weights),
                            method("forward", forward),
                            method("move", move),
#if defined(SKIT_NARROW)
                            method("products", choose_products),
#endif
                            {}};
PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "native", nullptr, -1, kFunctions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_native() {
  Logits::type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kLogits));
  return Logits::type ? PyModule_Create(&kModule) : nullptr;
}
