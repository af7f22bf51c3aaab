// The event loop of one server and its devices: what `Simulation` in ../simulation.py does with Python's objects, for
// the scenes that ../native_core.py says, with results that are the same to the last digit.
//
// Names are those of the Python files that each part repeats. Every floating-point operation is the one that numpy or
// Python does there, in that order; the compiler may not fuse them (-ffp-contract=off). What only a Python object knows
// (requests, latency models, the scatter of verifications) is asked of it, and remembered where it does not change.
#include <array>
#include <cmath>
#include <string>
#include <unordered_map>

#include "../../models/executors/csrc/python.h"
#include "schedulers.h"

namespace {

using namespace skit;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// `INTERFACE` of native_core.py.
constexpr long kInterface = 3;

// The structure `Settings` of native_core.py.
struct Settings {
  int64_t devices, on_edge, speculates, keeps_kv, admits, lru, additive, scheduler, max_requests, has_jitter;
  int64_t token_bytes, stages, drafts, mixes_prompts, longest_draft, row_fields;
  double kv_tokens, kv_capacity, longest_response, idle_s, options[6];
};

enum Purpose { kRequest, kResponse, kRound, kUp, kDown, kPurposes };

// The columns that native_core.py puts together.
enum PerDevice { kRttS, kJitterS, kUpBytes, kDownBytes, kDraftBytes, kSpeed, kHalfRttS, kPrior, kMean, kSlo, kColumns };

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
constexpr int kRecorded = 6;
constexpr int64_t kRoundColumns = 6;
constexpr int64_t kFirstWork = -2;  // Stands for the steps of rounds with recorded work; -1 is a prompt.
constexpr int64_t kDecision = -1;   // Stands for the model of a predictor's decision, which is no forward.
constexpr size_t kAhead = 2;        // How many requests before its turn a device of a batch is asked for.

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

// Calls a Python function that returns a number, or None.
PyObject* called(PyObject* function, std::initializer_list<PyObject*> arguments) {
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
PyObject* whole(int64_t value) { return PyLong_FromLongLong(value); }
double real_of(PyObject* owned) {
  const double value = PyFloat_AsDouble(owned);
  Py_DECREF(owned);
  if (value == -1 && PyErr_Occurred()) throw PythonError();
  return value;
}

// Seconds by whole numbers, from a Python function that is asked once for each of them.
class Remembered {
 public:
  explicit Remembered(PyObject* function) : function_(function) { Py_INCREF(function); }
  Remembered(const Remembered&) = delete;
  ~Remembered() { Py_DECREF(function_); }
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
  PyObject* function_;
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
  Place place = Place::kElsewhere;
};

// A message on its way to the server: earliest first, and at one moment the lowest device first.
struct Arrival {
  double at_s;
  int64_t client;
};
constexpr auto arrives_later = [](const Arrival& one, const Arrival& other) {
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

  void add(const double* row, PyObject* make_room) {
    if (rows == room) {
      PyObject* found = called(make_room, {whole(index), whole(rows)});
      long long room_now, address;
      const bool read = PyArg_ParseTuple(found, "LL", &room_now, &address);
      Py_DECREF(found);
      if (!read) throw PythonError();
      room = room_now, columns = reinterpret_cast<double*>(address);
    }
    for (size_t i = 0; i < width; i++) columns[int64_t(i) * room + rows] = row[i];
    rows++;
  }
};

class Core {
 public:
  Core(const Settings& settings, const Parts& parts)
      : settings_(settings),
        draft_s_(parts["draft_s"]),
        isolated_s_(parts["isolated_s"]),
        request_(parts["requests"]),
        batch_s_(parts["batch_s"]),
        estimated_s_(parts["estimated_s"]),
        too_long_(parts["check_lengths"]),
        make_room_(parts["make_room"]),
        ended_(parts["ended"]) {
    const auto pieces = copied<int64_t>(parts["pieces"]);
    for (size_t i = 0; i + 6 <= pieces.size(); i += 6) {
      const size_t work = size_t(pieces[i]);
      if (work >= works_.size()) works_.resize(work + 1);
      works_[work].push_back({pieces[i + 1], pieces[i + 2], pieces[i + 3], pieces[i + 4], pieces[i + 5]});
    }
    if (settings.row_fields != kFields) throw InvalidArgument{"other fields of a round"};
    for (PyObject* function : functions()) Py_INCREF(function);
    const List sources(parts["sources"]);
    for (int i = 0; i < sources.size(); i++) {
      const List source(sources[i]);
      sources_.push_back({copied<int64_t>(source[0]), copied<double>(source[1]), copied<int64_t>(source[2]),
                          copied<int64_t>(source[3]), copied<int64_t>(source[4]), PyObject_IsTrue(source[5]) == 1, 0});
      sources_.back().count = int64_t(sources_.back().rounds.size()) / kRoundColumns;
    }
    const size_t count = size_t(settings.devices);
    devices_.resize(count);
    constants_.resize(count);
    const auto streams = copied<uint64_t>(parts["streams"]);   // [purposes, devices]
    const auto columns = copied<double>(parts["per_device"]);  // [columns, devices]
    const auto kinds = copied<int64_t>(parts["kinds"]);
    for (size_t client = 0; client < count; client++) {
      Constants& constants = constants_[client];
      for (size_t i = 0; i < kColumns; i++) constants.columns[i] = columns[i * count + client];
      for (size_t i = 0; i < kPurposes; i++) constants.streams[i] = streams[i * count + client];
      constants.kind = kinds[client];
    }
    server_ = {std::vector<Waiting>(count), settings.idle_s,
               settings.additive != 0,      settings.max_requests,
               settings.kv_tokens,          [this](const BatchSums& sums) { return estimated(sums); }};
    queue_ = make_queue();
    stage_free_s_.resize(size_t(settings.stages));
  }
  Core(const Core&) = delete;
  ~Core() {
    for (PyObject* function : functions()) Py_DECREF(function);
  }

  // Runs up to `until_s`; goes on where it stopped.
  void run(double until_s) {
    if (!begun_) begin();
    for (Table* table : {&rounds_, &responses_, &batches_}) table->room = table->rows;  // Python has what was written.
    if (is_pipeline()) run_pipeline(until_s);
    else run_alone(until_s);
  }

  int64_t rows(int table) const { return (table == 0 ? rounds_ : table == 1 ? responses_ : batches_).rows; }

  // The devices' own columns, as the arrays of `Devices` and `RoundTable` hold them.
  void write_state(double* rows, double* start_s, double* first_s, double* sent_s, double* at_server) const {
    for (size_t client = 0; client < devices_.size(); client++) {
      const Device& device = devices_[client];
      std::copy_n(device.row, kFields, rows + client * kFields);
      std::copy_n(device.at_server, 4, at_server + client * 4);
      start_s[client] = device.start_s, first_s[client] = device.first_s, sent_s[client] = device.sent_s;
    }
  }

  // The clients whose rounds are at the server: in its batch, waiting, or blocked.
  std::vector<int32_t> unanswered() const {
    std::vector<int32_t> clients, waiting;
    for (const InFlight& batch : in_flight_) clients.insert(clients.end(), batch.clients.begin(), batch.clients.end());
    for (size_t client = 0; client < devices_.size(); client++)
      if (devices_[client].place == Place::kWaiting) waiting.push_back(int32_t(client));
    std::sort(waiting.begin(), waiting.end(),
              [&](int32_t one, int32_t other) { return devices_[one].enqueued < devices_[other].enqueued; });
    clients.insert(clients.end(), waiting.begin(), waiting.end());
    clients.insert(clients.end(), blocked_.begin(), blocked_.end());
    return clients;
  }

  int64_t events = 0, refusals = 0, evictions = 0, peak = 0;
  double idle_waiting_s = 0, idle_since_s = kInfinity;

 private:
  // A batch under way; `number` is its row in the table of batches.
  // One piece of a round's recorded work: `Work` of drafting_work.py.
  struct Piece {
    int64_t model, added, cached, reads_prompt, has_text;
  };

  // A forward of one model over the requests that take their piece of this number with it.
  struct Forward {
    int64_t step, model;
    BatchSums sums;
  };

  // A piece that a request takes by itself: a prompt, or a decision.
  struct Alone {
    int64_t model, added, cached;
  };

  // What a server that drafts does for a batch: `RoundDrafting` of execution.py.
  struct Drafting {
    BatchSums verified;
    std::vector<Forward> forwards;
    std::vector<Alone> alone;
    int64_t longest = 0;             // The most tokens that were drafted for a request, without recorded work.
    std::vector<int64_t> submitted;  // Of each request, where the step holds prompts beside others.
    bool has_drafted = false;        // False where nothing was forwarded for drafts.
  };

  struct InFlight {
    std::vector<int32_t> clients;
    double started_s, ended_s;
    int64_t number;
    double drafted;                  // The most tokens that count of each request.
    std::vector<int64_t> submitted;  // The same request by request, where they differ.
    std::vector<int64_t> computed;   // The tokens of each request that are computed, where some are in part.
  };

  std::array<PyObject*, 6> functions() const {
    return {request_, batch_s_, estimated_s_, too_long_, make_room_, ended_};
  }

  // ---- The order of events: `Simulation`.

  // Whether the server drafts by recorded work.
  bool takes_works() const { return settings_.drafts && !works_.empty(); }

  bool is_pipeline() const { return settings_.stages > 1; }

  void run_alone(double until_s) {
    while (true) {
      const double now_s = next_s();
      if (!(now_s <= until_s)) break;
      if (!in_flight_.empty()) {
        // Rounds that arrived during the batch were there before the memory that it frees, so they are admitted first.
        receive(in_flight_.front().ended_s, true);
        complete();
        events++;
      }
      receive(now_s, false);
      if (waiting_count_) decide(now_s);
    }
    receive(until_s, false);
  }

  // A pool of a single server, which takes every arrival at its own time: `_run_pool`.
  void run_pipeline(double until_s) {
    while (true) {
      double now_s = std::min(arrives_s(), retry_s_);
      if (!in_flight_.empty()) now_s = std::min(now_s, in_flight_.front().ended_s);
      if (!(now_s <= until_s)) break;
      const int64_t before = events;
      while (!in_flight_.empty() && in_flight_.front().ended_s <= now_s) {
        complete();
        events++;
      }
      receive(now_s, false);
      const bool is_asked = events != before || retry_s_ <= now_s;
      if (is_asked && has_room() && waiting_count_) decide(now_s);
    }
  }

  double arrives_s() const { return on_their_way_.empty() ? kInfinity : on_their_way_.front().at_s; }
  bool has_room() const { return int64_t(in_flight_.size()) < settings_.stages; }

  // ---- Random numbers and messages: counter_rng.py, `_message_s` of round_table.py.

  static uint64_t mixed(uint64_t number) {
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9u;
    number = (number ^ (number >> 27)) * 0x94D049BB133111EBu;
    return number ^ (number >> 31);
  }
  double uniform(Purpose purpose, size_t client, int64_t count) const {
    const uint64_t stream = constants_[client].streams[purpose];
    return double(mixed(stream + uint64_t(count) * 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53;
  }
  double of(PerDevice column, size_t client) const { return constants_[client].columns[column]; }

  double message_s(Purpose purpose, size_t client, double size) const {
    double seconds = of(kRttS, client) / 2 + size / of(purpose == kUp ? kUpBytes : kDownBytes, client);
    if (settings_.has_jitter) {
      const double drawn = uniform(purpose, client, devices_[client].generated);
      seconds = std::max(0.0, seconds + of(kJitterS, client) * (2 * drawn - 1));
    }
    return seconds;
  }

  // ---- The devices' rounds: `RoundTable`.

  void begin() {
    begun_ = true;
    for (size_t client = 0; client < devices_.size(); client++) {
      devices_[client].submitted = of(kPrior, client), devices_[client].accepted = of(kMean, client);
      set_up(client);
      send(client, 0.0, 0.0);
    }
  }

  void conclude(size_t client, double drafted) {
    Device& device = devices_[client];
    double* row = device.row;
    row[kSubmitted] = std::min(row[kSubmitted], drafted);
    row[kAccepted] = std::min(row[kAccepted], drafted);
    const int64_t accepted = int64_t(row[kAccepted]), steps = int64_t(row[kDrafted]);
    const int64_t committed = std::min(accepted + 1, device.remaining);
    device.submitted += row[kSubmitted], device.accepted += double(accepted);
    if (steps > 0) {
      device.draft_cached = device.context + std::min(accepted, steps - 1);
    } else if (row[kProactive] > 0) {
      device.draft_cached = device.context + accepted;  // It was read while the device waited.
    }
    device.context += committed, device.remaining -= committed;
    const bool ends = device.remaining == 0;
    const double down_s = message_s(kDown, client, double((accepted + 1) * settings_.token_bytes));
    row[kCommitted] = double(committed), row[kEnds] = ends, row[kDownS] = row[kCrosses] > 0 ? down_s : 0.0;
  }

  void set_up(size_t client) {
    Device& device = devices_[client];
    double* row = device.row;
    const bool begins = device.remaining == 0;
    row[kBegins] = begins, row[kEarliestS] = -kInfinity, row[kGapS] = 0.0;
    row[kCommitted] = row[kEnds] = row[kDownS] = 0.0;
    if (begins) begin_response(client);
    const Source& source = sources_[size_t(constants_[client].kind)];
    const double drawn = uniform(kRound, client, device.generated);
    int64_t index = device.cursor;
    if (source.cumulative.empty()) {
      if (index < 0) {
        device.continued = 1;
        index = source.first[size_t(drawn * double(source.first.size()))];
      }
      device.cursor = source.next[size_t(index)];
    } else {
      const int64_t place = source.by_context ? device.context : device.context - device.prompt;
      const auto& from = source.begins;
      const int64_t rates = from.empty() ? 0 : std::upper_bound(from.begin(), from.end(), place) - from.begin() - 1;
      const auto cumulative = source.cumulative.begin() + rates * source.count;
      index = std::upper_bound(cumulative, cumulative + source.count, drawn) - cumulative;
      index = std::min(index, source.count - 1);
    }
    const int64_t* column = source.columns() + index;
    const int64_t steps = column[0], submitted = column[source.count];
    row[kDrafted] = double(steps), row[kSubmitted] = double(submitted);
    row[kAccepted] = double(column[2 * source.count]), row[kProactive] = double(column[3 * source.count]);
    row[kWork] = double(column[4 * source.count]), row[kReads] = double(!device.continued);
    row[kCrosses] = begins || (column[5 * source.count] && settings_.on_edge);
    row[kPrompt] = double(device.prompt), row[kContext] = double(device.context);
    row[kTokens] = double(device.context - device.prompt + device.remaining);
    row[kResponseNumber] = double(device.responses - 1), row[kRequestedS] = device.requested_s;
    set_times(client, begins, steps, submitted);
    device.generated++;
  }

  void begin_response(size_t client) {
    Device& device = devices_[client];
    while (int64_t(requests_.size()) <= device.responses) {
      PyObject* block = called(request_, {whole(int64_t(requests_.size()))});
      try {
        requests_.push_back({copied<double>(block)});
      } catch (...) {
        Py_DECREF(block);
        throw;
      }
      Py_DECREF(block);
    }
    const double* numbers = requests_[size_t(device.responses)].numbers.data() + client;
    const size_t count = devices_.size();
    device.row[kEarliestS] = device.requested_s = numbers[0];
    device.row[kGapS] = numbers[count];
    device.prompt = device.context = int64_t(numbers[2 * count]);
    device.draft_cached = device.prompt - 1;
    device.remaining = int64_t(numbers[3 * count]);
    device.cursor = int64_t(numbers[4 * count]);
    device.continued = 0;
    device.responses++;
  }

  void set_times(size_t client, bool begins, int64_t steps, int64_t submitted) {
    Device& device = devices_[client];
    double* row = device.row;
    double draft_s = 0, draft_bytes = 0;
    int64_t sent = begins ? device.prompt : 0;
    const int64_t kind = constants_[client].kind;
    if (settings_.on_edge) {
      if (row[kWork] >= 0) {
        draft_s = draft_s_(kind, kFirstWork - int64_t(row[kWork]), int64_t(row[kReads]), device.context);
      } else {
        draft_s = draft_s_(kind, steps, device.context - device.draft_cached, device.draft_cached);
        if (begins && (steps > 0 || row[kProactive] == 0)) draft_s += draft_s_(kind, -1, device.prompt, 0);
      }
      sent += submitted;
      draft_bytes = of(kDraftBytes, client) * double(submitted);
    }
    double up_s = message_s(kUp, client, double(sent * settings_.token_bytes) + draft_bytes);
    if (!(row[kCrosses] > 0)) up_s = 0.0;
    double expected = 1;
    if (settings_.speculates) expected += double(submitted) * device.accepted / device.submitted;
    const double speed = of(kSpeed, client),
                 down_s = settings_.on_edge && row[kCrosses] > 0 ? of(kHalfRttS, client) : 0.0;
    const double network_s = settings_.on_edge ? up_s + down_s : 0.0;
    row[kDraftS] = draft_s, row[kUpS] = up_s, row[kExpectedTokens] = expected;
    row[kRoundBudgetS] = expected / speed - draft_s - network_s;
    row[kResponseBudgetS] = (double(device.context - device.prompt) + expected) / speed - down_s;
  }

  // ---- What devices do: `Devices`.

  void send(size_t client, double answered_s, double free_s) {
    Device& device = devices_[client];
    const double* row = device.row;
    if (row[kBegins] > 0) {
      const double start_s = std::max(row[kEarliestS], answered_s + row[kGapS]);
      if (start_s < kInfinity && row[kPrompt] + row[kTokens] > settings_.longest_response)
        Py_DECREF(called(too_long_, {whole(int64_t(row[kPrompt])), whole(int64_t(row[kTokens]))}));
      device.start_s = start_s, device.first_s = kInfinity;
      free_s = std::max(start_s, answered_s);
    }
    device.sent_s = free_s + row[kDraftS];
    device.arrives_s = device.sent_s + row[kUpS];
    if (device.arrives_s < kInfinity) {
      on_their_way_.push_back({device.arrives_s, int64_t(client)});
      std::push_heap(on_their_way_.begin(), on_their_way_.end(), arrives_later);
    }
  }

  double free_after(size_t client, double answered_s, double sent_s) {
    const double* row = devices_[client].row;
    if (!settings_.on_edge || row[kProactive] == 0) return answered_s;
    const int64_t kind = constants_[client].kind;
    if (row[kWork] >= 0) {
      const int64_t work = kFirstWork - int64_t(row[kWork]), reads = int64_t(row[kReads]);
      double free_s = sent_s;
      for (int64_t pieces = 1; pieces <= int64_t(row[kProactive]) && free_s < answered_s; pieces++)
        free_s = sent_s + draft_s_(kind, work, 2 * pieces + reads, int64_t(row[kContext]));
      return std::max(answered_s, free_s);
    }
    const double step_s = draft_s_(kind, 1, 1, int64_t(row[kContext] + row[kCommitted]));
    if (step_s == 0) return answered_s;
    const double begun = std::min(std::ceil((answered_s - sent_s) / step_s), row[kProactive]);
    return std::max(answered_s, sent_s + begun * step_s);
  }

  // ---- KV: `KvMemory`.

  bool admit(size_t client, int64_t tokens) {
    if (double(kv_used_ + tokens) > settings_.kv_capacity) return false;
    devices_[client].kv_since = kv_admissions_++;
    devices_[client].kv_tokens = tokens;
    kv_used_ += tokens;
    return true;
  }

  void pin(const Decision& decision, const Drafting& drafting) {
    for (size_t place = 0; place < decision.batch.size(); place++) {
      const int32_t client = decision.batch[place];
      Device& device = devices_[client];
      int64_t drafted = drafting.longest;
      if (takes_works()) drafted = is_in_part(decision, place) ? 0 : int64_t(device.row[kSubmitted]);
      else if (!drafting.submitted.empty()) drafted = drafting.submitted[place];
      if (settings_.lru || !device.kv_tokens) device.kv_since = kv_admissions_++;
      const int64_t tokens = computed(decision, place) + server_.rounds[client].cached + drafted;
      kv_used_ += tokens - device.kv_tokens;
      device.kv_tokens = tokens;
    }
    if (double(kv_used_) > settings_.kv_capacity) make_room();
    peak = std::max(peak, kv_used_);
  }

  void make_room() {
    std::vector<int32_t> candidates;
    for (size_t client = 0; client < devices_.size(); client++)
      if (devices_[client].kv_tokens && devices_[client].place != Place::kInBatch)
        candidates.push_back(int32_t(client));
    const auto waits = [&](int32_t client) { return devices_[client].place == Place::kWaiting; };
    // Python sorts by rank, turns the order around without `lru`, and moves what waits to the end. Ranks differ.
    std::stable_sort(candidates.begin(), candidates.end(), [&](int32_t one, int32_t other) {
      if (waits(one) != waits(other)) return waits(other);
      const int64_t first = devices_[one].kv_since, second = devices_[other].kv_since;
      return settings_.lru ? first < second : first > second;
    });
    std::vector<int32_t> evicted;
    for (const int32_t client : candidates) {
      if (double(kv_used_) <= settings_.kv_capacity) break;
      kv_used_ -= devices_[client].kv_tokens;
      devices_[client].kv_tokens = 0;
      evicted.push_back(client);
    }
    evictions += int64_t(evicted.size());
    for (const int32_t client : evicted) {
      Device& device = devices_[client];
      device.cached = 0;
      device.at_server[2] += device.at_server[3], device.at_server[3] = 0;
      if (!waits(client)) continue;
      Waiting& request = server_.rounds[client];
      request.added += request.cached, request.cached = 0;
      request.isolated_s = isolated_s_(request.added, 0);
      queue_->changed(client);
    }
  }

  // ---- The server: `VerificationServer`.

  double next_s() const {
    if (!in_flight_.empty()) return in_flight_.front().ended_s;
    return std::max(std::min(arrives_s(), retry_s_), free_s_);
  }

  void receive(double until_s, bool before) {
    while (!on_their_way_.empty() &&
           (before ? on_their_way_.front().at_s < until_s : on_their_way_.front().at_s <= until_s)) {
      const size_t client = size_t(on_their_way_.front().client);
      std::pop_heap(on_their_way_.begin(), on_their_way_.end(), arrives_later);
      on_their_way_.pop_back();
      // The next one, and those of whom one is the next but one.
      for (size_t i = 0; i < std::min<size_t>(3, on_their_way_.size()); i++) {
        prefetch(devices_[size_t(on_their_way_[i].client)]);
        prefetch(server_.rounds[size_t(on_their_way_[i].client)]);
      }
      arrive(client);
    }
  }

  void arrive(size_t client) {
    events++;
    Device& device = devices_[client];
    const double* row = device.row;
    Waiting& request = server_.rounds[client];
    request.arrived_s = device.arrives_s;
    request.deadline_s = device.sent_s + row[kUpS] + row[kRoundBudgetS];
    request.cached = device.cached;
    request.added = int64_t(row[kContext]) - device.cached + (settings_.on_edge ? int64_t(row[kSubmitted]) : 0);
    request.expected_tokens = row[kExpectedTokens];
    request.response_deadline_s = device.start_s + row[kResponseBudgetS];
    request.isolated_s = isolated_s_(request.added, request.cached);
    request.generation++;
    request.scheduled = false;
    device.at_server[0] = request.arrived_s, device.at_server[1] = request.deadline_s;
    device.at_server[2] = double(request.added), device.at_server[3] = double(request.cached);
    device.arrives_s = kInfinity;
    if (request.cached || !settings_.admits) return enqueue(client);
    device.place = Place::kBlocked;
    // Sessions that were evicted return before those that have not begun, or they might starve.
    if (row[kContext] <= row[kPrompt]) blocked_.push_back(int32_t(client));
    else blocked_.push_front(int32_t(client));
    admit_blocked();
  }

  void admit_blocked() {
    while (!blocked_.empty()) {
      const int32_t client = blocked_.front();
      if (!admit(size_t(client), server_.rounds[client].kv_tokens())) return;
      blocked_.pop_front();
      enqueue(size_t(client));
    }
  }

  void enqueue(size_t client) {
    devices_[client].place = Place::kWaiting;
    devices_[client].enqueued = enqueued_++;
    waiting_count_++;
    queue_->add(int32_t(client));
  }

  void decide(double now_s) {
    const double free_s = is_pipeline() ? std::max(free_s_, stage_free_s_[0]) : free_s_;
    if (now_s < free_s) {
      retry_s_ = free_s;
      return;
    }
    Decision decision = queue_->next_batch(now_s);
    if (decision.batch.empty()) {
      refusals++;
      idle_since_s = std::min(idle_since_s, now_s);
      retry_s_ = decision.retry_s > now_s ? decision.retry_s : kInfinity;
      return;
    }
    if (idle_since_s < kInfinity) {
      idle_waiting_s += now_s - idle_since_s;
      idle_since_s = kInfinity;
    }
    start(std::move(decision), now_s);
    retry_s_ = is_pipeline() && waiting_count_ && has_room() ? stage_free_s_[0] : kInfinity;
  }

  // Returns when a batch leaves the last stage that enters now: `Stages`.
  double enter_stages(double now_s, double pass_s, double transfers_s) {
    const double count = double(settings_.stages);
    const double stage_s = (pass_s - transfers_s) / count, transfer_s = transfers_s / (count - 1);
    double left_s = now_s - transfer_s;
    for (double& free_s : stage_free_s_) free_s = left_s = std::max(left_s + transfer_s, free_s) + stage_s;
    return left_s;
  }

  // Whether only a part of a request's round is computed in a batch.
  bool is_in_part(const Decision& decision, size_t place) const {
    return !decision.computed.empty() && decision.computed[place] < server_.rounds[decision.batch[place]].added;
  }
  int64_t computed(const Decision& decision, size_t place) const {
    return decision.computed.empty() ? server_.rounds[decision.batch[place]].added : decision.computed[place];
  }

  // Recorded rounds take their recorded works, and read prompts one after another.
  Drafting draft_works(const Decision& decision) const {
    Drafting drafting;
    drafting.has_drafted = true;
    for (size_t place = 0; place < decision.batch.size(); place++) {
      const int32_t client = decision.batch[place];
      const double* row = devices_[client].row;
      const Waiting& request = server_.rounds[client];
      const int64_t context = request.added + request.cached;
      if (is_in_part(decision, place)) {
        drafting.verified.add(computed(decision, place), request.cached);
        continue;
      }
      drafting.verified.add(request.added + int64_t(row[kSubmitted]), request.cached);
      int64_t step = 0;
      for (const Piece& piece : works_[size_t(row[kWork])]) {
        const int64_t added = piece.added + piece.reads_prompt * context;
        const int64_t cached = piece.cached + piece.has_text * context;
        if (piece.model == kDecision) {
          drafting.alone.push_back({kDecision, 0, 0});
        } else if (!piece.reads_prompt) {
          const auto same = [&](const Forward& forward) {
            return forward.step == step && forward.model == piece.model;
          };
          auto found = std::find_if(drafting.forwards.begin(), drafting.forwards.end(), same);
          if (found == drafting.forwards.end())
            found = drafting.forwards.insert(drafting.forwards.end(), {step, piece.model, {}});
          found->sums.add(added, cached);
          step++;
        } else if (row[kReads] > 0) {
          drafting.alone.push_back({piece.model, added, cached});
        }
      }
    }
    return drafting;
  }

  Drafting draft(const Decision& decision, const BatchSums& sums) const {
    if (takes_works()) return draft_works(decision);
    Drafting drafting;
    drafting.verified = sums;
    const auto has_kv = [&](int32_t client) { return server_.rounds[client].cached > 0; };
    const bool all_go_on =
        decision.computed.empty() && std::all_of(decision.batch.begin(), decision.batch.end(), has_kv);
    drafting.has_drafted = settings_.drafts && (all_go_on || settings_.mixes_prompts);
    if (!drafting.has_drafted) return drafting;
    drafting.verified = {};
    const auto forward = [&](int64_t step) -> BatchSums& {
      while (int64_t(drafting.forwards.size()) <= step)
        drafting.forwards.push_back({int64_t(drafting.forwards.size()), 0, {}});
      return drafting.forwards[size_t(step)].sums;
    };
    for (size_t place = 0; place < decision.batch.size(); place++) {
      const int32_t client = decision.batch[place];
      const double* row = devices_[client].row;
      const Waiting& request = server_.rounds[client];
      const bool goes_on = request.cached && !is_in_part(decision, place);
      const int64_t added = computed(decision, place), limit = goes_on ? settings_.longest_draft : 0;
      const int64_t steps = std::min(int64_t(row[kDrafted]), limit);
      const int64_t submitted = std::min(int64_t(row[kSubmitted]), limit);
      // The first forward of what drafts reads the prompts too.
      if (!goes_on) forward(0).add(added, request.cached);
      for (int64_t step = 0; step < steps; step++) forward(step).add(1, request.cached + step);
      drafting.verified.add(added + submitted, request.cached);
      drafting.longest = std::max(drafting.longest, submitted);
      if (!all_go_on) drafting.submitted.push_back(submitted);
    }
    return drafting;
  }

  static PyObject* counts_of(const BatchSums& sums) {
    return Py_BuildValue("(LLLLLLL)", (long long)(sums.linear), (long long)(sums.interactions), (long long)(sums.pairs),
                         (long long)(sums.cached), (long long)(sums.logit_rows), (long long)(sums.requests),
                         (long long)(sums.longest));
  }

  static PyObject* forwards_of(const Drafting& drafting) {
    if (!drafting.has_drafted) return Py_NewRef(Py_None);
    PyObject* forwards = PyList_New(Py_ssize_t(drafting.forwards.size()));
    for (size_t i = 0; forwards && i < drafting.forwards.size(); i++) {
      const Forward& forward = drafting.forwards[i];
      PyObject* counts = Py_BuildValue("(LN)", (long long)(forward.model), counts_of(forward.sums));
      if (counts) PyList_SET_ITEM(forwards, Py_ssize_t(i), counts);
      else Py_CLEAR(forwards);
    }
    return forwards;
  }

  static PyObject* alone_of(const Drafting& drafting) {
    PyObject* pieces = PyList_New(Py_ssize_t(drafting.alone.size()));
    for (size_t i = 0; pieces && i < drafting.alone.size(); i++) {
      const Alone& piece = drafting.alone[i];
      PyObject* numbers =
          Py_BuildValue("(LLL)", (long long)(piece.model), (long long)(piece.added), (long long)(piece.cached));
      if (numbers) PyList_SET_ITEM(pieces, Py_ssize_t(i), numbers);
      else Py_CLEAR(pieces);
    }
    return pieces;
  }

  void start(Decision&& decision, double now_s) {
    const std::vector<int32_t>& batch = decision.batch;
    BatchSums sums;
    PythonSum added_s;
    int64_t answers = 0;
    for (size_t place = 0; place < batch.size(); place++) {
      const Waiting& request = server_.rounds[batch[place]];
      devices_[batch[place]].place = Place::kInBatch;
      sums.add(computed(decision, place), request.cached);
      added_s.add(request.isolated_s - settings_.idle_s);
      answers += !is_in_part(decision, place);
    }
    waiting_count_ -= int64_t(batch.size());
    Drafting drafting = draft(decision, sums);
    PyObject* times = called(batch_s_, {PyFloat_FromDouble(now_s), counts_of(drafting.verified), forwards_of(drafting),
                                        alone_of(drafting), whole(answers)});
    double seconds, second;
    if (!PyArg_ParseTuple(times, "dd", &seconds, &second)) {
      Py_DECREF(times);
      throw PythonError();
    }
    Py_DECREF(times);
    pin(decision, drafting);
    const bool is_sum = settings_.additive && decision.computed.empty();
    const double batch_s = is_sum ? settings_.idle_s + added_s.value() : estimated(sums);
    double ended_s = now_s + seconds;
    if (is_pipeline()) ended_s = enter_stages(now_s, seconds, second);
    else free_s_ = second;
    const double row[] = {now_s,
                          ended_s,
                          now_s + batch_s,
                          double(batch.size()),
                          double(waiting_count_ + int64_t(blocked_.size())),
                          double(sums.linear),
                          double(sums.cached)};
    batches_.add(row, make_room_);
    const double drafted = settings_.on_edge || takes_works() ? kInfinity : double(drafting.longest);
    in_flight_.push_back({std::move(decision.batch), now_s, ended_s, batches_.rows - 1, drafted,
                          std::move(drafting.submitted), std::move(decision.computed)});
  }

  // Lets requests that were computed in part wait for the rest, and returns the batch without them.
  InFlight requeue_chunks(InFlight&& ended) {
    InFlight answered{{}, ended.started_s, ended.ended_s, ended.number, ended.drafted, {}, {}};
    for (size_t place = 0; place < ended.clients.size(); place++) {
      const int32_t client = ended.clients[place];
      Waiting& request = server_.rounds[client];
      const int64_t tokens = ended.computed[place];
      if (tokens == request.added) {
        answered.clients.push_back(client);
        if (!ended.submitted.empty()) answered.submitted.push_back(ended.submitted[place]);
        continue;
      }
      Device& device = devices_[client];
      request.added -= tokens, request.cached += tokens, request.scheduled = false;
      request.isolated_s = isolated_s_(request.added, request.cached);
      device.at_server[2] = double(request.added), device.at_server[3] = double(request.cached);
      device.cached = request.cached;
      kv_used_ += device.cached - device.kv_tokens;
      device.kv_tokens = device.cached;
      enqueue(size_t(client));
    }
    return answered;
  }

  void complete() {
    InFlight ended = std::move(in_flight_.front());
    in_flight_.pop_front();
    if (!ended.computed.empty()) ended = requeue_chunks(std::move(ended));
    const std::vector<int32_t>& batch = ended.clients;
    for (size_t i = 0; i < batch.size(); i++) {
      if (i + kAhead < batch.size()) {
        prefetch(devices_[size_t(batch[i + kAhead])]);
        prefetch(constants_[size_t(batch[i + kAhead])]);
      }
      const int32_t client = batch[i];
      Device& device = devices_[client];
      const double sent_s = device.sent_s, start_s = device.start_s, slo = of(kSlo, client);
      conclude(client, ended.submitted.empty() ? ended.drafted : double(ended.submitted[i]));
      const double answered_s = ended.ended_s + device.row[kDownS], first_s = std::min(device.first_s, answered_s);
      const bool ends = device.row[kEnds] > 0;
      double round[17] = {double(client), slo,   double(ended.number), ended.started_s, ended.ended_s,
                          answered_s,     sent_s};
      std::copy_n(device.at_server, 4, round + 7);
      std::copy_n(device.row, kRecorded, round + 11);
      rounds_.add(round, make_room_);
      if (ends) {
        const double tokens = device.row[kTokens];
        const double response[] = {double(client),      slo,    start_s, first_s, answered_s,
                                   device.row[kPrompt], tokens, tokens};
        responses_.add(response, make_room_);
      }
      const bool keeps_kv = settings_.keeps_kv && !ends;
      device.cached = keeps_kv ? int64_t(device.row[kContext] + device.row[kCommitted]) - 1 : 0;
      kv_used_ += device.cached - device.kv_tokens;
      device.kv_tokens = device.cached;
      device.first_s = first_s;
      device.place = Place::kElsewhere;
      const double free_s = free_after(size_t(client), answered_s, sent_s);
      set_up(client);
      send(client, answered_s, free_s);
    }
    admit_blocked();
    if (is_pipeline())
      free_s_ = real_of(called(ended_, {PyFloat_FromDouble(ended.ended_s), whole(int64_t(batch.size()))}));
  }

  double estimated(const BatchSums& sums) {
    return real_of(
        called(estimated_s_, {whole(sums.linear), whole(sums.interactions), whole(sums.pairs), whole(sums.cached),
                              whole(sums.logit_rows), whole(sums.requests), whole(sums.longest)}));
  }

  std::unique_ptr<Queue> make_queue() {
    const double* options = settings_.options;
    switch (settings_.scheduler) {
      case 0:
        return std::make_unique<Fcfs>(server_);
      case 1:
        return std::make_unique<Edf>(server_, options[0] != 0);
      case 2:
        return std::make_unique<Static>(server_, int64_t(options[0]), options[1], int64_t(options[2]));
      case 3:
        return std::make_unique<PrefillFirst>(server_, int64_t(options[0]));
      case 4:
        return std::make_unique<WispPaper>(server_, options[0], options[1] != 0, options[2], options[3] != 0);
      case 5:
        return std::make_unique<WispPromise>(
            server_, PromiseOptions{options[0], options[1], options[2], options[3], options[4], options[5]});
      case 6:
        return std::make_unique<Chunked>(server_, int64_t(options[0]));
      default:
        throw InvalidArgument{"a scheduler that is not there"};
    }
  }

  const Settings settings_;
  std::vector<Source> sources_;
  std::vector<std::vector<Piece>> works_;  // Of a server that drafts from a trace.
  Remembered draft_s_, isolated_s_;
  PyObject *request_, *batch_s_, *estimated_s_, *too_long_, *make_room_, *ended_;
  std::vector<Requests> requests_;
  std::vector<Device> devices_;
  std::vector<Constants> constants_;
  Server server_;
  std::unique_ptr<Queue> queue_;
  std::vector<Arrival> on_their_way_;  // A heap.
  std::deque<int32_t> blocked_;
  std::deque<InFlight> in_flight_;    // In the order in which they began, at most one for each stage of a pipeline.
  std::vector<double> stage_free_s_;  // From when on the next batch may enter each stage of a pipeline.
  Table rounds_{0, 17}, responses_{1, 8}, batches_{2, 7};
  bool begun_ = false;
  int64_t waiting_count_ = 0, enqueued_ = 0, kv_used_ = 0, kv_admissions_ = 0;
  double free_s_ = 0, retry_s_ = kInfinity;
};

constexpr const char* kCapsule = "specbench_kit.serving.core";

Core& core_of(PyObject* capsule) {
  void* core = PyCapsule_GetPointer(capsule, kCapsule);
  if (!core) throw PythonError();
  return *static_cast<Core*>(core);
}

// make(parts): returns a core that stands at the beginning.
PyObject* make(PyObject*, PyObject* const* values, Py_ssize_t count) {
  return guarded([&] {
    const Parts parts(arguments(values, count, 1)[0]);
    Settings settings;
    {
      const Bytes bytes(parts["settings"]);
      settings = *static_cast<const Settings*>(bytes.data(sizeof(Settings)));
    }
    auto core = std::make_unique<Core>(settings, parts);
    PyObject* capsule = PyCapsule_New(core.get(), kCapsule, [](PyObject* object) {
      delete static_cast<Core*>(PyCapsule_GetPointer(object, kCapsule));
    });
    if (!capsule) throw PythonError();
    core.release();
    return capsule;
  });
}

// run(core, until_s, rows, start_s, first_s, sent_s, at_server): runs, and writes the devices' state to the addresses.
// Returns (rounds, responses, batches, events, refusals, evictions, peak, idle_waiting_s, idle_since_s, unanswered).
PyObject* run(PyObject*, PyObject* const* values, Py_ssize_t count) {
  return guarded([&] {
    const Arguments args = arguments(values, count, 7);
    Core& core = core_of(args[0]);
    core.run(args.real(1));
    double* to[5];
    for (int i = 0; i < 5; i++) to[i] = static_cast<double*>(args.address(2 + i));
    core.write_state(to[0], to[1], to[2], to[3], to[4]);
    const auto unanswered = core.unanswered();
    OwnedRef clients(PyList_New(Py_ssize_t(unanswered.size())));
    for (size_t i = 0; i < unanswered.size(); i++) clients.set(Py_ssize_t(i), PyLong_FromLong(unanswered[i]));
    return Py_BuildValue("(LLLLLLLddN)", (long long)(core.rows(0)), (long long)(core.rows(1)),
                         (long long)(core.rows(2)), (long long)(core.events), (long long)(core.refusals),
                         (long long)(core.evictions), (long long)(core.peak), core.idle_waiting_s, core.idle_since_s,
                         clients.release());
  });
}

PyMethodDef method(const char* name, PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef kFunctions[] = {method("make", make), method("run", run), {}};
PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "core", nullptr, -1, kFunctions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_core() {
  PyObject* module = PyModule_Create(&kModule);
  if (module && PyModule_AddIntConstant(module, "interface", kInterface)) Py_CLEAR(module);
  if (module && PyModule_AddIntConstant(module, "settings_size", sizeof(Settings))) Py_CLEAR(module);
  return module;
}
