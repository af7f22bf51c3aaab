// The event loop of servers and their devices: what `Simulation` in ../simulation.py does with Python's objects, for
// the scenes that ../native_core.py says, with results that are the same to the last digit.
//
// Names are those of the Python files that each part repeats. Every floating-point operation is the one that numpy or
// Python does there, in that order; the compiler may not fuse them (-ffp-contract=off). What only a Python object knows
// (requests, latency models, the scatter of verifications) is asked of it, and remembered where it does not change.
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "parts.h"
#include "schedulers.h"

namespace {

using namespace skit;

class Core {
 public:
  Core(const Settings& settings, const Parts& parts)
      : settings_(settings),
        draft_s_(parts["draft_s"]),
        request_(parts["requests"]),
        too_long_(parts["check_lengths"]),
        make_room_(parts["make_room"]),
        rounds_of_(size_t(settings.devices)) {
    const auto pieces = copied<int64_t>(parts["pieces"]);
    for (size_t i = 0; i + 6 <= pieces.size(); i += 6) {
      const size_t work = size_t(pieces[i]);
      if (work >= works_.size()) works_.resize(work + 1);
      works_[work].push_back({pieces[i + 1], pieces[i + 2], pieces[i + 3], pieces[i + 4], pieces[i + 5]});
    }
    if (settings.row_fields != kFields) throw InvalidArgument{"other fields of a round"};
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
    const List servers(parts["servers"]);
    for (int i = 0; i < servers.size(); i++) {
      servers_.push_back(std::make_unique<Verifier>(Parts(servers[i]), i, rounds_of_));
      servers_.back()->queue = make_queue(*servers_.back());
    }
    const auto changes = copied<double>(parts["changes"]);  // [changes, 3]
    for (size_t i = 0; i + 3 <= changes.size(); i += 3)
      changes_.push_back({changes[i], size_t(changes[i + 1]), changes[i + 2] != 0});
    ranks_ = copied<int64_t>(parts["ranks"]);  // [devices, servers]
    if (settings.is_pool)
      for (Device& device : devices_) device.home = kNowhere;
  }
  Core(const Core&) = delete;

