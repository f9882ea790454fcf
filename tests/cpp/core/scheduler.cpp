// Hundreds of thousands of random events; after each one every invariant must hold.
#include "core/host/scheduler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace gpushare;

namespace {

constexpr int kSchedulerEvents = 1'000'000;
constexpr int kSessions = 6;

// The knowledge of clients: their turns, that a yield is sent once for each, whether a cell runs,
// and where their memory is. They also send messages that make no sense.
class SchedulerClients {
 public:
  explicit SchedulerClients(unsigned seed, bool shares = false)
      : random_(seed), shares_(shares), scheduler_(100, "fair", rules(seed)) {}

  int pairs() const { return pairs_; }  // that began in one lane

  void run(int events) {
    for (int i = 0; i < events; ++i) {
      now_ += static_cast<double>(below(4)) * 0.1;
      try {
        check(step());
        if (i % 16 == 0) look();
      } catch (const UnknownSession&) {
      }
      REQUIRE(scheduler_.is_valid() == "");
    }
  }

 private:
  static Rules rules(unsigned seed) {
    return {.quantum = 0.25,
            .half_life = 1.0 + 12 * (seed % 5),
            .lease = 2,
            .aging = 3,
            .boost = 0.25 * (seed % 3),
            .page_waiting = seed % 2 == 0};
  }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  Demand demand() {
    Demand demand{below(25), below(70), below(8) != 0};
    if (demand.measured && below(2) == 0) demand.options = options(demand.ephemeral);
    return demand;
  }
  std::vector<SqueezeOption> options(Bytes whole) {
    std::vector<SqueezeOption> options{{whole, 1.0}};
    while (options.back().bytes > 0 && below(3) != 0)
      options.push_back({below(static_cast<std::uint32_t>(options.back().bytes)),
                         options.back().slowdown + 0.05 * below(5)});
    return options;
  }
  std::string any() { return "session" + std::to_string(below(kSessions)); }

  Decision step() {
    const std::string id = any();
    const auto kind = below(100);
    if (kind < 9) return open(id);
    if (kind < 12) return close(id);
    if (kind < 14) return throttle();
    if (kind < 15) return set_shares();
    if (kind < 36) return request(id);
    if (kind < 60) return finish(id, turns_[id] - (below(10) == 0 ? 1 : 0));
    if (kind < 68) return report(id);
    if (kind < 80) return set_busy(id);
    if (kind < 88) return leaving_.empty() ? page(id) : answer(*leaving_.begin());
    if (kind < 89) return page(id);
    if (kind < 92)
      return scheduler_.change(now_, id, 1.0 + below(3), static_cast<int>(below(2)), below(3) == 0);
    if (kind < 94) return scheduler_.set_policy(now_, policies()[below(6)].name);
    if (kind < 96) return scheduler_.set_running_lanes(now_, static_cast<int>(below(4)));
    if (kind < 97) return scheduler_.set_unmanaged(now_, below(2) == 0 ? 0 : below(110));
    if (kind < 98) return scheduler_.set_recovering(now_, below(4) == 0);
    now_ = scheduler_.next_event(now_).value_or(now_);
    return scheduler_.assign(now_);
  }

  Decision open(const std::string& id) {
    SessionSpec spec;
    spec.user = "user" + std::to_string(below(3));
    spec.group = "group" + std::to_string(below(2));
    spec.domain = below(2) == 0 ? "" : "domain";
    spec.demand = demand();
    spec.bears = 1.0 + 0.1 * below(4);
    spec.turn = ++turns_[id];
    spec.holding = below(4) == 0;
    spec.waiting = !spec.holding && below(2) == 0;
    spec.paused = below(10) == 0;
    spec.busy = below(2) == 0;
    spec.shares = shares_ && below(8) != 0;
    spec.paged_out_bytes = below(6) == 0 ? 1 + below(20) : 0;
    if (scheduler_.contains(id) && places_[id] != std::pair(spec.group, spec.user)) held_.erase(id);
    places_[id] = {spec.group, spec.user};
    forget(id);
    named_.erase(id);  // a session that opens again has lost its successor
    busy_[id] = spec.busy;
    if (spec.paged_out_bytes > 0) out_.insert(id);
    return scheduler_.open(now_, id, spec);
  }
  Decision close(const std::string& id) {
    forget(id);
    held_.erase(id);
    return scheduler_.close(now_, id);
  }
  void forget(const std::string& id) {
    asked_.erase(id);
    leaving_.erase(id);
    out_.erase(id);
  }
  Decision request(const std::string& id) {
    leaving_.erase(id);
    return scheduler_.request(now_, id, ++turns_[id]);
  }
  // A session in the middle of a cell is asked to page out only while it waits.
  Decision finish(const std::string& id, TurnNumber turn) {
    if (busy_[id] && turn == turns_[id]) leaving_.erase(id);
    return scheduler_.finish(now_, id, turn);
  }
  bool waits(const std::string& id) {
    const std::vector<SessionState> sessions = scheduler_.snapshot(now_).sessions;
    const auto state = std::ranges::find(sessions, id, &SessionState::id);
    return state->waiting.has_value();
  }
  Decision set_busy(const std::string& id) {
    busy_[id] = below(3) == 0;
    if (busy_[id]) leaving_.erase(id);
    return scheduler_.set_busy(now_, id, busy_[id]);
  }

