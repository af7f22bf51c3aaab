// The built-in schedulers, each as the file of its name in ../schedulers decides: the same requests, in the same order,
// by the same floating-point operations.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <queue>
#include <vector>

#include "sums.h"

namespace skit {

// A round that waits at the server: `WaitingRound` in ../schedulers/waiting.py. Each device has one at most.
struct Waiting {
  int64_t added = 0, cached = 0;
  double arrived_s = 0, deadline_s = 0, expected_tokens = 0, response_deadline_s = 0, isolated_s = 0;
  uint32_t generation = 0;  // Tells the device's rounds apart: queues keep entries of rounds that were verified.
  bool scheduled = true;

  int64_t kv_tokens() const { return added + cached; }
};

// What a queue needs of the server: the rounds by device, and the estimator.
struct Server {
  std::vector<Waiting>& rounds;
  double idle_s;
  bool additive;
  int64_t max_requests;
  double kv_tokens;
  std::function<double(const BatchSums&)> estimated_s;  // Of a latency model that is no sum over requests.
};

enum class Deadline { kRound, kResponse };

// `BatchBuilder` in ../schedulers/base.py.
class Batch {
 public:
  Batch(Server& server, int64_t max_requests, Deadline kind = Deadline::kResponse, double free_s = 0)
      : seconds(server.idle_s),
        server_(server),
        kind_(kind),
        free_s_(free_s),
        free_kv_tokens_(server.kv_tokens),
        max_requests_(max_requests) {}

  std::vector<int32_t> requests;
  double seconds;

  bool fits(const Waiting& request) const {
    return int64_t(requests.size()) < max_requests_ && double(request.kv_tokens()) <= free_kv_tokens_;
  }
  int64_t free_slots() const { return max_requests_ - int64_t(requests.size()); }
  double deadline_of(const Waiting& request) const {
    return kind_ == Deadline::kRound ? request.deadline_s : request.response_deadline_s;
  }

  bool take(int32_t client, double now_s) {
    const Waiting& request = server_.rounds[client];
    if (!fits(request)) return false;
    const double with_s = seconds_with(request), deadline_s = std::min(deadline_of(request), deadline_s_);
    if (with_s > free_s_ && now_s + with_s > deadline_s) return false;
    deadline_s_ = deadline_s;
    append(client, with_s);
    return true;
  }

  bool take_all(const std::vector<int32_t>& clients, double now_s) {
    if (int64_t(clients.size()) > free_slots()) return false;
    int64_t tokens = 0;
    double deadline_s = std::numeric_limits<double>::infinity();
    BatchSums sums = sums_;
    PythonSum isolated_s;
    for (const int32_t client : clients) {
      const Waiting& request = server_.rounds[client];
      tokens += request.kv_tokens();
      deadline_s = std::min(deadline_s, deadline_of(request));
      if (server_.additive) isolated_s.add(request.isolated_s);
      else sums.add(request.added, request.cached);
    }
    const double with_s = server_.additive ? seconds + isolated_s.value() - double(clients.size()) * server_.idle_s
                                           : server_.estimated_s(sums);
    if (double(tokens) > free_kv_tokens_ || now_s + with_s > std::min(deadline_s, deadline_s_)) return false;
    free_kv_tokens_ -= double(tokens);
    seconds = with_s;
    deadline_s_ = std::min(deadline_s, deadline_s_);
    sums_ = sums;
    requests.insert(requests.end(), clients.begin(), clients.end());
    return true;
  }

  bool leaves_time(const Waiting& request, double now_s) {
    const double with_s = seconds_with(request);
    return with_s <= free_s_ || now_s + with_s <= deadline_s_;
  }

  // Adds a request that is late anyway: its deadline does not bind.
  void add_late(int32_t client) { append(client, seconds_with(server_.rounds[client])); }

  // Adds a request for schedulers that go by the order alone and never ask how long the batch takes.
  void put(int32_t client) {
    requests.push_back(client);
    free_kv_tokens_ -= double(server_.rounds[client].kv_tokens());
  }

