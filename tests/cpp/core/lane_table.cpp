// The objects beneath the LaneAllocator, each by itself: the table of lanes, its totals, and the
// choice of a lane.
#include "core/lanes/lane_table.h"

#include <doctest/doctest.h>

#include <stdexcept>

#include "core/lanes/lane_choice.h"
#include "core/lanes/lane_totals.h"

using namespace gpushare;

namespace {

constexpr LaneId kNew = LaneTable::kNewLane;

// A lane of 10 bytes with two members, and one of 4 with one.
LaneTable two_lanes() {
  LaneTable table;
  table.insert(1, {2, 10}, kNew);
  table.insert(2, {3, 7}, 1);
  table.insert(3, {1, 4}, kNew);
  REQUIRE(table.is_valid() == "");
  return table;
}

std::optional<LaneId> chosen(const LaneTable& table, Bytes left, const Demand& demand,
                             int max_lanes = 2, LaneChoice::Among among = LaneChoice::Among::all) {
  return LaneChoice(table, left, max_lanes, among).lane_for(demand);
}

}  // namespace

// --- totals --------------------------------------------------------------------------------------

TEST_CASE("totals without lanes are 0") {
  const LaneTotals totals;
  CHECK(totals.held() == 0);
  CHECK(totals.bytes() == 0);
  CHECK(totals.largest() == 0);
  CHECK(totals.merged(0) == 0);
  CHECK(totals.merged(7) == 7);
}

TEST_CASE("the largest of lanes of one size stays the largest while one of them is there") {
  LaneTotals totals;
  totals.add(8, false);
  totals.add(8, true);
  totals.remove(8, false);
  CHECK(totals.largest() == 8);
  CHECK(totals.bytes() == 8);
  CHECK(totals.held() == 1);
}

TEST_CASE("held lanes stay apart, and idle ones go to the largest, held or not") {
  LaneTotals totals;
  totals.add(5, true);
  totals.add(3, true);
  totals.add(4, false);
  totals.add(2, false);
  CHECK(totals.bytes() == 14);
  CHECK(totals.merged(0) == 8);
  CHECK(totals.merged(5) == 8);
  CHECK(totals.merged(9) == 12);
}

TEST_CASE("totals are equal where the same lanes count, in whatever order they came") {
  LaneTotals a, b;
  a.add(1, true);
  a.add(2, true);
  b.add(2, true);
  b.add(1, true);
  CHECK(a == b);
  b.remove(1, true);
  b.add(1, false);
  CHECK_FALSE(a == b);
}

// --- the table -----------------------------------------------------------------------------------

TEST_CASE("a lane is as large as its largest member, and closes with its last one") {
  LaneTable table = two_lanes();
  CHECK(table.bytes_of(1) == 10);
  CHECK(table.used() == 6 + 14);
  table.remove(1);
  CHECK(table.bytes_of(1) == 7);
  CHECK(table.is_valid() == "");
  table.remove(2);
  CHECK(table.bytes_of(1) == 0);
  CHECK(table.lanes().size() == 1);
  CHECK(table.lane_of(2) == kNoLane);
  CHECK(table.is_valid() == "");
}

TEST_CASE("the number of a lane that has closed is not used again") {
  LaneTable table = two_lanes();
  table.remove(3);
  CHECK(table.insert(4, {0, 1}, kNew) == 3);
  CHECK(table.is_valid() == "");
}

TEST_CASE("what would be used without a session is what is used once it has gone") {
  for (const SessionNumber session : {1, 2, 3}) {
    LaneTable table = two_lanes();
    const Bytes without = table.used_without(session);
    table.remove(session);
    CHECK(table.used() == without);
  }
}

TEST_CASE("a lane is held by one member, and a holder that is removed holds it no more") {
  LaneTable table = two_lanes();
  table.hold(1);
  CHECK(table.holds(1));
  CHECK(table.has_held_lane(2));
  CHECK_FALSE(table.holds(2));
  CHECK_THROWS_AS(table.hold(2), std::logic_error);
  table.release(2);  // which does not hold it
  CHECK(table.held() == 1);
  table.remove(1);
  CHECK(table.held() == 0);
  CHECK_FALSE(table.has_held_lane(2));
  CHECK(table.is_valid() == "");
}

