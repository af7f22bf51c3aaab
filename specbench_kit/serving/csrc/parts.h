// What the event loop is made of: its settings, the Python functions that it asks, the devices, and the tables that it
// writes.
#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <unordered_map>
#include <vector>

#include "../../models/executors/csrc/python.h"

namespace skit {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// `INTERFACE` of native_core.py.
inline constexpr long kInterface = 4;

// The structure `Settings` of native_core.py.
struct Settings {
  int64_t devices, on_edge, speculates, keeps_kv, scheduler, has_jitter, token_bytes, drafts, mixes_prompts, row_fields;
  int64_t is_pool, router, routes_rounds;
  double longest_response, options[6];
};

// The structure `ServerSettings` of native_core.py.
struct ServerSettings {
  int64_t admits, lru, additive, max_requests, stages, longest_draft;
  double kv_tokens, kv_capacity, idle_s;
};

// In the order of their numbers in native_core.py.
enum Router { kRoundRobin, kSessionAffinity, kLeastWork, kShortestExpectedTime };

enum Purpose { kRequest, kResponse, kRound, kUp, kDown, kPurposes };

// The columns that native_core.py puts together.
enum PerDevice {
  kRttS,
  kJitterS,
  kUpBytes,
  kDownBytes,
  kDraftBytes,
  kSpeed,
  kHalfRttS,
  kPrior,
  kMean,
  kSlo,
  kTypicalNew,
  kColumns
};

// What never changes of a device, side by side, since every round reads most of it.
struct alignas(64) Constants {
  double columns[kColumns];
  uint64_t streams[kPurposes];
  int64_t kind;
};

// The columns of `RoundRows` in round_table.py.
enum Field {
  kResponseNumber,
  kDraftS,
  kDrafted,
  kSubmitted,
  kAccepted,
  kCommitted,
  kContext,
  kPrompt,
  kTokens,
  kBegins,
  kEnds,
  kProactive,
  kRequestedS,
  kEarliestS,
  kGapS,
  kUpS,
  kDownS,
  kRoundBudgetS,
  kResponseBudgetS,
  kExpectedTokens,
  kWork,
  kCrosses,
  kReads,
  kFields
};
inline constexpr int kRecorded = 6;
inline constexpr int64_t kRoundColumns = 6;
inline constexpr int64_t kFirstWork = -2;  // Stands for the steps of rounds with recorded work; -1 is a prompt.
inline constexpr int64_t kDecision = -1;   // Stands for the model of a predictor's decision, which is no forward.
inline constexpr size_t kAhead = 2;        // How many requests before its turn a device of a batch is asked for.
inline constexpr int32_t kNowhere = -1;    // The home of a device whose response no server has.
inline constexpr int kBatchEnded = 1, kBatchExpected = 2;  // Columns of the table of batches.

// The tuple `CoreParts` of native_core.py, by the names of its fields.
class Parts {
 public:
  explicit Parts(PyObject* tuple) : tuple_(tuple) {}
  // Borrowed: the tuple holds what it has.
  PyObject* operator[](const char* name) const {
    PyObject* value = PyObject_GetAttrString(tuple_, name);
    if (!value) throw PythonError();
    Py_DECREF(value);
    return value;
  }

 private:
  PyObject* tuple_;
};

template <class T>
std::vector<T> copied(PyObject* object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE)) throw PythonError();
  const T* first = static_cast<const T*>(view.buf);
  std::vector<T> values(first, first + size_t(view.len) / sizeof(T));
  PyBuffer_Release(&view);
  return values;
}

// A reference to a Python function.
class Function {
 public:
  explicit Function(PyObject* function) : function_(function) { Py_INCREF(function); }
  Function(const Function&) = delete;
  ~Function() { Py_DECREF(function_); }
  operator PyObject*() const { return function_; }

 private:
  PyObject* function_;
};

// Calls a Python function that returns a number, or None.
inline PyObject* called(PyObject* function, std::initializer_list<PyObject*> arguments) {
  PyObject* values[10] = {};
  size_t count = 0;
  for (PyObject* value : arguments) values[count++] = value;
  PyObject* result = nullptr;
  if (std::all_of(values, values + count, [](PyObject* value) { return value != nullptr; }))
    result = PyObject_Vectorcall(function, values, count, nullptr);
  for (size_t i = 0; i < count; i++) Py_XDECREF(values[i]);
  if (!result) throw PythonError();
  return result;
}
inline PyObject* whole(int64_t value) { return PyLong_FromLongLong(value); }
inline double real_of(PyObject* owned) {
  const double value = PyFloat_AsDouble(owned);
  Py_DECREF(owned);
  if (value == -1 && PyErr_Occurred()) throw PythonError();
  return value;
}