  Decision throttle() {
    std::map<std::string, Why> reasons;
    for (const std::string& id : {any(), any()})
      if (scheduler_.contains(id) && below(2)) reasons[id] = {{Code::throttled_for_class}};
    held_.clear();
    for (const auto& [id, why] : reasons) held_.insert(id);
    return scheduler_.throttle(now_, reasons);
  }
  Decision set_shares() {
    return scheduler_.set_shares(now_, {{"group0", 0.5 + below(3)}}, {{"user1", 0.5 + below(3)}});
  }

  Decision answer(const std::string& id) {
    if (below(4) == 0) return page_out_failed(id);
    return paged_out(id);
  }
  Decision page(const std::string& id) {
    // It may do so without being asked, or twice.
    return below(2) == 0 ? paged_out(id) : page_out_failed(id);
  }
  Decision paged_out(std::string id) {
    Decision decision = scheduler_.paged_out(now_, id, 1 + below(20));
    leaving_.erase(id);
    out_.insert(id);
    return decision;
  }
  Decision page_out_failed(std::string id) {
    leaving_.erase(id);
    return scheduler_.page_out_failed(now_, id);
  }
  Decision report(const std::string& id) {
    std::optional<std::int64_t> remaining;
    if (below(2)) remaining = below(50);
    return scheduler_.report(now_, id, below(5), demand(), remaining);
  }

  void check(const Decision& decision) {
    for (const Grant& grant : decision.grants) {
      REQUIRE(grant.turn == turns_[grant.session]);
      asked_.erase(grant.session);
      pairs_ += grant.end != kNoEnd;
      for (const auto& [holder, named] : named_)
        if (named.session == grant.session && named.turn == grant.turn && named.lane == grant.lane)
          REQUIRE(named.end == grant.end);  // it may have begun by then
    }
    for (const Yield& yield : decision.yields) {
      REQUIRE(asked_[yield.session] != yield.turn);
      asked_[yield.session] = yield.turn;
      named_.erase(yield.session);
      if (yield.successor) named_[yield.session] = *yield.successor;
    }
    check_ends();
    for (const Grant& grant : decision.grants)  // it was named before, and gives the turn back
      if (held_.contains(grant.session)) REQUIRE(asked_[grant.session] == grant.turn);
    for (const std::string& id : decision.page_ins) REQUIRE(out_.erase(id) == 1);
    for (const std::string& id : decision.page_outs) {
      REQUIRE((!busy_[id] || waits(id)));
      REQUIRE(!out_.contains(id));
      REQUIRE(leaving_.insert(id).second);  // no session is asked twice
    }
  }

  // Two sessions use one lane at once only from two ends, and only if they trust each other; and a
  // successor may begin at any time, in the place that was named to it.
  void check_ends() {
    const DeviceState& state = scheduler_.state();
    std::map<LaneId, std::vector<const Session*>> holders;
    for (const Session& session : state.sessions)
      if (session.turn && state.has_place(session))
        holders[state.lanes.table().lane_of(session.number)].push_back(&session);
    for (const auto& [lane, those] : holders) {
      REQUIRE(those.size() <= 2);
      if (those.size() == 1) continue;
      REQUIRE(shares_);
      REQUIRE(trust(*those[0], *those[1]));
      REQUIRE(state.lanes.table().end_of(those[0]->number) +
                  state.lanes.table().end_of(those[1]->number) ==
              1);
    }
    std::erase_if(named_, [&](const auto& entry) {
      if (!scheduler_.contains(entry.first)) return true;
      const Session& session = state.sessions.of(entry.first);
      return !session.turn || session.turn->number != asked_[entry.first];
    });
    for (const auto& [id, named] : named_)
      for (const Session* other : holders[named.lane]) {
        if (other->id == id) continue;
        REQUIRE(named.end != kNoEnd);
        REQUIRE(state.lanes.table().end_of(other->number) == 1 - named.end);
      }
  }

  // Waking at the next event must do something or lie ahead, or a broker would spin.
  void look() {
    const auto next = scheduler_.next_event(now_);
    if (next) REQUIRE(*next > now_);
    const DeviceSnapshot device_snapshot = scheduler_.snapshot(now_);
    Bytes lanes = 0;
    for (const LaneState& lane : device_snapshot.lanes) lanes += lane.bytes;
    const Bytes room = device_snapshot.capacity - device_snapshot.unmanaged;
    REQUIRE(device_snapshot.free == std::max<Bytes>(0, room - device_snapshot.persistent - lanes));
    REQUIRE(device_snapshot.persistent + lanes <= device_snapshot.capacity);
    for (const SessionState& state : device_snapshot.sessions) look(state);
  }
  void look(const SessionState& state) {
    REQUIRE((state.paged_out_bytes > 0) == out_.contains(state.id));
    REQUIRE(!scheduler_.may_keep(state.id, 101));
    REQUIRE((state.state != State::throttled || held_.contains(state.id)));
    if (held_.contains(state.id)) REQUIRE(!state.position);
    if (state.lane && state.state != State::running && state.state != State::overdue)
      REQUIRE(scheduler_.may_keep(state.id, 0));
  }

