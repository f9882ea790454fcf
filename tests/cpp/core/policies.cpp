// Each row of the table is a strict weak order, and is the same for now and for later.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/device/pace.h"
#include "core/policies/policy.h"
#include "core/shares/share.h"

using namespace gpushare;

namespace {

constexpr Seconds kQuantum = 0.25;

// Few different values, so that there are ties.
Candidate any_candidate(std::mt19937& random) {
  static const int groups[] = {0, 1}, users[] = {0, 1, 2, 3};
  const auto pick = [&](int n) { return static_cast<double>(random() % n); };
  Candidate candidate;
  candidate.priority = static_cast<int>(random() % 2);
  candidate.weight = 1 + pick(2);
  const auto user = random() % 4, group = user / 2;
  candidate.group = &groups[group];
  candidate.group_weight = 0.5 * static_cast<double>(1 + group);
  candidate.group_turns = 1;
  candidate.group_clock = {pick(2) * static_cast<double>(group)};
  candidate.user = &users[user];
  candidate.user_weight = 0.5 * static_cast<double>(1 + user);
  candidate.user_turns = 1;
  candidate.user_clock = {static_cast<double>(user % 2)};
  candidate.user_served = -pick(3);
  candidate.clock = {pick(3)};
  candidate.attained = {pick(3)};
  candidate.waiting = pick(3);
  if (random() % 2) candidate.remaining = 1 + pick(3);
  candidate.boost = pick(3) / 4;
  candidate.begun = random() % 2;
  candidate.order = random() % 4;
  return candidate;
}

// The same holder, `more` seconds later.
Candidate later(Candidate holder, Seconds more) {
  holder.running += more;
  holder.attained += more;
  holder.clock += more / holder.weight;
  holder.user_clock += more / holder.user_weight;
  holder.group_clock += more / holder.group_weight;
  holder.boost = std::max(0.0, holder.boost - more);
  if (holder.remaining) *holder.remaining -= more;
  if (holder.remaining && *holder.remaining <= 0) holder.remaining.reset();
  return holder;
}

}  // namespace

TEST_CASE("every policy is a strict weak order, priority first") {
  std::mt19937 random(1);
  for (const Policy& policy : policies()) {
    CAPTURE(policy.name);
    for (int i = 0; i < 20'000; ++i) {
      const Candidate a = any_candidate(random), b = any_candidate(random),
                      c = any_candidate(random);
      const auto less = [&](const Candidate& x, const Candidate& y) {
        return before(policy, x, y);
      };
      const auto equal = [&](const Candidate& x, const Candidate& y) {
        return !less(x, y) && !less(y, x);
      };
      REQUIRE_FALSE(less(a, a));
      if (less(a, b)) REQUIRE_FALSE(less(b, a));
      if (less(a, b) && less(b, c)) REQUIRE(less(a, c));
      if (equal(a, b) && equal(b, c)) REQUIRE(equal(a, c));
      if (a.priority > b.priority) REQUIRE(less(a, b));
    }
  }
}

TEST_CASE("a turn ends exactly when it was said to end") {
  std::mt19937 random(2);
  for (const Policy& policy : policies()) {
    CAPTURE(policy.name);
    for (int i = 0; i < 20'000; ++i) {
      Candidate holder = any_candidate(random);
      Candidate waiting = any_candidate(random);
      holder.begun = true;
      if (holder.group == waiting.group) waiting.group_clock = holder.group_clock;
      if (holder.user == waiting.user) waiting.user_clock = holder.user_clock;
      const Seconds time = ends_in(policy, holder, waiting, kQuantum);
      const auto still = [&](Seconds more) {
        Candidate other = waiting;  // a group's or user's clock advances for all its sessions
        if (other.group == holder.group) other.group_clock += more / other.group_weight;
        if (other.user == holder.user) other.user_clock += more / other.user_weight;
        return ends_in(policy, later(holder, more), other, kQuantum);
      };
      if (time == kNever) {
        REQUIRE(still(100) == kNever);
      } else {
        REQUIRE(still(time) == doctest::Approx(0).epsilon(1e-9));
        if (time > 0.01) REQUIRE(still(time / 2) == doctest::Approx(time / 2));
      }
    }
  }
}