 private:
  double seconds_with(const Waiting& request) {
    if (server_.additive) return seconds + request.isolated_s - server_.idle_s;
    BatchSums sums = sums_;
    sums.add(request.added, request.cached);
    return server_.estimated_s(sums);
  }

  void append(int32_t client, double with_s) {
    const Waiting& request = server_.rounds[client];
    seconds = with_s;
    put(client);
    if (!server_.additive) sums_.add(request.added, request.cached);
  }

  Server& server_;
  const Deadline kind_;
  const double free_s_;
  double deadline_s_ = std::numeric_limits<double>::infinity();
  double free_kv_tokens_;
  const int64_t max_requests_;
  BatchSums sums_;
};

// The batch to verify now; if it is empty, `retry_s` is when to ask again unless a request arrives earlier. `computed`
// are the tokens of each request that the batch computes; without any it computes all of every request.
struct Decision {
  std::vector<int32_t> batch;
  double retry_s = std::numeric_limits<double>::infinity();
  std::vector<int64_t> computed = {};
};

class Queue {
 public:
  explicit Queue(Server& server) : server_(server) {}
  virtual ~Queue() = default;
  virtual void add(int32_t client) = 0;
  virtual void changed(int32_t) {}  // A waiting request lost its KV and costs more.
  virtual Decision next_batch(double now_s) = 0;

 protected:
  Batch new_batch(Deadline kind = Deadline::kResponse, double free_s = 0) const {
    return Batch(server_, server_.max_requests, kind, free_s);
  }
  Decision decision(Batch& batch) {
    for (const int32_t client : batch.requests) server_.rounds[client].scheduled = true;
    return {std::move(batch.requests)};
  }
  Waiting& round(int32_t client) const { return server_.rounds[client]; }
  Server& server_;
};

// Takes from the front of a line what fits.
inline void put_first(std::deque<int32_t>& line, Batch& batch, const Server& server) {
  while (!line.empty() && batch.fits(server.rounds[line.front()])) {
    batch.put(line.front());
    line.pop_front();
  }
}

class Fcfs : public Queue {
 public:
  using Queue::Queue;
  void add(int32_t client) override { line_.push_back(client); }
  Decision next_batch(double) override {
    Batch batch = new_batch();
    put_first(line_, batch, server_);
    return decision(batch);
  }

 private:
  std::deque<int32_t> line_;
};

// A request in an order of its own: the smallest key comes first, and of equal ones the first that was added.
struct Entry {
  double key;
  int64_t order;
  int32_t client;
  uint32_t generation;
};
inline constexpr auto later = [](const Entry& one, const Entry& other) {
  return one.key > other.key || (one.key == other.key && one.order > other.order);
};
inline constexpr auto by_key = [](const Entry& one, const Entry& other) { return one.key < other.key; };

class Edf : public Queue {
 public:
  Edf(Server& server, bool by_promise) : Queue(server), by_promise_(by_promise) {}
  void add(int32_t client) override {
    const Waiting& request = round(client);
    heap_.push_back({by_promise_ ? request.response_deadline_s : request.deadline_s, order_++, client, 0});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  Decision next_batch(double) override {
    Batch batch = new_batch();
    while (!heap_.empty() && batch.fits(round(heap_.front().client))) {
      batch.put(heap_.front().client);
      std::pop_heap(heap_.begin(), heap_.end(), later);
      heap_.pop_back();
    }
    return decision(batch);
  }

 private:
  const bool by_promise_;
  int64_t order_ = 0;
  std::vector<Entry> heap_;
};

class Static : public Queue {
 public:
  Static(Server& server, int64_t size, double timeout_s, int64_t groups)
      : Queue(server), size_(std::min(size, server.max_requests)), timeout_s_(timeout_s), lines_(size_t(groups)) {}
  void add(int32_t client) override { lines_[size_t(client) % lines_.size()].push_back(client); }
  Decision next_batch(double now_s) override {
    const auto first = std::min_element(lines_.begin(), lines_.end(), [&](const auto& one, const auto& other) {
      return ready_s(one) < ready_s(other);
    });
    if (const double at_s = ready_s(*first); at_s > now_s) return {{}, at_s};
    Batch batch(server_, size_);
    put_first(*first, batch, server_);
    return decision(batch);
  }