  std::mt19937 random_;
  const bool shares_;
  Scheduler scheduler_;
  int pairs_ = 0;
  std::map<std::string, Grant> named_;  // by the holder that was asked to yield
  Seconds now_ = 0;
  std::map<std::string, TurnNumber> turns_;
  std::map<std::string, TurnNumber> asked_;
  std::map<std::string, bool> busy_;
  std::map<std::string, std::pair<std::string, std::string>> places_;  // group and user
  std::set<std::string> leaving_, out_, held_;
};

// How many random paths there are; `make faults` has more of them.
unsigned paths() {
  const char* said = std::getenv("GPUSHARE_TEST_PATHS");
  return said == nullptr ? 3 : static_cast<unsigned>(std::stoul(said));
}

}  // namespace

TEST_CASE("no random path breaks an invariant of the scheduler") {
  for (unsigned seed = 0; seed < paths(); ++seed) {
    CAPTURE(seed);
    SchedulerClients(seed).run(kSchedulerEvents / 10);
  }
}

TEST_CASE("no random path breaks an invariant where two may use a lane at once") {
  int pairs = 0;
  for (unsigned seed = 20; seed < 20 + paths(); ++seed) {
    CAPTURE(seed);
    SchedulerClients clients(seed, true);
    clients.run(kSchedulerEvents / 10);
    pairs += clients.pairs();
  }
  CHECK(pairs > static_cast<int>(100 * paths()));
}

// Two of one user, whose turns end at different times, and one of another user, in memory for one
// lane: if each of the two joined the other one again, the lane would never be free.
TEST_CASE("a session that may not join the two that use its lane has its turn in time") {
  Scheduler scheduler(12, "fair", {.running_lanes = 2});
  std::map<std::string, TurnNumber> turns;
  std::map<std::string, int> begun;
  std::set<std::string> asked;
  const auto enact = [&](const Decision& decision) {
    for (const Grant& grant : decision.grants) ++begun[grant.session];
    for (const Yield& yield : decision.yields) asked.insert(yield.session);
  };
  for (const auto& [id, user] : {std::pair("a", "u"), std::pair("b", "u"), std::pair("c", "v")}) {
    SessionSpec spec;
    spec.user = user;
    spec.demand = {1, 6};
    spec.shares = true;
    enact(scheduler.open(0, id, spec));
  }
  for (const auto& [id, at] : {std::pair("a", 0.0), std::pair("b", 0.15), std::pair("c", 0.15)})
    enact(scheduler.request(at, id, ++turns[id]));
  CHECK(begun == std::map<std::string, int>{{"a", 1}, {"b", 1}});
  for (int boundary = 4; boundary <= 1000; ++boundary) {
    const Seconds now = 0.05 * boundary;
    enact(scheduler.assign(now));
    const std::set<std::string> parting = std::exchange(asked, {});
    for (const std::string& id : parting) {
      enact(scheduler.finish(now, id, turns[id]));
      enact(scheduler.request(now, id, ++turns[id]));
    }
    REQUIRE(scheduler.is_valid() == "");
  }
  const auto sessions = scheduler.snapshot(50).sessions;
  const Seconds its = std::ranges::find(sessions, "c", &SessionState::id)->device_seconds;
  CHECK(its > 50.0 / 4);
  CHECK(begun["c"] > 20);
  CHECK(begun["a"] + begun["b"] > begun["c"]);
}

TEST_CASE("a call that raises has changed nothing") {
  Scheduler scheduler(100, "fair", {});
  SessionSpec spec;
  spec.demand = {10, 10};
  spec.turn = 1;
  spec.waiting = true;
  scheduler.open(1, "a", spec);
  spec.demand = {60, 60};
  CHECK_THROWS_AS(scheduler.open(2, "a", spec), DemandTooLarge);
  CHECK_THROWS_AS(scheduler.report(2, "a", 5, {60, 60}, 7), DemandTooLarge);
  CHECK_THROWS_AS(scheduler.change(2, "a", -1.0, 5, true), std::invalid_argument);
  CHECK_THROWS_AS(scheduler.close(2, "b"), UnknownSession);
  const SessionState state = scheduler.snapshot(2).sessions.at(0);
  CHECK(state.state == State::running);
  CHECK(state.priority == 0);
  CHECK(state.iterations == 0);
  CHECK(state.demand == Demand{10, 10});
}