// Seconds by whole numbers, from a Python function that is asked once for each of them.
class Remembered {
 public:
  explicit Remembered(PyObject* function) : function_(function) {}
  double operator()(int64_t first, int64_t second, int64_t third = 0, int64_t fourth = 0) {
    const Key key = {first, second, third, fourth};
    if (const auto found = seconds_.find(key); found != seconds_.end()) return found->second;
    return seconds_[key] = real_of(called(function_, {whole(first), whole(second), whole(third), whole(fourth)}));
  }

 private:
  struct Key {
    int64_t first, second, third, fourth;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      uint64_t mixed = uint64_t(key.first) * 0x9E3779B97F4A7C15u + uint64_t(key.second);
      mixed = (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9u + uint64_t(key.third);
      mixed = (mixed ^ (mixed >> 32)) * 0x94D049BB133111EBu + uint64_t(key.fourth);
      return size_t(mixed ^ (mixed >> 31));
    }
  };
  Function function_;
  std::unordered_map<Key, double, Hash> seconds_;
};

// The rounds of one kind of device: `PositionRates`, `RatesByPlace` or `RecordedRounds` of round_sources.py.
struct Source {
  std::vector<int64_t> rounds;       // [6, count]: steps, submitted, accepted, proactive, work, crosses
  std::vector<double> cumulative;    // Of drawn rounds, [places, count]; empty for recorded ones.
  std::vector<int64_t> next, first;  // Of recorded rounds: the one behind each, and the first of each record.
  std::vector<int64_t> begins;       // The place from which on each row of `cumulative` holds; empty if there is one.
  bool by_context;                   // Places count the whole context, else the tokens of the answer.
  int64_t count;
  const int64_t* columns() const { return rounds.data(); }
};

// The numbers of all requests with one number, one per device: `NextRequests` and what the response starts with.
struct Requests {
  std::vector<double> numbers;  // [5, devices]
};

enum class Place : uint8_t { kElsewhere, kBlocked, kWaiting, kInBatch };

struct alignas(64) Device {
  double row[kFields] = {};
  double start_s = 0, first_s = kInfinity, sent_s = 0, arrives_s = kInfinity, requested_s = 0;
  double submitted = 0, accepted = 0;  // Running sums, for the expected tokens.
  double at_server[4] = {};
  int64_t cached = 0, generated = 0, responses = 0, cursor = 0, prompt = 0, context = 0, remaining = 0;
  int64_t continued = 0, draft_cached = 0, kv_tokens = 0, kv_since = 0, enqueued = 0;
  int32_t home = 0;  // The server of its response; of a pool, none before it was routed.
  Place place = Place::kElsewhere;
};

// A message on its way to the server: earliest first, and at one moment the lowest device first.
struct Arrival {
  double at_s;
  int64_t client;
};
inline constexpr auto arrives_later = [](const Arrival& one, const Arrival& other) {
  return one.at_s > other.at_s || (one.at_s == other.at_s && one.client > other.client);
};

// Asks for all of an object that is needed soon: what devices do next is at random places of memory.
template <class T>
void prefetch(const T& object) {
  const char* first = reinterpret_cast<const char*>(&object);
  for (size_t offset = 0; offset < sizeof(T); offset += 64) __builtin_prefetch(first + offset, 1);
}

// A table in memory of numpy's, column after column; Python makes room when it is full.
struct Table {
  const int index;
  const size_t width;
  int64_t rows = 0, room = 0;
  double* columns = nullptr;

  // Makes sure that there is room, in memory into which no result looks.
  void own(PyObject* make_room) {
    if (rows < room) return;
    PyObject* found = called(make_room, {whole(index), whole(rows)});
    long long room_now, address;
    const bool read = PyArg_ParseTuple(found, "LL", &room_now, &address);
    Py_DECREF(found);
    if (!read) throw PythonError();
    room = room_now, columns = reinterpret_cast<double*>(address);
  }
  double& at(int64_t row, int column) { return columns[column * room + row]; }

  void add(const double* row, PyObject* make_room) {
    own(make_room);
    for (size_t i = 0; i < width; i++) columns[int64_t(i) * room + rows] = row[i];
    rows++;
  }
};

}  // namespace skit