 private:
  double ready_s(const std::deque<int32_t>& line) const {
    if (int64_t(line.size()) >= size_) return round(line[size_t(size_) - 1]).arrived_s;
    return line.empty() ? std::numeric_limits<double>::infinity() : round(line[0]).arrived_s + timeout_s_;
  }
  const int64_t size_;
  const double timeout_s_;
  std::vector<std::deque<int32_t>> lines_;
};

class PrefillFirst : public Queue {
 public:
  PrefillFirst(Server& server, int64_t prompt_tokens) : Queue(server), prompt_tokens_(prompt_tokens) {}
  void add(int32_t client) override {
    if (!round(client).cached) return prompts_.push_back(client);
    running_.push_back(client);
    running_kv_tokens_ += round(client).kv_tokens();
  }
  void changed(int32_t client) override {
    const auto place = std::find(running_.begin(), running_.end(), client);
    if (place == running_.end()) return;
    running_.erase(place);
    running_kv_tokens_ = 0;
    for (const int32_t other : running_) running_kv_tokens_ += round(other).kv_tokens();
    prompts_.push_front(client);
  }
  Decision next_batch(double) override {
    Batch batch = new_batch();
    const int64_t slots = server_.max_requests - int64_t(running_.size());
    int64_t tokens = 0;
    while (!prompts_.empty() && int64_t(batch.requests.size()) < slots) {
      tokens += round(prompts_.front()).added;
      const bool too_many = !batch.requests.empty() && tokens > prompt_tokens_;
      if (double(tokens) > server_.kv_tokens - double(running_kv_tokens_) || too_many) break;
      batch.put(prompts_.front());
      prompts_.pop_front();
    }
    if (batch.requests.empty()) {
      std::erase_if(running_, [&](int32_t client) {
        if (!batch.fits(round(client))) return false;
        batch.put(client);
        running_kv_tokens_ -= round(client).kv_tokens();
        return true;
      });
    }
    return decision(batch);
  }

 private:
  const int64_t prompt_tokens_;
  std::deque<int32_t> prompts_;
  std::vector<int32_t> running_;
  int64_t running_kv_tokens_ = 0;
};

class Chunked : public Queue {
 public:
  Chunked(Server& server, int64_t tokens) : Queue(server), tokens_(tokens), began_(server.rounds.size(), kNever) {}
  void add(int32_t client) override {
    if (round(client).cached) running_.push_back(client);
    else prompts_.push_back(client);
  }
  void changed(int32_t client) override {
    if (std::erase(running_, client)) prompts_.push_front(client);
  }
  Decision next_batch(double) override {
    const std::vector<int32_t> fitting = fitting_requests();
    Decision decision;
    bool in_part = false;
    const auto choose = [&](int32_t client, int64_t tokens) {
      decision.batch.push_back(client);
      decision.computed.push_back(tokens);
      round(client).scheduled = true;
      in_part = in_part || tokens < round(client).added;
    };
    int64_t free_tokens = tokens_, kv_tokens = 0;
    for (const int32_t client : fitting) {
      const int64_t tokens = std::min(round(client).added, free_tokens);
      if (tokens) choose(client, tokens);
      free_tokens -= tokens, kv_tokens += round(client).kv_tokens();
    }
    // No prompt may begin while a running request has to stand back for lack of memory or slots.
    if (fitting.size() == running_.size()) {
      int64_t free_slots = server_.max_requests - int64_t(running_.size());
      while (!prompts_.empty() && free_tokens && free_slots) {
        const int32_t client = prompts_.front();
        kv_tokens += round(client).added;
        if (double(kv_tokens) > server_.kv_tokens) break;
        began_[size_t(client)] = order_++;
        const int64_t tokens = std::min(round(client).added, free_tokens);
        choose(client, tokens);
        prompts_.pop_front();
        free_tokens -= tokens, free_slots--;
      }
    }
    std::erase_if(running_, [&](int32_t client) { return round(client).scheduled; });
    if (!in_part) decision.computed.clear();
    return decision;
  }

