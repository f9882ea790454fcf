// Behaviour of lanes that the Python tests cannot see: holders, moves and merges beneath them.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

#include "core/lanes/lane_allocator.h"

using namespace gpushare;

TEST_CASE("held lanes do not merge, idle ones do") {
  LaneAllocator lanes(12);
  lanes.place(1, {1, 5});
  lanes.place(2, {1, 4});
  lanes.hold(1);
  lanes.hold(2);
  CHECK_FALSE(lanes.fits({2, 4}));
  CHECK_FALSE(lanes.place(3, {2, 4}));
  const LaneId stays = lanes.table().lane_of(1);
  lanes.release(2);
  CHECK(lanes.place(3, {2, 4}));
  CHECK(lanes.table().lane_of(1) == stays);
  CHECK(lanes.table().lanes().size() == 1);
  CHECK(lanes.is_valid() == "");
}

TEST_CASE("a session that waits for a held lane moves to an idle one or to one of its own") {
  LaneAllocator lanes(12);
  lanes.place(1, {1, 4}, 1);
  lanes.place(2, {1, 4}, 1);
  lanes.hold(1);
  CHECK_FALSE(lanes.can_move(2, 1));
  REQUIRE(lanes.can_move(2, 2));
  lanes.move(2, 2);
  CHECK(lanes.table().lanes().size() == 2);
  CHECK(lanes.used() == 10);
  CHECK(lanes.is_valid() == "");
}

TEST_CASE("a session that runs already is placed in a lane without a holder") {
  LaneAllocator lanes(12);
  lanes.place(1, {1, 4}, 1);
  lanes.hold(1);
  REQUIRE(lanes.adopt(2, {1, 4}, 1));
  CHECK(lanes.table().lane_of(1) != lanes.table().lane_of(2));
  CHECK(lanes.table().held() == 2);
  CHECK_FALSE(lanes.adopt(3, {1, 4}, 1));
  lanes.merge_down(1);
  CHECK(lanes.table().lanes().size() == 2);
  lanes.release(1);
  lanes.merge_down(1);
  CHECK(lanes.table().lanes().size() == 1);
  CHECK(lanes.is_valid() == "");
}

TEST_CASE("a holder that grows stays in its lane") {
  LaneAllocator lanes(20);
  lanes.place(1, {1, 4});
  lanes.place(2, {1, 6});
  lanes.hold(1);
  const LaneId stays = lanes.table().lane_of(1);
  CHECK(lanes.resize(1, {1, 15}));  // only with the idle lane merged into its own
  CHECK(lanes.table().lane_of(1) == stays);
  CHECK(lanes.table().lane_of(2) == stays);
  CHECK(lanes.is_valid() == "");
}

TEST_CASE("two hold one lane in what is left, from the larger of them to both together") {
  for (const Bytes capacity : {8, 10, 12, 14, 20}) {
    LaneAllocator lanes(capacity);
    lanes.place(1, {1, 6}, 1);
    lanes.place(2, {1, 4}, 1);
    lanes.hold(1);
    CHECK(lanes.table().end_of(1) == kNoEnd);
    REQUIRE(lanes.can_hold_beside(2));
    lanes.hold_beside(2);
    const LaneTable::Lane& lane = lanes.table().lane_with(1);
    CHECK(lane.width == std::min<Bytes>(capacity - 2, 10));
    CHECK(lanes.used() == 2 + lane.width);
    CHECK(lanes.table().end_of(1) + lanes.table().end_of(2) == 1);
    CHECK(lanes.table().other_holder(1) == 2);
    CHECK(lanes.table().held() == 1);
    CHECK(lanes.table().holders() == 2);
    CHECK(lanes.is_valid() == "");
  }
}

