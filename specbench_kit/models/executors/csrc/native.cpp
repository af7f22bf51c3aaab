// What Python calls: the module `native`. Bad input raises ValueError with words that say what was asked for.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "candidates.h"
#include "model.h"
#include "python.h"

using namespace skit;

namespace {

// Logits [kept, padded outputs] of a forward, of which the first `size` of each row count; Python reads and writes them as
// a buffer.
struct Logits {
  PyObject_HEAD
  float* values;
  int rows, stride, size;

  static Logits* make(int rows, int stride, int size) {
    auto* made = PyObject_New(Logits, type);
    if (!made) throw Raised();
    const size_t bytes = std::max<size_t>(1, rows) * stride * sizeof(float);
    made->values = static_cast<float*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    made->rows = rows, made->stride = stride, made->size = size;
    if (made->values) return made;
    Py_DECREF(made);
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

int look_at(PyObject* self, Py_buffer* view, int flags) {
  auto* logits = reinterpret_cast<Logits*>(self);
  return PyBuffer_FillInfo(view, self, logits->values, Py_ssize_t(logits->rows) * logits->stride * sizeof(float), 0, flags);
}

// describe(temperature): of every row max probability, entropy, margin and standard deviation.
PyObject* describe_rows(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  return guarded([&] {
    const auto* logits = reinterpret_cast<Logits*>(self);
    const float temperature = arguments(given, count, 1).real(0);
    Made found(PyList_New(logits->rows));
    for (int row = 0; row < logits->rows; row++) {
      float of[4];
      describe(logits->values + size_t(row) * logits->stride, logits->size, temperature, of);
      found.put(row, Py_BuildValue("[dddd]", of[0], of[1], of[2], of[3]));
    }
    return found.give();
  });
}

// candidates(temperature, rows, bases, branch, count, floor): the best as (score, row, token), best first.
PyObject* find_candidates(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  return guarded([&] {
    const auto* logits = reinterpret_cast<Logits*>(self);
    const Arguments of = arguments(given, count, 6);
    const auto rows = numbers(of[1]);
    const auto bases = reals(of[2]);
    for (const int row : rows)
      if (row < 0 || row >= logits->rows) throw Refused("a row that is not there");
    if (rows.size() != bases.size()) throw Refused("rows and bases of different number");
    const auto best = candidates(logits->values, logits->stride, logits->size, float(of.real(0)), rows, bases,
                                 std::max(0, of.number(3)), std::max(0, of.number(4)), of.real(5));
    Made found(PyList_New(Py_ssize_t(best.size())));
    for (size_t i = 0; i < best.size(); i++) {
      Made one(PyTuple_New(3));
      one.put(0, PyFloat_FromDouble(best[i].score));
      one.put(1, PyLong_FromLong(best[i].row));
      one.put(2, PyLong_FromLong(best[i].token));
      found.put(i, one.give());
    }
    return found.give();
  });
}

PyMethodDef method(const char* name, PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef kLogitsMethods[] = {method("describe", describe_rows), method("candidates", find_candidates), {}};
PyType_Slot kLogitsSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(free_logits)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(look_at)},
    {Py_tp_methods, kLogitsMethods},
    {0, nullptr},
};
PyType_Spec kLogits = {"native.Logits", sizeof(Logits), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, kLogitsSlots};

const char* const kDecoder = "skit.Decoder";

Decoder* decoder_of(PyObject* capsule) {
  auto* decoder = static_cast<Decoder*>(PyCapsule_GetPointer(capsule, kDecoder));
  if (!decoder) throw Raised();
  return decoder;
}

PyObject* hold(Decoder* decoder) {
  return PyCapsule_New(decoder, kDecoder, [](PyObject* capsule) {
    delete static_cast<Decoder*>(PyCapsule_GetPointer(capsule, kDecoder));
  });
}

// make(shape, kind, layers, head, embedding, norm, cosines, sines): structures of model.h, and addresses of numbers.
// `kind`: 0 for fp32 weights, 1 for bf16, 2 for fp16.
PyObject* make(PyObject*, PyObject* const* given, Py_ssize_t count) {
  return guarded([&] {
    const Arguments of = arguments(given, count, 8);
    const Bytes shape_bytes(of[0]), layer_bytes(of[2]);
    const Shape& shape = *static_cast<const Shape*>(shape_bytes.data(sizeof(Shape)));
    const auto* layers = static_cast<const LayerWeights*>(layer_bytes.data(sizeof(LayerWeights) * shape.layers));
    const auto build = [&](auto type) -> Decoder* {
      using Kind = decltype(type);
      const auto* norm = static_cast<const float*>(of.address(5));
      const auto *cosines = static_cast<const float*>(of.address(6)), *sines = static_cast<const float*>(of.address(7));
      return new LlamaDecoder<Kind>(
          shape, std::make_shared<Weights<Kind>>(shape, layers, of.address(3), of.address(4), norm, cosines, sines));
    };
    const int kind = of.number(1);
    return hold(kind == 0 ? build(Float32()) : kind == 1 ? build(BFloat16()) : build(Float16()));
  });
}

// beside(decoder, slots, capacity): another one over the same weights.
PyObject* beside(PyObject*, PyObject* const* given, Py_ssize_t count) {
  return guarded([&] {
    const Arguments of = arguments(given, count, 3);
    return hold(decoder_of(of[0])->beside(of.number(1), of.number(2)).release());
  });
}

// Takes in a `Row` of base.py; every number that becomes an address is looked at once, so that none reads or writes outside
// a table.
void add_row(const Shape& shape, PyObject* row, Batch& batch) {
  if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != 6) throw Refused("something that is no row");
  const auto number_at = [&](int place) { return number(PyTuple_GET_ITEM(row, place)); };
  const int slot = number_at(0), start = number_at(2), prefix = number_at(3), keep = number_at(5);
  const List ids(PyTuple_GET_ITEM(row, 1));
  const int count = ids.size();
  PyObject* of_all = PyTuple_GET_ITEM(row, 4);
  if (slot < 0 || slot >= shape.slots) throw Refused("a slot that is not there");
  if (keep < 0 || keep > count) throw Refused("logits of a token that is not in the batch");
  if (start < 0 || prefix < 0 || prefix > start) throw Refused("a prefix that ends behind its tokens");
  std::vector<int32_t> parents;
  if (of_all != Py_None) parents = numbers(of_all);
  if (of_all != Py_None && int(parents.size()) != start - prefix + count) throw Refused("parents of other nodes");
  for (int i = 0; i < count; i++) {
    Token token = {number(ids[i]), slot, start + i, start + i, start + i + 1, batch.seen.size(), batch.seen.size()};
    if (of_all != Py_None) {
      token.prefix = prefix;
      for (int node = start - prefix + i; node != -1; node = parents[node]) {
        if (parents[node] < -1 || parents[node] >= node) throw Refused("a token that comes before its parent");
        batch.seen.push_back(prefix + node);
      }
      token.seen_end = batch.seen.size();
      std::reverse(batch.seen.begin() + token.seen, batch.seen.end());
      token.position = prefix + int(token.seen_end - token.seen) - 1;
    }
    if (token.id < 0 || token.id >= shape.vocabulary) throw Refused("a token id outside its vocabulary");
    if (token.position >= shape.positions) throw Refused("a position beyond its context");
    if (token.place >= shape.capacity) throw Refused("a place beyond its slot");
    if (i >= count - keep) batch.kept.push_back(batch.size());
    batch.tokens.push_back(token);
  }
}

// forward(decoder, rows, threads, vocabulary, layers, hidden, states, made): logits, and the likeliest token of every row
// of them, -1 where it is not numbers. The last three are addresses, see `Batch`.
PyObject* forward(PyObject*, PyObject* const* given, Py_ssize_t count) {
  return guarded([&] {
    const Arguments of = arguments(given, count, 8);
    Decoder& decoder = *decoder_of(of[0]);
    Batch& batch = decoder.batch;
    batch.tokens.clear(), batch.seen.clear(), batch.kept.clear();
    const List rows(of[1]);
    for (int row = 0; row < rows.size(); row++) add_row(decoder.shape, rows[row], batch);
    batch.threads = of.number(2);
    batch.vocabulary = std::min(of.number(3), decoder.shape.outputs);
    batch.layers = numbers(of[4]);
    batch.hidden = static_cast<float*>(of.address(5));
    batch.states = static_cast<const float*>(of.address(6));
    batch.new_states = static_cast<float*>(of.address(7));
    batch.best.resize(batch.rows());
    Made found(PyTuple_New(2));
    auto* logits = Logits::make(batch.rows(), padded(decoder.shape.outputs), batch.vocabulary);
    found.put(0, reinterpret_cast<PyObject*>(logits));
    batch.logits = logits->values;
    {
      const WithoutPython others_may_run;
      decoder.forward(batch);
    }
    Made best(PyList_New(batch.rows()));
    for (int row = 0; row < batch.rows(); row++) best.put(row, PyLong_FromLong(batch.best[row]));
    found.put(1, best.give());
    return found.give();
  });
}

// move(decoder, slot, places, to): what lies at `places`, in rising order, goes to `to` and on.
PyObject* move(PyObject*, PyObject* const* given, Py_ssize_t count) {
  return guarded([&] {
    const Arguments of = arguments(given, count, 4);
    Decoder& decoder = *decoder_of(of[0]);
    const int slot = of.number(1), to = of.number(3);
    const auto from = numbers(of[2]);
    if (slot < 0 || slot >= decoder.shape.slots) throw Refused("a slot that is not there");
    if (to < 0 || to + int(from.size()) > decoder.shape.capacity) throw Refused("a place beyond its slot");
    for (size_t i = 0; i < from.size(); i++)
      if (from[i] < to + int(i) || from[i] >= decoder.shape.capacity) throw Refused("a place beyond its slot");
    decoder.move(slot, int(from.size()), from.data(), to);
    Py_RETURN_NONE;
  });
}

PyMethodDef kFunctions[] = {method("make", make), method("beside", beside), method("forward", forward),
                            method("move", move), {}};
PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "native", nullptr, -1, kFunctions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_native() {
  Logits::type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kLogits));
  return Logits::type ? PyModule_Create(&kModule) : nullptr;
}