 private:
  static constexpr int64_t kNever = -1;

  // The first running requests, by when they began, whose KV fits into memory with what this step adds.
  std::vector<int32_t> fitting_requests() {
    for (const int32_t client : running_)
      if (began_[size_t(client)] == kNever) began_[size_t(client)] = order_++;
    std::vector<int32_t> fitting = running_;
    std::sort(fitting.begin(), fitting.end(),
              [&](int32_t one, int32_t other) { return began_[size_t(one)] < began_[size_t(other)]; });
    fitting.resize(std::min(fitting.size(), size_t(server_.max_requests)));
    const auto needed = [&](int32_t client) { return round(client).cached + std::min(round(client).added, tokens_); };
    int64_t sum = 0;
    for (const int32_t client : fitting) sum += needed(client);
    while (double(sum) > server_.kv_tokens) {
      sum -= needed(fitting.back());
      fitting.pop_back();
    }
    return fitting;
  }

  const int64_t tokens_;
  int64_t order_ = 0;
  std::vector<int64_t> began_;  // The rank of each client by when its prompt began.
  std::deque<int32_t> prompts_;
  std::vector<int32_t> running_;
};

class WispPaper : public Queue {
 public:
  WispPaper(Server& server, double guard_s, bool late_lane, double amortise, bool by_promise)
      : Queue(server),
        guard_s_(guard_s),
        free_s_(amortise * server.idle_s),
        late_lane_(late_lane),
        kind_(by_promise ? Deadline::kResponse : Deadline::kRound) {}
  void add(int32_t client) override { waiting_.push_back(client); }
  Decision next_batch(double now_s) override {
    std::vector<int32_t> late;
    std::vector<Entry> critical, others;
    for (const int32_t client : waiting_) {
      const Waiting& request = round(client);
      const double deadline_s = kind_ == Deadline::kRound ? request.deadline_s : request.response_deadline_s;
      if (late_lane_ && now_s + request.isolated_s > deadline_s) {
        late.push_back(client);
      } else if (deadline_s - request.isolated_s <= now_s + guard_s_) {
        critical.push_back({deadline_s, 0, client, 0});
      } else {
        const double added_s = std::max(request.isolated_s - server_.idle_s, 1e-12);
        others.push_back({-(request.expected_tokens / added_s), 0, client, 0});
      }
    }
    std::stable_sort(critical.begin(), critical.end(), by_key);
    std::stable_sort(others.begin(), others.end(), by_key);
    critical.insert(critical.end(), others.begin(), others.end());
    Batch batch = new_batch(kind_, free_s_);
    for (const Entry& entry : critical)
      if (!batch.take(entry.client, now_s)) break;
    for (const int32_t client : late) {
      if (!(batch.fits(round(client)) && batch.leaves_time(round(client), now_s))) break;
      batch.add_late(client);
    }
    Decision chosen = decision(batch);
    std::erase_if(waiting_, [&](int32_t client) { return round(client).scheduled; });
    return chosen;
  }

 private:
  const double guard_s_, free_s_;
  const bool late_lane_;
  const Deadline kind_;
  std::vector<int32_t> waiting_;
};

struct PromiseOptions {
  double guard_s, amortise, reserve, most_reserve_s, grace_s, foreseen;
};

// The queue of `wisp-promise` and its `FeasibleQueue` in one.
class WispPromise : public Queue {
 public:
  WispPromise(Server& server, const PromiseOptions& options)
      : Queue(server), options_(options), free_s_(options.amortise * server.idle_s) {}

  void add(int32_t client) override {
    const Waiting& request = round(client);
    waiting_++;
    new_.push_back({request.response_deadline_s, 0, client, request.generation});
    double added_s = request.isolated_s - server_.idle_s;
    if (added_s == 0) added_s = 1e-12;
    push_utility({-request.expected_tokens / added_s, order_++, client, request.generation});
    changed(client);
  }