TEST_CASE("a cell's first turn ends any other at once, where the policy boosts") {
  Candidate holder, fresh;
  fresh.boost = holder.boost = 0.5;
  fresh.begun = false;
  for (const Policy& policy : policies()) {
    CAPTURE(policy.name);
    CHECK(before(policy, fresh, holder) == policy.boosts);
    CHECK((ends_in(policy, holder, fresh, kQuantum) == 0) == policy.boosts);
    fresh.priority = -1;
    CHECK(ends_in(policy, holder, fresh, kQuantum) == kNever);
    fresh.priority = 0;
  }
}

TEST_CASE(
    "a share's clock advances with its turns, by weight, and a new weight counts from then on") {
  const Fading never(kNever);
  Share share;
  share.begin_turn(0, never);
  share.begin_turn(1, never);
  CHECK(share.clock(2, never).seconds() == doctest::Approx(3));
  share.weigh(2, never, 2);
  CHECK(share.clock(2, never).seconds() == doctest::Approx(3));
  CHECK(share.clock(3, never).seconds() == doctest::Approx(4));
  share.end_turn(3, never);
  CHECK(share.clock(4, never).seconds() == doctest::Approx(4.5));
  share.end_turn(4, never);
  CHECK(share.clock(9, never).seconds() == doctest::Approx(4.5));
  CHECK(share.served == 1);
}

TEST_CASE("a policy has one name, whatever the case in which people write it") {
  for (const Policy& policy : policies()) {
    std::string loud(policy.name);
    for (char& each : loud) each = static_cast<char>(std::toupper(each));
    CHECK(policy_named(loud).name == policy.name);
    CHECK(policy_named(policy.name).name == policy.name);
  }
  CHECK(policy_named("Fair").name == "fair");
}

TEST_CASE("a name that is not in the table is refused with those that are") {
  CHECK_THROWS_WITH(
      policy_named("rr"),
      "there is no policy 'rr'; choose one of fair, fifo, srtf, pack, las, classroom");
}

TEST_CASE("a decayed value halves with each half-life and takes additions at any time") {
  const Fading fading(10);
  Decayed used;
  used.add(100, fading, 8);
  CHECK(used.at(110, fading).seconds() == doctest::Approx(4));
  used.add(110, fading, 4);
  CHECK(used.at(130, fading).seconds() == doctest::Approx(2));
  used.convert(130, fading, Fading(kNever));
  CHECK(used.at(1e9, Fading(kNever)).seconds() == doctest::Approx(2));
}

TEST_CASE("decayed values keep their order and their ties at any time") {
  std::mt19937 random(1);
  const Fading fading(7);
  for (int i = 0; i < 1'000; ++i) {
    const double a = static_cast<double>(random() % 1'000) / 7, b = std::nextafter(a, 1e9);
    Decayed less, same, more;
    less.units = same.units = a;
    more.units = b;
    for (Seconds now = 0; now < 1e4; now += 333.3) {
      REQUIRE(less.at(now, fading) == same.at(now, fading));
      REQUIRE(less.at(now, fading) < more.at(now, fading));
    }
  }
}

TEST_CASE("a pace is the recent duration of an iteration, where iterations are alike") {
  Pace pace;
  CHECK_FALSE(pace.iteration());
  pace.add(10, 1);
  CHECK(*pace.iteration() == doctest::Approx(0.1));
  CHECK(pace.longest() == doctest::Approx(0.1));  // none was longer
  for (int i = 0; i < 30; ++i) pace.add(1, 0.2);
  CHECK(*pace.iteration() == doctest::Approx(0.2).epsilon(0.01));
  CHECK(pace.longest() == doctest::Approx(0.2));
  pace.add(1, 15);
  CHECK_FALSE(pace.iteration());
}

TEST_CASE("the pace bounds the next boundary") {
  Pace pace;
  pace.add(1, 0.4);
  for (int i = 0; i < 100; ++i) pace.add(1, 0.5);
  CHECK(pace.latest(0.3, 0.5) == doctest::Approx(0.5));  // not even one of 0.4 s has ended by then
  CHECK(pace.latest(0.45, 0.5) == doctest::Approx(0.95));
  CHECK(pace.latest(0.7, 0.5) == doctest::Approx(1.0));  // one is, two are not
}