TEST_CASE("a merged lane has the members of both, and the holder of the one that stays") {
  LaneTable table = two_lanes();
  table.hold(3);
  CHECK_THROWS_AS(table.merge(2, 1), std::logic_error);
  table.merge(1, 2);
  CHECK(table.lanes().size() == 1);
  CHECK(table.lane_of(1) == 2);
  CHECK(table.bytes_of(2) == 10);
  CHECK(table.holds(3));
  CHECK(table.is_valid() == "");
}

TEST_CASE("a demand of no bytes has a lane like any other") {
  LaneTable table;
  const LaneId lane = table.insert(1, {0, 0}, kNew);
  table.hold(1);
  CHECK(table.held() == 1);
  CHECK(table.bytes_of(lane) == 0);
  CHECK(table.is_valid() == "");
}

TEST_CASE("of the members that do not count the lane's size does not either") {
  const LaneTable table = two_lanes();
  CHECK(table.largest_among([](SessionNumber) { return true; }) == 10);
  CHECK(table.largest_among([](SessionNumber session) { return session != 1; }) == 7);
  CHECK(table.largest_among([](SessionNumber) { return false; }) == 0);
}

TEST_CASE("a demand that changes moves the size of its lane and the persistent total") {
  LaneTable table = two_lanes();
  table.hold(2);
  table.set_demand(2, {5, 12});
  CHECK(table.bytes_of(1) == 12);
  CHECK(table.persistent() == 8);
  CHECK(table.holds(2));
  table.set_demand(2, {0, 0});
  CHECK(table.used() == 3 + 14);
  CHECK(table.is_valid() == "");
}

// --- the choice ----------------------------------------------------------------------------------

TEST_CASE("a lane is opened where one may be and its bytes are left, and else joined") {
  const LaneTable table = two_lanes();
  CHECK(chosen(table, 5, {1, 4}, 0) == kNew);
  CHECK(chosen(table, 5, {1, 4}, 3) == kNew);
  CHECK(chosen(table, 4, {1, 4}, 3) == 2);
  CHECK(chosen(table, 5, {1, 4}, 2) == 2);
}

TEST_CASE("of the lanes that are large enough the one with the fewest members is joined") {
  const LaneTable table = two_lanes();
  CHECK(chosen(table, 0, {0, 4}) == 2);
  CHECK(chosen(table, 0, {0, 5}) == 1);
}

TEST_CASE("where none is large enough, the smallest lane that has room grows") {
  const LaneTable table = two_lanes();
  CHECK(chosen(table, 8, {0, 12}) == 2);
  CHECK(chosen(table, 2, {0, 12}) == 1);
  CHECK_FALSE(chosen(table, 1, {0, 12}));
}

TEST_CASE("persistent bytes that are not left fit nowhere, and none fit on an overdrawn device") {
  const LaneTable table = two_lanes();
  CHECK_FALSE(chosen(table, 3, {4, 0}));
  CHECK_FALSE(chosen(table, -1, {0, 0}));
  CHECK(chosen(table, 0, {0, 0}) == 2);
}

TEST_CASE("held lanes are not chosen where only idle ones may be") {
  LaneTable table = two_lanes();
  table.hold(3);
  CHECK(chosen(table, 0, {0, 4}, 2, LaneChoice::Among::idle) == 1);
  table.hold(1);
  CHECK_FALSE(chosen(table, 0, {0, 4}, 2, LaneChoice::Among::idle));
  CHECK(chosen(table, 4, {0, 4}, 3, LaneChoice::Among::idle) == kNew);
}

TEST_CASE("in a table without lanes one is opened") {
  CHECK(chosen(LaneTable(), 4, {1, 3}, 1) == kNew);
  CHECK_FALSE(chosen(LaneTable(), 3, {1, 3}, 1));
}