  void changed(int32_t client) override { longest_s_ = std::max(longest_s_, round(client).isolated_s); }

  Decision next_batch(double now_s) override {
    remove_late(now_s - options_.grace_s);
    Batch batch = new_batch(Deadline::kResponse, free_s_);
    if (!late_.empty()) add_late(batch, now_s, spare_s(now_s));
    if (add_urgent(batch, now_s)) add_by_utility(batch, now_s);
    add_late(batch, now_s, std::numeric_limits<double>::infinity());
    waiting_ -= int64_t(batch.requests.size());
    Decision chosen = decision(batch);
    compact();
    return chosen;
  }

 private:
  static constexpr int64_t kFirstLook = 16;

  bool is_scheduled(const Entry& entry) const {
    const Waiting& request = round(entry.client);
    return request.scheduled || request.generation != entry.generation;
  }
  double added_s(const Entry& entry) const { return round(entry.client).isolated_s - server_.idle_s; }
  void push_utility(const Entry& entry) {
    by_utility_.push_back(entry);
    std::push_heap(by_utility_.begin(), by_utility_.end(), later);
  }

  // Sorts new requests in from the end, behind those with the same deadline.
  void merge_new() {
    std::stable_sort(new_.begin(), new_.end(), by_key);
    int64_t old = int64_t(by_deadline_.size()) - 1, to = old + int64_t(new_.size());
    by_deadline_.resize(size_t(to + 1));
    for (int64_t next = int64_t(new_.size()) - 1; next >= 0; to--) {
      const bool moves = old >= head_ && by_deadline_[size_t(old)].key > new_[size_t(next)].key;
      by_deadline_[size_t(to)] = moves ? by_deadline_[size_t(old--)] : new_[size_t(next--)];
    }
    new_.clear();
  }
  int64_t length() const { return int64_t(by_deadline_.size()) - head_; }

  int64_t count_due(double until_s) {
    merge_new();
    const auto first = by_deadline_.begin() + head_;
    return std::upper_bound(first, by_deadline_.end(), until_s, [](double s, const Entry& e) { return s < e.key; }) -
           first;
  }

  // Replaces the first `count` requests by deadline with those of them that are not scheduled.
  void drop_scheduled(int64_t count) {
    int64_t to = head_ + count;
    for (int64_t from = to - 1; from >= head_; from--)
      if (!is_scheduled(by_deadline_[size_t(from)])) by_deadline_[size_t(--to)] = by_deadline_[size_t(from)];
    head_ = to;
    if (head_ > 4096 && head_ > 2 * length()) {
      by_deadline_.erase(by_deadline_.begin(), by_deadline_.begin() + head_);
      head_ = 0;
    }
  }

  void remove_late(double now_s) {
    const int64_t end = head_ + count_due(now_s + longest_s_);
    int64_t to = end;
    late_found_.clear();
    for (int64_t from = end - 1; from >= head_; from--) {
      const Entry entry = by_deadline_[size_t(from)];
      if (is_scheduled(entry)) continue;
      if (now_s + round(entry.client).isolated_s > entry.key) late_found_.push_back(entry);
      else by_deadline_[size_t(--to)] = entry;
    }
    head_ = to;
    for (auto entry = late_found_.rbegin(); entry != late_found_.rend(); entry++)
      late_.insert(std::upper_bound(late_.begin(), late_.end(), *entry, by_key), *entry);
  }

  double spare_s(double now_s) {
    merge_new();
    double end_s = now_s + server_.idle_s, spare_s = std::numeric_limits<double>::infinity();
    double foreseen = options_.foreseen * double(server_.max_requests);
    for (size_t i = size_t(head_); i < by_deadline_.size() && foreseen > 0; i++) {
      if (is_scheduled(by_deadline_[i])) continue;
      foreseen--;
      end_s += added_s(by_deadline_[i]);
      spare_s = std::min(spare_s, by_deadline_[i].key - end_s);
    }
    PythonSum late_s;
    const size_t last = std::min(late_.size(), size_t(server_.max_requests));
    for (size_t i = late_.size() - last; i < late_.size(); i++) late_s.add(added_s(late_[i]));
    return spare_s - std::min(options_.reserve * late_s.value(), options_.most_reserve_s);
  }

