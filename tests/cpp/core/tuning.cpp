// The objects beneath the concurrency tuner, each by itself. Times are in quanta.
#include <doctest/doctest.h>

#include "core/tuner/concurrency_probe.h"
#include "core/tuner/session_mix.h"
#include "core/tuner/solo_pace.h"
#include "core/tuner/speedup_window.h"

using namespace gpushare;

namespace {

constexpr Seconds kTuningQuantum = 1;

// Two turns run since 0, in two lanes.
SpeedupWindow running_two() {
  SpeedupWindow window(kTuningQuantum);
  window.set_lanes(2);
  window.runs(0, 2);
  return window;
}

}  // namespace

// --- the pace of one session alone ---------------------------------------------------------------

TEST_CASE("seconds before a report without iterations belong to the interval that goes on") {
  SoloPace pace(10);
  CHECK_FALSE(pace.report(11, 0, 0.5));
  const auto interval = pace.report(12, 4, 0.75);
  REQUIRE(interval);
  CHECK(interval->since == 10);
  CHECK(interval->iterations == 4);
  CHECK(interval->seconds == 1.25);
  CHECK(pace.report(13, 1, 0)->since == 12);
}

TEST_CASE("a pace is known from two iterations on that took a quantum and a half") {
  SoloPace pace(0);
  CHECK_FALSE(pace.is_known(kTuningQuantum));
  pace.count({0, 1, 2}, 2, 0, kTuningQuantum);
  CHECK_FALSE(pace.is_known(kTuningQuantum));
  pace.count({2, 1, 2}, 4, 0, kTuningQuantum);
  CHECK(pace.is_known(kTuningQuantum));
  CHECK(pace.work(3) == doctest::Approx(6));
  CHECK(pace.seen() == 4);
}

TEST_CASE("an interval without seconds tells nothing of a pace") {
  SoloPace pace(0);
  pace.count({0, 1000, 0}, 1, 0, kTuningQuantum);
  pace.count({0, 2, 2}, 2, 0, kTuningQuantum);
  CHECK(pace.work(1) == doctest::Approx(1));
}

TEST_CASE("what was measured before the mix is measured again does not count") {
  SoloPace pace(0);
  pace.count({0, 10, 2}, 2, 0, kTuningQuantum);
  pace.count({2, 10, 4}, 6, 3, kTuningQuantum);
  CHECK(pace.work(10) == doctest::Approx(4));
}

TEST_CASE("a pace that changes is followed, however long the old one was seen") {
  SoloPace pace(0);
  for (int i = 0; i < 1000; ++i) pace.count({0, 1, 1}, i, 0, kTuningQuantum);
  for (int i = 0; i < 200; ++i) pace.count({0, 1, 3}, 1000 + i, 0, kTuningQuantum);
  CHECK(pace.work(1) == doctest::Approx(3).epsilon(0.01));
}

// --- the mix of sessions -------------------------------------------------------------------------

TEST_CASE("a session is in the mix until it has wanted nothing for eight quanta") {
  SessionMix mix(kTuningQuantum);
  mix.follow(0, {1, 2});
  mix.follow(1, {2});  // until now the first has wanted the device
  CHECK(mix.size() == 2);
  mix.follow(9, {2});
  CHECK(mix.size() == 2);
  mix.follow(9.5, {2});
  CHECK(mix.sessions() == std::set<SessionNumber>{2});
  CHECK(mix.find(1) != nullptr);  // its pace stays known
  CHECK(mix.is_valid() == "");
}

TEST_CASE("of a session that has closed nothing is known") {
  SessionMix mix(kTuningQuantum);
  mix.follow(0, {1, 2});
  mix.forget(1);
  mix.follow(0, {2});
  CHECK(mix.find(1) == nullptr);
  CHECK(mix.find(3) == nullptr);
  CHECK(mix.sessions() == std::set<SessionNumber>{2});
  CHECK(mix.is_valid() == "");
}

