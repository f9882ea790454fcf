// Each row of the table is a strict weak order, and says the same of now and of later.
#include <doctest/doctest.h>

#include <random>

#include "core/decayed.h"
#include "core/policy.h"

using namespace gpushare;

namespace {

constexpr Seconds kQuantum = 0.25;

// Few different values, so that there are ties.
Candidate any_candidate(std::mt19937& random) {
  static const int users[] = {0, 1, 2};
  const auto pick = [&](int n) { return static_cast<double>(random() % n); };
  Candidate candidate;
  candidate.priority = static_cast<int>(random() % 2);
  candidate.weight = 1 + pick(2);
  const auto user = random() % 3;
  candidate.user = &users[user];
  candidate.user_turns = 1;
  candidate.user_clock = static_cast<double>(user % 2);
  candidate.clock = pick(3);
  candidate.attained = pick(3);
  candidate.waiting = pick(3);
  if (random() % 2) candidate.remaining = 1 + pick(3);
  candidate.order = random() % 4;
  return candidate;
}

// The same holder, `more` seconds later.
Candidate later(Candidate holder, Seconds more) {
  holder.running += more;
  holder.attained += more;
  holder.clock += more / holder.weight;
  holder.user_clock += more;
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
      const Candidate holder = any_candidate(random);
      Candidate waiting = any_candidate(random);
      const Seconds time = ends_in(policy, holder, waiting, kQuantum);
      const auto still = [&](Seconds more) {
        Candidate other = waiting;  // a user's clock goes on for all its sessions
        if (other.user == holder.user) other.user_clock += more;
        return ends_in(policy, later(holder, more), other, kQuantum);
      };
      if (holder.user == waiting.user) waiting.user_clock = holder.user_clock;
      if (time == kNever) {
        REQUIRE(still(100) == kNever);
      } else {
        REQUIRE(still(time) == doctest::Approx(0).epsilon(1e-9));
        if (time > 0.01) REQUIRE(still(time / 2) == doctest::Approx(time / 2));
      }
    }
  }
}

TEST_CASE("a name that is not in the table is refused with those that are") {
  CHECK(policy_named("fair").name == "fair");
  CHECK_THROWS_WITH(policy_named("rr"),
                    "there is no policy 'rr'; choose one of fair, fifo, srtf, pack, las, classroom");
}

TEST_CASE("a decayed value halves with each half-life and takes additions at any time") {
  Decayed used;
  used.add(100, 10, 8);
  CHECK(used.at(110, 10) == doctest::Approx(4));
  used.add(110, 10, 4);
  CHECK(used.at(130, 10) == doctest::Approx(2));
  CHECK(used.at(130, kNever) == doctest::Approx(8));
}