  void add_late(Batch& batch, double now_s, double spare_s) {
    while (!late_.empty()) {
      const Waiting& request = round(late_.back().client);
      spare_s -= added_s(late_.back());
      if (spare_s < 0 || !(batch.fits(request) && batch.leaves_time(request, now_s))) return;
      batch.add_late(late_.back().client);
      late_.pop_back();
    }
  }

  // Adds requests up to the first that `take` refuses; returns how many were added.
  template <class Take>
  size_t add_first(Batch& batch, const std::vector<int32_t>& clients, double now_s, Take&& take) {
    size_t added = clients.size();
    if (!batch.take_all(clients, now_s)) {
      added = 0;
      while (added < clients.size() && take(clients[added])) added++;
    }
    for (size_t i = 0; i < added; i++) round(clients[i]).scheduled = true;
    return added;
  }

  bool add_urgent(Batch& batch, double now_s) {
    const double critical_s = now_s + options_.guard_s;
    const int64_t end = count_due(critical_s + longest_s_);
    int64_t checked = 0;
    bool all_added = true;
    while (all_added && checked < end) {
      const int64_t part = std::min(end, checked + std::max(batch.free_slots(), kFirstLook));
      chosen_.clear();
      for (; checked < part; checked++) {
        const Entry& entry = by_deadline_[size_t(head_ + checked)];
        if (!is_scheduled(entry) && entry.key - round(entry.client).isolated_s <= critical_s)
          chosen_.push_back(entry.client);
      }
      all_added = add_first(batch, chosen_, now_s, [&](int32_t client) {
                    const Waiting& request = round(client);
                    if (now_s + request.isolated_s <= request.response_deadline_s) return batch.take(client, now_s);
                    if (!(batch.fits(request) && batch.leaves_time(request, now_s))) return false;
                    batch.add_late(client);
                    return true;
                  }) == chosen_.size();
    }
    drop_scheduled(checked);
    return all_added;
  }

  void add_by_utility(Batch& batch, double now_s) {
    for (int64_t look = kFirstLook;; look *= 2) {
      best_.clear(), chosen_.clear();
      while (!by_utility_.empty() && int64_t(best_.size()) < std::min(look, batch.free_slots())) {
        std::pop_heap(by_utility_.begin(), by_utility_.end(), later);
        const Entry entry = by_utility_.back();
        by_utility_.pop_back();
        const Waiting& request = round(entry.client);
        if (is_scheduled(entry) || now_s + request.isolated_s > request.response_deadline_s) continue;
        best_.push_back(entry);
        chosen_.push_back(entry.client);
      }
      if (best_.empty()) return;
      const size_t added = add_first(batch, chosen_, now_s, [&](int32_t client) { return batch.take(client, now_s); });
      for (size_t i = added; i < best_.size(); i++) push_utility(best_[i]);
      if (added < best_.size()) return;
    }
  }

  // As in Python, at the same moments: how many requests `add_urgent` looks at together depends on what lies there.
  void compact() {
    const int64_t limit = 2 * waiting_ + 64;
    if (length() > limit) drop_scheduled(length());
    if (int64_t(by_utility_.size()) <= limit) return;
    std::erase_if(by_utility_, [&](const Entry& entry) { return is_scheduled(entry); });
    std::make_heap(by_utility_.begin(), by_utility_.end(), later);
  }

  const PromiseOptions options_;
  const double free_s_;
  double longest_s_ = 0;
  int64_t order_ = 0, waiting_ = 0, head_ = 0;  // by_deadline_ begins at head_.
  std::vector<Entry> new_, by_deadline_, by_utility_, late_, late_found_, best_;
  std::vector<int32_t> chosen_;
};

}  // namespace skit
