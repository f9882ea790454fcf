// A million random events; after each one every invariant must hold.
#include <doctest/doctest.h>

#include <array>
#include <map>
#include <random>
#include <string>

#include "core/scheduler.h"

using namespace gpushare;

namespace {

constexpr int kEvents = 1'000'000;
constexpr int kSessions = 6;

// What clients know: their turns, and that a yield is sent once for each.
class Clients {
 public:
  explicit Clients(unsigned seed) : random_(seed), scheduler_(100, "fair", rules()) {}

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
  static Rules rules() { return {.quantum = 0.25, .half_life = 60, .lease = 2, .patience = 3}; }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  Demand demand() { return {below(25), below(70), below(8) != 0}; }
  std::string any() { return "session" + std::to_string(below(kSessions)); }

  Decision step() {
    const std::string id = any();
    const auto kind = below(100);
    if (kind < 12) return open(id);
    if (kind < 17) return close(id);
    if (kind < 47) return scheduler_.request(now_, id, ++turns_[id]);
    if (kind < 77) return scheduler_.finish(now_, id, turns_[id] - (below(10) == 0 ? 1 : 0));
    if (kind < 87) return report(id);
    if (kind < 92)
      return scheduler_.change(now_, id, 1.0 + below(3), static_cast<int>(below(2)), below(3) == 0);
    if (kind < 94) return scheduler_.set_policy(now_, policies()[below(5)].name);
    if (kind < 96) return scheduler_.set_running_lanes(now_, static_cast<int>(below(4)));
    now_ = scheduler_.next_event(now_).value_or(now_);
    return scheduler_.assign(now_);
  }

  Decision open(const std::string& id) {
    SessionSpec spec;
    spec.user = "user" + std::to_string(below(3));
    spec.demand = demand();
    spec.turn = ++turns_[id];
    spec.holding = below(4) == 0;
    spec.waiting = !spec.holding && below(2) == 0;
    spec.paused = below(10) == 0;
    asked_.erase(id);
    return scheduler_.open(now_, id, spec);
  }
  Decision close(const std::string& id) {
    asked_.erase(id);
    return scheduler_.close(now_, id);
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
    }
    for (const Yield& yield : decision.yields) {
      REQUIRE(asked_[yield.session] != yield.turn);
      asked_[yield.session] = yield.turn;
    }
  }

  // Waking at the next event must do something or lie ahead, or a broker would spin.
  void look() {
    const auto next = scheduler_.next_event(now_);
    if (next) REQUIRE(*next > now_);
    const Picture picture = scheduler_.picture(now_);
    Bytes lanes = 0;
    for (const LaneState& lane : picture.lanes) lanes += lane.bytes;
    REQUIRE(picture.persistent + lanes + picture.free == picture.capacity);
    REQUIRE(picture.free >= 0);
  }

  std::mt19937 random_;
  Scheduler scheduler_;
  Seconds now_ = 0;
  std::map<std::string, TurnNumber> turns_;
  std::map<std::string, TurnNumber> asked_;
};

}  // namespace

TEST_CASE("no random path breaks an invariant of the scheduler") {
  for (unsigned seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    Clients(seed).run(kEvents / 10);
  }
}

TEST_CASE("a call that raises has changed nothing") {
  Scheduler scheduler(100, "fair", {});
  SessionSpec spec;
  spec.demand = {10, 10};
  spec.turn = 1;
  spec.waiting = true;
  scheduler.open(1, "a", spec);
  spec.demand = {60, 60};
  CHECK_THROWS_AS(scheduler.open(2, "a", spec), std::overflow_error);
  CHECK_THROWS_AS(scheduler.report(2, "a", 5, {60, 60}, 7), std::overflow_error);
  CHECK_THROWS_AS(scheduler.change(2, "a", -1.0, 5, true), std::invalid_argument);
  CHECK_THROWS_AS(scheduler.close(2, "b"), UnknownSession);
  const SessionState state = scheduler.picture(2).sessions.at(0);
  CHECK(state.state == State::running);
  CHECK(state.priority == 0);
  CHECK(state.iterations == 0);
  CHECK(state.demand == Demand{10, 10});
}