  // Runs up to `until_s`; goes on where it stopped.
  void run(double until_s) {
    if (!begun_) begin();
    for (Table* table : {&rounds_, &responses_, &batches_}) table->room = table->rows;  // Python has what was written.
    if (settings_.is_pool) run_pool(until_s);
    else run_alone(*servers_[0], until_s);
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

  // The clients whose rounds are at a server: in its batches, waiting, or blocked; then those that no server has.
  std::vector<int32_t> unanswered() const {
    std::vector<int32_t> clients;
    for (const auto& server : servers_) {
      const auto at_server = unanswered_of(*server);
      clients.insert(clients.end(), at_server.begin(), at_server.end());
    }
    clients.insert(clients.end(), unrouted_.begin(), unrouted_.end());
    return clients;
  }

  // Of each server: refusals, evictions, the peak of KV, idle seconds, since when it is idle, sessions moved and lost.
  PyObject* counts() const {
    OwnedRef list(PyList_New(Py_ssize_t(servers_.size())));
    for (size_t i = 0; i < servers_.size(); i++) {
      const Verifier& server = *servers_[i];
      list.set(Py_ssize_t(i), Py_BuildValue("(LLLddLL)", (long long)(server.refusals), (long long)(server.evictions),
                                            (long long)(server.peak), server.idle_waiting_s, server.idle_since_s,
                                            (long long)(server.moved), (long long)(server.lost)));
    }
    return list.release();
  }

  int64_t events = 0;

 private:
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

  // A batch under way; `number` is its row in the table of batches.
  struct InFlight {
    std::vector<int32_t> clients;
    double started_s, ended_s, expected_s;
    int64_t number;
    double drafted;                  // The most tokens that count of each request.
    std::vector<int64_t> submitted;  // The same request by request, where they differ.
    std::vector<int64_t> computed;   // The tokens of each request that are computed, where some are in part.
  };

  // A server: `SimulatedServer`.
  struct Verifier {
    Verifier(const Parts& parts, int64_t number, std::vector<Waiting>& rounds)
        : index(number),
          settings(settings_of(parts)),
          isolated_s(parts["isolated_s"]),
          batch_s(parts["batch_s"]),
          estimated_s(parts["estimated_s"]),
          ended(parts["ended"]),
          restarted(parts["restarted"]),
          seen{rounds,
               settings.idle_s,
               settings.additive != 0,
               settings.max_requests,
               settings.kv_tokens,
               [this](const BatchSums& sums) { return estimated(sums); }},
          stage_free_s(size_t(settings.stages)) {}
    Verifier(const Verifier&) = delete;

    static ServerSettings settings_of(const Parts& parts) {
      const Bytes bytes(parts["settings"]);
      return *static_cast<const ServerSettings*>(bytes.data(sizeof(ServerSettings)));
    }
    double estimated(const BatchSums& sums) const {
      return real_of(
          called(estimated_s, {whole(sums.linear), whole(sums.interactions), whole(sums.pairs), whole(sums.cached),
                               whole(sums.logit_rows), whole(sums.requests), whole(sums.longest)}));
    }
    bool has_room() const { return int64_t(in_flight.size()) < settings.stages; }
    // When a batch ends, or when the scheduler wants to be asked again.
    double next_s() const { return in_flight.empty() ? retry_s : std::min(in_flight.front().ended_s, retry_s); }

    const int64_t index;
    const ServerSettings settings;
    Remembered isolated_s;
    const Function batch_s, estimated_s, ended, restarted;
    Server seen;  // What its scheduler sees.
    std::unique_ptr<Queue> queue;
    std::deque<int32_t> blocked;
    std::deque<InFlight> in_flight;    // In the order in which they began, at most one for each stage of a pipeline.
    std::vector<double> stage_free_s;  // From when on the next batch may enter each stage.
    std::set<int32_t> sessions;        // Of a pool: the clients whose responses it was given and has not finished.
    bool is_up = true;
    bool has_changed = false;  // Of a pool: whether its scheduler has to be asked.
    int64_t waiting_count = 0, kv_used = 0, kv_admissions = 0, refusals = 0, evictions = 0, peak = 0;
    int64_t moved = 0, lost = 0;
    double free_s = 0, retry_s = kInfinity, idle_waiting_s = 0, idle_since_s = kInfinity;
  };

  // A server goes away, or comes back.
  struct Change {
    double at_s;
    size_t server;
    bool comes_back;
  };

  std::vector<int32_t> unanswered_of(const Verifier& server) const {
    std::vector<int32_t> clients, waiting;
    for (const InFlight& batch : server.in_flight)
      clients.insert(clients.end(), batch.clients.begin(), batch.clients.end());
    for (size_t client = 0; client < devices_.size(); client++)
      if (devices_[client].place == Place::kWaiting && devices_[client].home == server.index)
        waiting.push_back(int32_t(client));
    std::sort(waiting.begin(), waiting.end(), [&](int32_t one, int32_t other) {
      return devices_[size_t(one)].enqueued < devices_[size_t(other)].enqueued;
    });
    clients.insert(clients.end(), waiting.begin(), waiting.end());
    clients.insert(clients.end(), server.blocked.begin(), server.blocked.end());
    return clients;
  }

  // ---- The order of events: `Simulation`.

  // Whether the server drafts by recorded work.
  bool takes_works() const { return settings_.drafts && !works_.empty(); }

  void run_alone(Verifier& server, double until_s) {
    while (true) {
      const double now_s = next_s(server);
      if (!(now_s <= until_s)) break;
      if (!server.in_flight.empty()) {
        // Rounds that arrived during the batch were there before the memory that it frees, so they are admitted first.
        receive(server, server.in_flight.front().ended_s, true);
        complete(server);
        events++;
      }
      receive(server, now_s, false);
      if (server.waiting_count) decide(server, now_s);
    }
    receive(server, until_s, false);
  }

  double arrives_s() const { return on_their_way_.empty() ? kInfinity : on_their_way_.front().at_s; }

  // ---- Several servers, or one that fails or has stages, which take every arrival at its own time: `ServerPool`.

  void run_pool(double until_s) {
    while (true) {
      double now_s = arrives_s();
      if (next_change_ < changes_.size()) now_s = std::min(now_s, changes_[next_change_].at_s);
      for (const auto& server : servers_)
        if (server->is_up) now_s = std::min(now_s, server->next_s());
      if (!(now_s <= until_s)) break;
      for (const auto& server : servers_)
        while (server->is_up && !server->in_flight.empty() && server->in_flight.front().ended_s <= now_s) {
          answer(*server, complete(*server));
          server->has_changed = true;
          events++;
        }
      for (; next_change_ < changes_.size() && changes_[next_change_].at_s <= now_s; next_change_++)
        change(changes_[next_change_], now_s);
      std::vector<int32_t> arrived;
      while (arrives_s() <= now_s) arrived.push_back(take_arrived());
      route_all(arrived, now_s);
      for (const auto& server : servers_) {
        const bool is_asked = server->has_changed || server->retry_s <= now_s;
        server->has_changed = false;
        if (server->is_up && is_asked && server->has_room() && server->waiting_count) decide(*server, now_s);
      }
    }
  }

  // Lets the devices of a batch go on: responses that have ended leave the server, and routers expect typical rounds.
  void answer(Verifier& server, const std::vector<int32_t>& clients) {
    for (const int32_t client : clients) {
      Device& device = devices_[size_t(client)];
      // What is set up by now is the next round, which begins a response if the last one has ended.
      if (device.row[kBegins] > 0) {
        server.sessions.erase(client);
        device.home = kNowhere;
      }
      if (!settings_.keeps_kv) continue;
      device.at_server[2] = of(kTypicalNew, size_t(client)), device.at_server[3] = double(device.cached);
    }
  }

  void change(const Change& change, double now_s) {
    Verifier& server = *servers_[change.server];
    if (!change.comes_back) return fail(server, now_s);
    server.free_s = restart(server, now_s);
    server.is_up = true;
    route_all(std::exchange(unrouted_, {}), now_s);
  }

  static double restart(const Verifier& server, double now_s) {
    return real_of(called(server.restarted, {PyFloat_FromDouble(now_s)}));
  }

  // Takes a server away: its sessions lose their KV, and its rounds go to the router again in the order of arrival.
  void fail(Verifier& server, double now_s) {
    server.is_up = false;
    std::vector<int32_t> requests = unanswered_of(server);
    std::sort(requests.begin(), requests.end(), [&](int32_t one, int32_t other) {
      const double first_s = rounds_of_[size_t(one)].arrived_s, second_s = rounds_of_[size_t(other)].arrived_s;
      return first_s < second_s || (first_s == second_s && one < other);
    });
    for (const int32_t client : server.sessions) {
      Device& device = devices_[size_t(client)];
      server.lost += device.cached > 0;
      lose_kv(device);
      device.kv_tokens = 0;
      device.home = kNowhere;
      device.place = Place::kElsewhere;
    }
    batches_.own(make_room_);
    for (const InFlight& batch : server.in_flight)
      batches_.at(batch.number, kBatchEnded) = batches_.at(batch.number, kBatchExpected) = now_s;
    server.in_flight.clear(), server.blocked.clear(), server.sessions.clear();
    std::fill(server.stage_free_s.begin(), server.stage_free_s.end(), now_s);
    server.waiting_count = server.kv_used = 0;
    server.free_s = restart(server, now_s);
    server.queue = make_queue(server);
    if (server.idle_since_s < kInfinity) server.idle_waiting_s += now_s - server.idle_since_s;
    server.retry_s = server.idle_since_s = kInfinity;
    for (const int32_t client : requests) {
      Waiting& request = rounds_of_[size_t(client)];
      request.added += request.cached, request.cached = 0, request.scheduled = false;
    }
    route_all(requests, now_s);
  }

  void route_all(const std::vector<int32_t>& clients, double now_s) {
    const bool is_any_up = std::any_of(servers_.begin(), servers_.end(), [](const auto& each) { return each->is_up; });
    if (!is_any_up) {
      unrouted_.insert(unrouted_.end(), clients.begin(), clients.end());
      return;
    }
    for (const int32_t client : clients) {
      Device& device = devices_[size_t(client)];
      const int32_t home = device.home;
      if (home == kNowhere || settings_.routes_rounds) device.home = int32_t(route(client, now_s));
      Verifier& server = *servers_[size_t(device.home)];
      if (home != kNowhere && home != device.home) leave(*servers_[size_t(home)], client);
      server.sessions.insert(client);
      receive(server, client);
      server.has_changed = true;
    }
  }

  // Drops a session's KV on the server that it leaves, so that all of it has to be computed on the next one.
  void leave(Verifier& home, int32_t client) {
    Device& device = devices_[size_t(client)];
    Waiting& request = rounds_of_[size_t(client)];
    home.moved += request.cached > 0;
    lose_kv(device);
    request.added += request.cached, request.cached = 0;
    home.sessions.erase(client);
    home.kv_used -= device.kv_tokens, device.kv_tokens = 0;
    admit_blocked(home);
    home.has_changed = true;
  }

  static void lose_kv(Device& device) {
    device.cached = 0;
    device.at_server[2] += device.at_server[3], device.at_server[3] = 0;
  }

  // The server that the router chooses: the files of ../routers.
  size_t route(int32_t client, double now_s) {
    size_t chosen = servers_.size();
    double least = 0;
    for (size_t number = 0; number < servers_.size(); number++) {
      Verifier& server = *servers_[number];
      if (!server.is_up) continue;
      double value = 0;
      switch (settings_.router) {
        case kRoundRobin:
          value = double(int64_t(number) <= last_routed_);
          break;
        case kSessionAffinity:
          value = double(ranks_[size_t(client) * servers_.size() + number]);
          break;
        case kLeastWork:
          value = work_s(server, client, now_s);
          break;
        default:
          value = work_s(server, client, now_s) + round_s(server, client);
      }
      if (chosen == servers_.size() || value < least) chosen = number, least = value;
    }
    last_routed_ = int64_t(chosen);
    return chosen;
  }

  // The expected seconds of the batch under way, and of one round of every other session than this one.
  double work_s(Verifier& server, int32_t client, double now_s) {
    const double idle_s = server.settings.idle_s, stages = double(server.settings.stages);
    int64_t others = 0;
    PythonSum each_s;
    for (const int32_t other : server.sessions) {
      const Device& device = devices_[size_t(other)];
      if (other == client || device.place == Place::kInBatch) continue;
      others++;
      each_s.add(server.isolated_s(int64_t(device.at_server[2]), int64_t(device.at_server[3])) - idle_s);
    }
    const double batches = std::ceil(double(others) / double(server.settings.max_requests));
    return batch_left_s(server, now_s) + (batches * idle_s + each_s.value()) / stages;
  }

  static double batch_left_s(const Verifier& server, double now_s) {
    if (server.in_flight.empty()) return std::max(0.0, server.free_s - now_s);
    const InFlight& last = server.in_flight.back();
    if (server.settings.stages == 1) return std::max(0.0, last.expected_s - now_s);
    return std::max(0.0, last.started_s + (last.expected_s - last.started_s) / double(server.settings.stages) - now_s);
  }

  double round_s(Verifier& server, int32_t client) {
    const Waiting& request = rounds_of_[size_t(client)];
    if (server.sessions.contains(client)) return server.isolated_s(request.added, request.cached);
    return server.isolated_s(request.added + request.cached, 0);
  }

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

  bool admit(Verifier& server, size_t client, int64_t tokens) {
    if (double(server.kv_used + tokens) > server.settings.kv_capacity) return false;
    devices_[client].kv_since = server.kv_admissions++;
    devices_[client].kv_tokens = tokens;
    server.kv_used += tokens;
    return true;
  }

  void pin(Verifier& server, const Decision& decision, const Drafting& drafting) {
    for (size_t place = 0; place < decision.batch.size(); place++) {
      const int32_t client = decision.batch[place];
      Device& device = devices_[client];
      int64_t drafted = drafting.longest;
      if (takes_works()) drafted = is_in_part(decision, place) ? 0 : int64_t(device.row[kSubmitted]);
      else if (!drafting.submitted.empty()) drafted = drafting.submitted[place];
      if (server.settings.lru || !device.kv_tokens) device.kv_since = server.kv_admissions++;
      const int64_t tokens = computed(decision, place) + rounds_of_[size_t(client)].cached + drafted;
      server.kv_used += tokens - device.kv_tokens;
      device.kv_tokens = tokens;
    }
    if (double(server.kv_used) > server.settings.kv_capacity) make_room(server);
    server.peak = std::max(server.peak, server.kv_used);
  }

  void make_room(Verifier& server) {
    std::vector<int32_t> candidates;
    for (size_t client = 0; client < devices_.size(); client++)
      if (devices_[client].home == server.index && devices_[client].kv_tokens &&
          devices_[client].place != Place::kInBatch)
        candidates.push_back(int32_t(client));
    const auto waits = [&](int32_t client) { return devices_[client].place == Place::kWaiting; };
    // Python sorts by rank, turns the order around without `lru`, and moves what waits to the end. Ranks differ.
    std::stable_sort(candidates.begin(), candidates.end(), [&](int32_t one, int32_t other) {
      if (waits(one) != waits(other)) return waits(other);
      const int64_t first = devices_[one].kv_since, second = devices_[other].kv_since;
      return server.settings.lru ? first < second : first > second;
    });
    std::vector<int32_t> evicted;
    for (const int32_t client : candidates) {
      if (double(server.kv_used) <= server.settings.kv_capacity) break;
      server.kv_used -= devices_[client].kv_tokens;
      devices_[client].kv_tokens = 0;
      evicted.push_back(client);
    }
    server.evictions += int64_t(evicted.size());
    for (const int32_t client : evicted) {
      Device& device = devices_[client];
      lose_kv(device);
      if (!waits(client)) continue;
      Waiting& request = rounds_of_[size_t(client)];
      request.added += request.cached, request.cached = 0;
      request.isolated_s = server.isolated_s(request.added, 0);
      server.queue->changed(client);
    }
  }

  // ---- A server: `SimulatedServer`.

  double next_s(const Verifier& server) const {
    if (!server.in_flight.empty()) return server.in_flight.front().ended_s;
    return std::max(std::min(arrives_s(), server.retry_s), server.free_s);
  }

  void receive(Verifier& server, double until_s, bool before) {
    while (!on_their_way_.empty() &&
           (before ? on_their_way_.front().at_s < until_s : on_their_way_.front().at_s <= until_s))
      receive(server, take_arrived());
  }

  // Takes the round that has arrived first, as schedulers see it; it counts as waiting there.
  int32_t take_arrived() {
    const int32_t client = int32_t(on_their_way_.front().client);
    std::pop_heap(on_their_way_.begin(), on_their_way_.end(), arrives_later);
    on_their_way_.pop_back();
    // The next one, and those of whom one is the next but one.
    for (size_t i = 0; i < std::min<size_t>(3, on_their_way_.size()); i++) {
      prefetch(devices_[size_t(on_their_way_[i].client)]);
      prefetch(rounds_of_[size_t(on_their_way_[i].client)]);
    }
    events++;
    Device& device = devices_[size_t(client)];
    const double* row = device.row;
    Waiting& request = rounds_of_[size_t(client)];
    request.arrived_s = device.arrives_s;
    request.deadline_s = device.sent_s + row[kUpS] + row[kRoundBudgetS];
    request.cached = device.cached;
    request.added = int64_t(row[kContext]) - device.cached + (settings_.on_edge ? int64_t(row[kSubmitted]) : 0);
    request.expected_tokens = row[kExpectedTokens];
    request.response_deadline_s = device.start_s + row[kResponseBudgetS];
    request.generation++;
    request.scheduled = false;
    device.at_server[0] = request.arrived_s, device.at_server[1] = request.deadline_s;
    device.at_server[2] = double(request.added), device.at_server[3] = double(request.cached);
    device.arrives_s = kInfinity;
    return client;
  }

  void receive(Verifier& server, int32_t client) {
    Device& device = devices_[size_t(client)];
    Waiting& request = rounds_of_[size_t(client)];
    request.isolated_s = server.isolated_s(request.added, request.cached);
    if (request.cached || !server.settings.admits) return enqueue(server, size_t(client));
    device.place = Place::kBlocked;
    // Sessions that were evicted return before those that have not begun, or they might starve.
    if (device.row[kContext] <= device.row[kPrompt]) server.blocked.push_back(client);
    else server.blocked.push_front(client);
    admit_blocked(server);
  }

  void admit_blocked(Verifier& server) {
    while (!server.blocked.empty()) {
      const int32_t client = server.blocked.front();
      if (!admit(server, size_t(client), rounds_of_[size_t(client)].kv_tokens())) return;
      server.blocked.pop_front();
      enqueue(server, size_t(client));
    }
  }

  void enqueue(Verifier& server, size_t client) {
    devices_[client].place = Place::kWaiting;
    devices_[client].enqueued = enqueued_++;
    server.waiting_count++;
    server.queue->add(int32_t(client));
  }

  void decide(Verifier& server, double now_s) {
    const double free_s = settings_.is_pool ? std::max(server.free_s, server.stage_free_s[0]) : server.free_s;
    if (now_s < free_s) {
      server.retry_s = free_s;
      return;
    }
    Decision decision = server.queue->next_batch(now_s);
    if (decision.batch.empty()) {
      server.refusals++;
      server.idle_since_s = std::min(server.idle_since_s, now_s);
      server.retry_s = decision.retry_s > now_s ? decision.retry_s : kInfinity;
      return;
    }
    if (server.idle_since_s < kInfinity) {
      server.idle_waiting_s += now_s - server.idle_since_s;
      server.idle_since_s = kInfinity;
    }
    start(server, std::move(decision), now_s);
    const bool may_go_on = settings_.is_pool && server.waiting_count && server.has_room();
    server.retry_s = may_go_on ? server.stage_free_s[0] : kInfinity;
  }

  // Returns when a batch leaves the last stage that enters now: `ServerStages`.
  static double enter_stages(Verifier& server, double now_s, double pass_s, double transfers_s) {
    if (server.settings.stages == 1) return server.stage_free_s[0] = now_s + pass_s;
    const double count = double(server.settings.stages);
    const double stage_s = (pass_s - transfers_s) / count, transfer_s = transfers_s / (count - 1);
    double left_s = now_s - transfer_s;
    for (double& free_s : server.stage_free_s) free_s = left_s = std::max(left_s + transfer_s, free_s) + stage_s;
    return left_s;
  }

  // Whether only a part of a request's round is computed in a batch.
  bool is_in_part(const Decision& decision, size_t place) const {
    return !decision.computed.empty() && decision.computed[place] < rounds_of_[size_t(decision.batch[place])].added;
  }
  int64_t computed(const Decision& decision, size_t place) const {
    return decision.computed.empty() ? rounds_of_[size_t(decision.batch[place])].added : decision.computed[place];
  }

  // Recorded rounds take their recorded works, and read prompts one after another.
  Drafting draft_works(const Decision& decision) const {
    Drafting drafting;
    drafting.has_drafted = true;
    for (size_t place = 0; place < decision.batch.size(); place++) {
      const int32_t client = decision.batch[place];
      const double* row = devices_[client].row;
      const Waiting& request = rounds_of_[size_t(client)];
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

  Drafting draft(const Verifier& server, const Decision& decision, const BatchSums& sums) const {
    if (takes_works()) return draft_works(decision);
    Drafting drafting;
    drafting.verified = sums;
    const auto has_kv = [&](int32_t client) { return rounds_of_[size_t(client)].cached > 0; };
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
      const Waiting& request = rounds_of_[size_t(client)];
      const bool goes_on = request.cached && !is_in_part(decision, place);
      const int64_t added = computed(decision, place), limit = goes_on ? server.settings.longest_draft : 0;
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

  void start(Verifier& server, Decision&& decision, double now_s) {
    const std::vector<int32_t>& batch = decision.batch;
    BatchSums sums;
    PythonSum added_s;
    int64_t answers = 0;
    for (size_t place = 0; place < batch.size(); place++) {
      const Waiting& request = rounds_of_[size_t(batch[place])];
      devices_[batch[place]].place = Place::kInBatch;
      sums.add(computed(decision, place), request.cached);
      added_s.add(request.isolated_s - server.settings.idle_s);
      answers += !is_in_part(decision, place);
    }
    server.waiting_count -= int64_t(batch.size());
    Drafting drafting = draft(server, decision, sums);
    PyObject* times = called(server.batch_s, {PyFloat_FromDouble(now_s), counts_of(drafting.verified),
                                              forwards_of(drafting), alone_of(drafting), whole(answers)});
    double seconds, second;
    if (!PyArg_ParseTuple(times, "dd", &seconds, &second)) {
      Py_DECREF(times);
      throw PythonError();
    }
    Py_DECREF(times);
    pin(server, decision, drafting);
    const bool is_sum = server.settings.additive && decision.computed.empty();
    const double batch_s = is_sum ? server.settings.idle_s + added_s.value() : server.estimated(sums);
    double ended_s = now_s + seconds;
    if (settings_.is_pool) ended_s = enter_stages(server, now_s, seconds, second);
    else server.free_s = second;
    const double row[] = {now_s,
                          ended_s,
                          now_s + batch_s,
                          double(batch.size()),
                          double(server.waiting_count + int64_t(server.blocked.size())),
                          double(sums.linear),
                          double(sums.cached),
                          double(server.index)};
    batches_.add(row, make_room_);
    const double drafted = settings_.on_edge || takes_works() ? kInfinity : double(drafting.longest);
    server.in_flight.push_back({std::move(decision.batch), now_s, ended_s, now_s + batch_s, batches_.rows - 1, drafted,
                                std::move(drafting.submitted), std::move(decision.computed)});
  }

  // Lets requests that were computed in part wait for the rest, and returns the batch without them.
  InFlight requeue_chunks(Verifier& server, InFlight&& ended) {
    InFlight answered{{}, ended.started_s, ended.ended_s, ended.expected_s, ended.number, ended.drafted, {}, {}};
    for (size_t place = 0; place < ended.clients.size(); place++) {
      const int32_t client = ended.clients[place];
      Waiting& request = rounds_of_[size_t(client)];
      const int64_t tokens = ended.computed[place];
      if (tokens == request.added) {
        answered.clients.push_back(client);
        if (!ended.submitted.empty()) answered.submitted.push_back(ended.submitted[place]);
        continue;
      }
      Device& device = devices_[client];
      request.added -= tokens, request.cached += tokens, request.scheduled = false;
      request.isolated_s = server.isolated_s(request.added, request.cached);
      device.at_server[2] = double(request.added), device.at_server[3] = double(request.cached);
      device.cached = request.cached;
      server.kv_used += device.cached - device.kv_tokens;
      device.kv_tokens = device.cached;
      enqueue(server, size_t(client));
    }
    return answered;
  }

  // Ends the batch that began first and sends its answers; returns the clients that were answered.
  std::vector<int32_t> complete(Verifier& server) {
    InFlight ended = std::move(server.in_flight.front());
    server.in_flight.pop_front();
    if (!ended.computed.empty()) ended = requeue_chunks(server, std::move(ended));
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
      server.kv_used += device.cached - device.kv_tokens;
      device.kv_tokens = device.cached;
      device.first_s = first_s;
      device.place = Place::kElsewhere;
      const double free_s = free_after(size_t(client), answered_s, sent_s);
      set_up(client);
      send(client, answered_s, free_s);
    }
    admit_blocked(server);
    if (settings_.is_pool)
      server.free_s = real_of(called(server.ended, {PyFloat_FromDouble(ended.ended_s), whole(int64_t(batch.size()))}));
    return std::move(ended.clients);
  }

  std::unique_ptr<Queue> make_queue(Verifier& server) const {
    Server& seen = server.seen;
    const double* options = settings_.options;
    switch (settings_.scheduler) {
      case 0:
        return std::make_unique<Fcfs>(seen);
      case 1:
        return std::make_unique<Edf>(seen, options[0] != 0);
      case 2:
        return std::make_unique<Static>(seen, int64_t(options[0]), options[1], int64_t(options[2]));
      case 3:
        return std::make_unique<PrefillFirst>(seen, int64_t(options[0]));
      case 4:
        return std::make_unique<WispPaper>(seen, options[0], options[1] != 0, options[2], options[3] != 0);
      case 5:
        return std::make_unique<WispPromise>(
            seen, PromiseOptions{options[0], options[1], options[2], options[3], options[4], options[5]});
      case 6:
        return std::make_unique<Chunked>(seen, int64_t(options[0]));
      default:
        throw InvalidArgument{"a scheduler that is not there"};
    }
  }

  const Settings settings_;
  std::vector<Source> sources_;
  std::vector<std::vector<Piece>> works_;  // Of a server that drafts from a trace.
  Remembered draft_s_;
  const Function request_, too_long_, make_room_;
  std::vector<Requests> requests_;
  std::vector<Device> devices_;
  std::vector<Constants> constants_;
  std::vector<Waiting> rounds_of_;  // The round of each device that is at a server.
  std::vector<std::unique_ptr<Verifier>> servers_;
  std::vector<Arrival> on_their_way_;  // A heap.
  Table rounds_{0, 17}, responses_{1, 8}, batches_{2, 8};
  bool begun_ = false;
  int64_t enqueued_ = 0;
  // Of a pool.
  std::vector<Change> changes_;
  size_t next_change_ = 0;
  std::vector<int64_t> ranks_;     // [devices, servers]: the order in which each device prefers servers.
  int64_t last_routed_ = -1;       // The server that was chosen last.
  std::vector<int32_t> unrouted_;  // Rounds that wait while no server is up.
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
// Returns (rounds, responses, batches, events, counts of each server, unanswered).
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
    return Py_BuildValue("(LLLLNN)", (long long)(core.rows(0)), (long long)(core.rows(1)), (long long)(core.rows(2)),
                         (long long)(core.events), core.counts(), clients.release());
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