TEST_CASE("a lane is held at each of its ends once, and by no member that needs more") {
  LaneAllocator lanes(20);
  lanes.place(1, {1, 4}, 1);
  lanes.place(2, {1, 4}, 1);
  lanes.place(3, {1, 4}, 1);
  CHECK_FALSE(lanes.can_hold_beside(1));  // it is not held
  lanes.hold(1);
  CHECK_FALSE(lanes.can_hold_beside(1));
  lanes.hold_beside(2);
  CHECK_FALSE(lanes.can_hold_beside(3));
  CHECK_THROWS_AS(lanes.hold_beside(3), std::logic_error);
  CHECK_THROWS_AS(lanes.hold(3), std::logic_error);
  lanes.release(1);
  CHECK(lanes.resize(3, {1, 12}));  // above the width, 8
  CHECK_FALSE(lanes.can_hold_beside(3));
  CHECK(lanes.resize(3, {1, 8}));
  CHECK(lanes.can_hold_beside(3));
  CHECK(lanes.is_valid() == "");
}

TEST_CASE("a lane keeps its width while one of the two holds it, and for a successor") {
  LaneAllocator lanes(20);
  for (const SessionNumber session : {1, 2, 3}) lanes.place(session, {1, 4}, 1);
  lanes.hold(1);
  lanes.hold_beside(2);
  const int end = lanes.table().end_of(2);
  lanes.release(1);
  CHECK(lanes.used() == 3 + 8);
  CHECK(lanes.table().end_of(2) == end);
  lanes.release_to_successor(2);
  CHECK(lanes.used() == 3 + 8);
  lanes.hold(3);
  CHECK(lanes.table().end_of(3) == end);
  lanes.settle_ends();
  CHECK(lanes.used() == 3 + 8);
  lanes.release_to_successor(3);  // which has gone
  lanes.settle_ends();
  CHECK(lanes.used() == 3 + 4);
  CHECK(lanes.table().with_ends() == 0);
  lanes.hold(2);
  CHECK(lanes.table().end_of(2) == kNoEnd);
  lanes.hold_beside(1);
  CHECK(lanes.table().end_of(2) == end);  // as before: nothing is mapped again
  CHECK(lanes.is_valid() == "");
}

TEST_CASE("the width of a lane counts: nothing is placed in it, and what leaves does not free it") {
  LaneAllocator lanes(12);
  lanes.place(1, {1, 4}, 1);
  lanes.place(2, {1, 4}, 1);
  lanes.hold(1);
  CHECK(lanes.fits({3, 4}));
  lanes.hold_beside(2);
  CHECK(lanes.fits({2, 8}));
  CHECK_FALSE(lanes.fits({3, 4}));
  CHECK_FALSE(lanes.resize(1, {4, 4}));
  lanes.remove(2);
  CHECK_FALSE(lanes.fits({4, 4}));
  lanes.release(1);
  CHECK(lanes.fits({4, 4}));
  CHECK(lanes.is_valid() == "");
}

TEST_CASE("unmanaged memory takes room from newcomers, and nothing from present sessions") {
  LaneAllocator lanes(20);
  lanes.place(1, {2, 6});
  lanes.place(2, {2, 4});
  lanes.set_unmanaged(12);
  CHECK(lanes.used() == 14);
  CHECK(lanes.free() == 0);
  CHECK_FALSE(lanes.fits({0, 0}));
  CHECK_FALSE(lanes.adopt(3, {0, 0}));
  CHECK_FALSE(lanes.resize(2, {7, 4}));
  CHECK(lanes.resize(1, {1, 7}));  // no more than before, with both lanes merged
  CHECK(lanes.used() == 10);
  CHECK(lanes.is_valid() == "");
  lanes.remove(1);
  CHECK(lanes.fits({1, 4}));
  CHECK(lanes.fits_empty({10, 10}));
  CHECK_FALSE(lanes.fits_alone({5, 4}));
  lanes.set_unmanaged(100);
  CHECK(lanes.unmanaged() == 20);
  lanes.set_unmanaged(0);
  CHECK(lanes.free() == 14);
  CHECK_THROWS_AS(lanes.set_unmanaged(-1), std::invalid_argument);
}

