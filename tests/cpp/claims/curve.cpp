// Curves against the extents that they were learned from.
#include "claims/curve.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "claims/time_curve.h"

using namespace gpushare;

namespace {

using Extents = std::vector<Chunks>;  // after each event

// Up in a forward, down in a backward, with noise.
Extents iteration(std::mt19937& random, size_t events, Chunks peak) {
  Extents extents;
  for (size_t i = 0; i < events; ++i) {
    const size_t from_end = std::min(i + 1, events - i);
    extents.push_back(static_cast<Chunks>(2 * peak * from_end / (events + 1) + random() % 3));
  }
  return extents;
}

// An iteration that begins with blocks of this size.
Chunks begin(Progress& progress, Chunks budget, std::uint64_t block = 1 << 20) {
  const Chunks most = progress.begin(budget);
  for (int i = 0; i < Progress::kSigns; ++i) progress.born(block);
  return most;
}

void run(Progress& progress, const Extents& extents, Chunks budget, std::uint64_t block = 1 << 20) {
  begin(progress, budget, block);
  for (const Chunks extent : extents) progress.happened(extent);
  progress.end();
}

Chunks most_from(const Extents& extents, size_t at) {
  return *std::max_element(extents.begin() + static_cast<long>(at), extents.end());
}

}  // namespace

TEST_CASE("curve: each point has the most of its events, however many there are") {
  std::mt19937 random(1);
  for (const size_t events : {1u, 5u, 63u, 64u, 65u, 128u, 129u, 1000u, 5000u}) {
    const Extents extents = iteration(random, events, 500);
    Curve curve;
    for (const Chunks extent : extents) curve.add(extent);
    REQUIRE(curve.size() <= Curve::kPoints);
    REQUIRE(curve.events() == events);
    Extents expected(curve.size(), 0);
    for (size_t i = 0; i < events; ++i) {
      expected[i / curve.stride()] = std::max(expected[i / curve.stride()], extents[i]);
    }
    for (std::uint32_t at = 0; at < curve.size(); ++at) REQUIRE(curve[at] == expected[at]);
    CHECK(curve.peak() == most_from(extents, 0));
  }
}

TEST_CASE("curve: an iteration like those before it never needs more than its bound") {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const size_t events = 1 + random() % 700;
    std::vector<Extents> seen;
    Progress progress;
    for (int i = 0; i < 5; ++i) {
      seen.push_back(iteration(random, events, 100));
      run(progress, seen.back(), 1000);
    }
    const Extents& again = seen[random() % seen.size()];
    Chunks before = begin(progress, 1000);
    REQUIRE(before >= most_from(again, 0));
    for (size_t i = 0; i < again.size(); ++i) {
      const Chunks bound = progress.happened(again[i]);
      REQUIRE(bound <= before);
      REQUIRE(bound >= most_from(again, i));
      before = bound;
    }
  }
}

TEST_CASE("curve: a bound falls while an iteration goes down") {
  std::mt19937 random(3);
  Progress progress;
  for (int i = 0; i < 3; ++i) run(progress, iteration(random, 400, 100), 1000);
  const Extents last = iteration(random, 400, 100);
  begin(progress, 1000);
  Chunks bound = 0;
  for (size_t i = 0; i < 350; ++i) bound = progress.happened(last[i] > 2 ? last[i] - 3 : 0);
  CHECK(bound < 40);
}

TEST_CASE("curve: nothing is known at first, and what is larger than known has no bound below") {
  Progress progress;
  CHECK(progress.begin(77) == 77);
  CHECK(progress.happened(5) == 77);
  progress.end();
  CHECK(progress.begin(77) == 77);  // one iteration is an accident
  progress.happened(5);
  progress.end();
  CHECK(progress.begin(77) == 5);
  CHECK(progress.happened(6) == 6);
  CHECK(progress.happened(1) == 6);
  CHECK(progress.happened(9) == 9);
  progress.end();
  CHECK(progress.begin(77) == 9);
  CHECK(progress.begin(7) == 7);
}

TEST_CASE("curve: an iteration of another kind changes nothing that is known of the first") {
  Progress progress;
  const Extents training{1, 4, 50, 9, 3, 1}, evaluation{1, 2, 3, 2, 1};
  const auto bound_after = [&](size_t events) {
    begin(progress, 100);
    Chunks bound = 0;
    for (size_t i = 0; i < events; ++i) bound = progress.happened(training[i]);
    return bound;
  };
  for (int i = 0; i < 3; ++i) run(progress, training, 100);
  CHECK(bound_after(4) == 9);
  for (int i = 0; i < 100; ++i) run(progress, evaluation, 100, 2 << 20);
  CHECK(bound_after(2) == 50);
  CHECK(bound_after(4) == 9);
  begin(progress, 100, 2 << 20);
  CHECK(progress.happened(1) == 3);
}

