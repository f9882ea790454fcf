// The lanes of a device, and which sessions are in them. It knows no capacity: what fits is decided
// by the LaneAllocator, which alone changes a table.
//
// A lane is nothing but its members: it is as large as the largest of them, and so it grows,
// shrinks, merges and closes with them.
//
// A lane is held by one of its members, or by two; then each has one end. Then it has a width,
// which both go by and which stays as it is until neither of them, nor a successor of theirs, holds
// it any more: what is mapped from the second end depends on it.
//
// Invariants, which is_valid() checks:
//   - a session with a place is in one lane, which is not empty, with its demand;
//   - a lane is held by members of it, one at each end at most, and by two only if it has a width;
//   - the running totals are those of the members and the lanes.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/lanes/lane_totals.h"
#include "core/model/types.h"

namespace gpushare {

class LaneTable {
 public:
  using Members = std::set<std::pair<Bytes, SessionNumber>, std::greater<>>;  // largest first

  struct Lane {
    Members members;
    std::array<SessionNumber, 2> holders = {kNoSession, kNoSession};  // by end
    Bytes width = 0;   // of a lane with ends; 0: it has none, and one holder at most
    int last_end = 0;  // that was released last

    Bytes largest() const { return members.empty() ? 0 : members.begin()->first; }
    Bytes bytes() const { return std::max(width, largest()); }
    int held() const;  // ends
    bool is_held() const { return held() > 0; }
    Bytes two_largest() const;  // members together
  };

  static constexpr LaneId kNewLane = -1;  // one that is to be opened

  // Returns the lane of the session then. Each session has one place at most.
  LaneId insert(SessionNumber session, const Demand& demand, LaneId lane);
  void remove(SessionNumber session);
  void set_demand(SessionNumber session, const Demand& demand);
  // Takes the lane, or the free end of one that has ends. Raises std::logic_error if it is held.
  void hold(SessionNumber session);
  void release(SessionNumber session);  // a lane keeps its ends
  void give_ends(LaneId lane, Bytes width);
  void take_ends(LaneId lane);
  void merge(LaneId gone, LaneId kept);  // raises std::logic_error if `gone` is held

  bool contains(SessionNumber session) const { return members_.contains(session); }
  LaneId lane_of(SessionNumber session) const;  // kNoLane if it has no place
  const Demand& demand_of(SessionNumber session) const { return members_.at(session).demand; }
  const Lane& lane_with(SessionNumber member) const { return lanes_.at(lane_of(member)); }
  // Whether a member holds its lane; whether any member holds this member's lane.
  bool holds(SessionNumber session) const;
  bool has_held_lane(SessionNumber session) const { return lane_with(session).is_held(); }
  // The end that it holds, of a lane that has ends; else kNoEnd.
  int end_of(SessionNumber session) const;
  // The other holder of its lane; kNoSession: there is none.
  SessionNumber other_holder(SessionNumber session) const;
  Bytes bytes_of(LaneId lane) const;  // 0 if there is no such lane
  Bytes width_of(LaneId lane) const;  // the same
  const std::map<LaneId, Lane>& lanes() const { return lanes_; }
  // The largest ephemeral demand of the members for which `counts` is true.
  template <class Counts>
  Bytes largest_among(Counts counts) const;

  std::size_t size() const { return members_.size(); }  // sessions with a place
  int held() const { return totals_.held(); }           // lanes
  int holders() const { return holders_; }
  int with_ends() const { return with_ends_; }  // lanes
  Bytes largest_lane() const { return totals_.largest(); }
  Bytes persistent() const { return persistent_; }
  Bytes used() const { return persistent_ + totals_.bytes(); }
  // Bytes in use without this session.
  Bytes used_without(SessionNumber session) const;
  // Bytes in use, beside one more idle lane of `extra` bytes, once all lanes that may merge
  // have merged.
  Bytes used_merged(Bytes extra = 0) const { return persistent_ + totals_.merged(extra); }

  std::string is_valid() const;  // empty, or the first broken invariant in words

 private:
  struct Member {
    Demand demand;
    LaneId lane;
    int end = 0;  // the last one: to change it means to map again
  };

  template <class Change>
  void change(Lane& lane, Change change);
  void count(const Lane& lane, int times);
  std::string totals_are_right() const;
  std::string is_valid(LaneId id, const Lane& lane) const;

  std::unordered_map<SessionNumber, Member> members_;
  std::map<LaneId, Lane> lanes_;
  LaneId last_lane_ = kNoLane;
  Bytes persistent_ = 0;  // of all members
  LaneTotals totals_;
  int holders_ = 0, with_ends_ = 0;
};

template <class Counts>
Bytes LaneTable::largest_among(Counts counts) const {
  Bytes largest = 0;
  for (const auto& [id, lane] : lanes_) {
    const auto first = std::ranges::find_if(
        lane.members, [&](const auto& member) { return counts(member.second); });
    if (first != lane.members.end()) largest = std::max(largest, first->first);
  }
  return largest;
}

}  // namespace gpushare