TEST_CASE("without holders, a session is refused only where one lane for all would not hold it") {
  std::mt19937 random(21);
  LaneAllocator lanes(100);
  std::map<SessionNumber, Demand> members;
  const auto below = [&](int n) { return static_cast<Bytes>(random() % n); };
  const auto fits = [&](SessionNumber session, const Demand& demand) {
    Bytes persistent = demand.persistent, ephemeral = demand.ephemeral;
    for (const auto& [other, known] : members) {
      if (other == session) continue;
      persistent += known.persistent;
      ephemeral = std::max(ephemeral, known.ephemeral);
    }
    return persistent + ephemeral <= 100;
  };
  for (int i = 0; i < 30'000; ++i) {
    const SessionNumber session = 1 + random() % 10;
    const Demand demand{below(13), below(41)};
    if (!members.contains(session)) {
      const bool placed = lanes.place(session, demand, static_cast<int>(below(5))).has_value();
      REQUIRE(placed == fits(session, demand));
      if (placed) members[session] = demand;
    } else if (below(2) == 0) {
      lanes.remove(session);
      members.erase(session);
    } else if (lanes.resize(session, demand)) {
      members[session] = demand;
    } else {
      REQUIRE_FALSE(fits(session, demand));
    }
    REQUIRE(lanes.used() <= 100);
    REQUIRE(lanes.is_valid() == "");
  }
}

TEST_CASE("no random path breaks an invariant") {
  std::mt19937 random(20);
  LaneAllocator lanes(1000);
  const auto below = [&](int n) { return static_cast<Bytes>(random() % n); };
  int shared = 0;
  for (int i = 0; i < 300'000; ++i) {
    const SessionNumber session = 1 + random() % 10;
    const Demand demand{below(120), below(500)};
    const int limit = static_cast<int>(below(4));
    const Bytes used = lanes.used();
    const bool placed = lanes.table().contains(session);
    const bool holds = placed && lanes.table().holds(session);
    switch (random() % 11) {
      case 0:
        if (!placed) {
          const bool fits = lanes.fits(demand);
          REQUIRE(lanes.place(session, demand, limit).has_value() == fits);
        }
        break;
      case 1:
        if (!placed) lanes.adopt(session, demand, limit);
        break;
      case 2:
        if (placed) lanes.resize(session, demand);
        break;
      case 3:
        if (placed) {
          const Bytes without = lanes.table().used_without(session);
          lanes.remove(session);
          REQUIRE(lanes.used() == without);
          lanes.settle_ends();
        }
        break;
      case 4:
        if (placed && !lanes.table().has_held_lane(session)) lanes.hold(session);
        break;
      case 5:
        if (holds) lanes.release(session);
        break;
      case 6:
        if (placed && !holds && lanes.table().has_held_lane(session) &&
            lanes.can_move(session, limit))
          lanes.move(session, limit);
        break;
      case 7:
        lanes.merge_down(limit);
        break;
      case 8:
        lanes.set_unmanaged(random() % 3 == 0 ? below(1200) : 0);
        break;
      case 9:
        if (placed && lanes.can_hold_beside(session)) {
          const LaneTable::Lane& lane = lanes.table().lane_with(session);
          const bool is_new = lane.width == 0;
          lanes.hold_beside(session);
          ++shared;
          REQUIRE(lanes.table().end_of(session) != kNoEnd);
          if (is_new) {
            REQUIRE(lane.width >= lane.largest());
            REQUIRE(lane.width <= lane.two_largest());
          }
        }
        break;
      case 10:
        if (holds) {
          const int end = lanes.table().end_of(session);
          lanes.release_to_successor(session);
          if (placed && end != kNoEnd && !lanes.table().has_held_lane(session)) {
            lanes.hold(session);
            REQUIRE(lanes.table().end_of(session) == end);
          }
          lanes.settle_ends();
        }
        break;
    }
    REQUIRE(lanes.is_valid() == "");
    REQUIRE(lanes.free() == std::max<Bytes>(0, 1000 - lanes.unmanaged() - lanes.used()));
    if (lanes.used() > 1000 - lanes.unmanaged()) REQUIRE(lanes.used() <= used);
  }
  CHECK(shared > 1000);
}