TEST_CASE("curve: of many kinds those that were seen last are known") {
  Progress progress;
  for (Chunks kind = 1; kind <= Progress::kKinds + 1; ++kind) {
    for (int i = 0; i < 2 * Envelope::kHalf; ++i) run(progress, {100 - kind}, 100, kind << 20);
  }
  CHECK(progress.peak() == 98);  // 99 was that of the first
}

TEST_CASE("curve: where each iteration is a kind of its own, it needs what all have needed") {
  Progress progress;
  for (std::uint64_t size = 1; size < 20; ++size) run(progress, {1, 30, 7, 1}, 100, size << 20);
  CHECK(begin(progress, 100, 20 << 20) == 30);
  for (const Chunks extent : {1, 30}) progress.happened(extent);
  CHECK(progress.happened(7) == 7);
}

TEST_CASE("curve: what was needed once is forgotten after 64 iterations at the latest") {
  Progress progress;
  run(progress, {1, 50, 1}, 100);
  for (int i = 0; i < Envelope::kHalf - 1; ++i) run(progress, {1, 5, 1}, 100);
  CHECK(progress.peak() == 50);
  for (int i = 0; i < Envelope::kHalf; ++i) run(progress, {1, 5, 1}, 100);
  CHECK(progress.peak() == 50);
  run(progress, {1, 5, 1}, 100);
  CHECK(progress.peak() == 5);
}

TEST_CASE("time curve: each part of the time has the most that was alive in it") {
  std::mt19937 random(5);
  for (const std::uint32_t events : {1U, 2U, 31U, 63U, 64U, 65U, 200U, 5000U}) {
    TimeCurve curve;
    double now = 7;
    std::vector<std::pair<double, std::uint64_t>> alive;  // from when on, how many bytes
    curve.begin(now);
    for (std::uint32_t i = 0; i < events; ++i) {
      now += static_cast<double>(random() % 1000) / 1000;
      alive.emplace_back(now, random() % 100);
      curve.add(alive.back().second, [&] { return now; });
    }
    now += 1;
    curve.end(now);
    REQUIRE(curve.known().seconds == doctest::Approx(now - 7));
    const double part = curve.known().seconds / TimeCurve::kParts;
    // a point is of several events, so a part may have what was alive a little before or after it
    const double slack = now * 3 / TimeCurve::kPoints;
    for (std::uint32_t at = 0; at < TimeCurve::kParts; ++at) {
      const double from = 7 + at * part, to = from + part;
      std::uint64_t least = 0, most = 0;
      for (size_t i = 0; i < alive.size(); ++i) {
        const double until = i + 1 < alive.size() ? alive[i + 1].first : now;
        if (alive[i].first < to && until > from) least = std::max(least, alive[i].second);
        if (alive[i].first < to + slack && until > from - slack)
          most = std::max(most, alive[i].second);
      }
      CHECK(curve.known().bytes[at] >= least);
      CHECK(curve.known().bytes[at] <= most);
    }
  }
}

TEST_CASE(
    "time curve: an evaluation does not take the place of a training, but what comes after does") {
  TimeCurve curve;
  double now = 0;
  const auto iterate = [&](std::uint32_t events, std::uint64_t bytes) {
    for (std::uint32_t i = 0; i < TimeCurve::kEvery; ++i) {
      curve.begin(now);
      for (std::uint32_t j = 0; j < events; ++j) curve.add(bytes, [&] { return now += 1; });
      curve.end(now += 1);
    }
    return curve.known().bytes[TimeCurve::kParts - 1];
  };
  CHECK(iterate(100, 7) == 7);
  CHECK(iterate(90, 8) == 8);
  CHECK(iterate(10, 3) == 8);
  for (std::uint32_t i = 2; i < TimeCurve::kOthers; ++i) REQUIRE(iterate(10, 3) == 8);
  CHECK(iterate(10, 3) == 3);
  CHECK(iterate(0, 3) == 3);  // nothing is known of it
}

TEST_CASE("time curve: the time is asked once a point, and not in each iteration") {
  TimeCurve curve;
  std::uint32_t asked = 0;
  const auto iterate = [&] {
    curve.begin(0);
    for (std::uint32_t i = 0; i < 5000; ++i) curve.add(1, [&] { return ++asked * 1e-6; });
    curve.end(1);
  };
  iterate();  // it was not known how many events there would be
  asked = 0;
  for (std::uint32_t i = 0; i < 10 * TimeCurve::kEvery; ++i) iterate();
  CHECK(asked <= 10 * TimeCurve::kPoints);
}