TEST_CASE("a mix is known once each of its sessions is, and was seen alone since then") {
  SessionMix mix(kTuningQuantum);
  CHECK(mix.are_all_known(0));
  CHECK_FALSE(mix.is_any_known());
  mix.follow(0, {1, 2});
  mix.find(1)->count({0, 4, 2}, 2, 0, kTuningQuantum);
  CHECK(mix.is_any_known());
  CHECK_FALSE(mix.are_all_known(0));
  mix.find(2)->count({2, 4, 2}, 4, 0, kTuningQuantum);
  CHECK(mix.are_all_known(2));
  CHECK_FALSE(mix.are_all_known(3));
  CHECK(mix.is_valid() == "");
}

// --- the speedup window --------------------------------------------------------------------------

TEST_CASE("time in which no session runs does not count") {
  SpeedupWindow window(kTuningQuantum);
  window.runs(0, 0);
  window.runs(5, 1);
  window.runs(7, 0);
  window.advance(20);
  CHECK(window.time() == 2);
  CHECK(window.at_once() == 1);
  CHECK(window.is_valid() == "");
}

TEST_CASE("a window closes with a new number of lanes, and opens when no more turns run") {
  SpeedupWindow window = running_two();
  window.runs(3, 2);
  REQUIRE(window.time() == 3);
  window.set_lanes(1);
  CHECK_FALSE(window.is_open());
  window.runs(4, 2);
  CHECK_FALSE(window.is_open());
  window.runs(6, 1);
  CHECK(window.is_open());
  CHECK(window.since() == 6);
  CHECK(window.time() == 0);  // of the number before nothing is left
  CHECK(window.is_open_since(6));
  CHECK_FALSE(window.is_open_since(5));
  CHECK(window.is_valid() == "");
}

TEST_CASE("the same number of lanes once more closes nothing") {
  SpeedupWindow window = running_two();
  window.set_lanes(2);
  CHECK(window.is_open());
  CHECK(window.lanes() == 2);
}

TEST_CASE("one session is alone since then if several have not run together later") {
  SpeedupWindow window = running_two();
  window.runs(4, 1);
  window.advance(9);
  CHECK(window.is_alone_since(4));
  CHECK_FALSE(window.is_alone_since(3));
}

TEST_CASE("the weighted speedup is the work done, of a second of turns, times those at once") {
  SpeedupWindow window = running_two();
  CHECK_FALSE(window.speedup());
  window.advance(8);
  CHECK_FALSE(window.is_enough());  // nothing was reported
  window.count(6, 8);
  CHECK(window.is_enough());
  REQUIRE(window.speedup());
  CHECK(*window.speedup() == doctest::Approx(1.5));
  window.clear();
  CHECK_FALSE(window.speedup());
}

TEST_CASE("where too few run at once, there is no speedup to speak of") {
  SpeedupWindow window = running_two();
  window.runs(2, 1);
  window.advance(10);
  window.count(12, 12);
  CHECK_FALSE(window.runs_several());
  CHECK_FALSE(window.speedup());
}

TEST_CASE("a window of no lanes is not valid") {
  SpeedupWindow window(kTuningQuantum);
  window.set_lanes(0);
  CHECK(window.is_valid() != "");
}

// --- a probe -------------------------------------------------------------------------------------

TEST_CASE("a probe costs what its steps lost beside the speedup, and a faster step nothing") {
  ConcurrencyProbe probe(10);
  CHECK(probe.cost(1) == 0);
  CHECK(probe.best().lanes == 1);
  probe.end_step(14, 0.5);
  probe.begin_step(20);
  CHECK(probe.step_began() == 20);
  probe.end_step(30, 2);
  CHECK(probe.cost(1) == doctest::Approx(2));
  CHECK(probe.cost(2) == doctest::Approx(3));
}

TEST_CASE("the best outcome may be one that was not measurable") {
  ConcurrencyProbe probe(0);
  probe.set_best({3, std::nullopt});
  CHECK(probe.best().lanes == 3);
  CHECK_FALSE(probe.best().speedup);
}
