// The lanes of a device, and which sessions are in them. It knows no capacity: what fits is decided
// by the LaneAllocator, which alone changes a table.
//
// A lane is nothing but its members: it is as large as the largest of them, and so it grows,
// shrinks, merges and closes with them.
//
// What must stay true, and is_valid() looks at:
//   - a session with a place is in one lane, which is not empty, with its demand;
//   - a lane is held by one of its members, or by none;
//   - the running totals are those of the members and the lanes.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/lane_totals.h"
#include "core/types.h"

namespace gpushare {

class LaneTable {
 public:
  using Members = std::set<std::pair<Bytes, SessionNumber>, std::greater<>>;  // largest first

  struct Lane {
    Members members;
    SessionNumber holder = kNoSession;

    Bytes bytes() const { return members.empty() ? 0 : members.begin()->first; }
    bool is_held() const { return holder != kNoSession; }
  };

  static constexpr LaneId kNewLane = -1;  // one that is to be opened

  // Returns the lane of the session then. Each session has one place at most.
  LaneId insert(SessionNumber session, const Demand& demand, LaneId lane);
  void remove(SessionNumber session);
  void set_demand(SessionNumber session, const Demand& demand);
  void hold(SessionNumber session);  // raises std::logic_error if its lane is held
  void release(SessionNumber session);
  void merge(LaneId gone, LaneId kept);  // raises std::logic_error if `gone` is held

  bool contains(SessionNumber session) const { return members_.contains(session); }
  LaneId lane_of(SessionNumber session) const;  // kNoLane if it has no place
  const Demand& demand_of(SessionNumber session) const { return members_.at(session).demand; }
  SessionNumber holder_of(LaneId lane) const { return lanes_.at(lane).holder; }
  // Whether a member holds its lane; whether any member holds this member's lane.
  bool holds(SessionNumber session) const { return holder_of(lane_of(session)) == session; }
  bool has_held_lane(SessionNumber session) const { return lanes_.at(lane_of(session)).is_held(); }
  Bytes bytes_of(LaneId lane) const;  // 0 if there is no such lane
  const std::map<LaneId, Lane>& lanes() const { return lanes_; }
  // The largest ephemeral demand of the members for which `counts` is true.
  template <class Counts>
  Bytes largest_among(Counts counts) const;

  std::size_t size() const { return members_.size(); }  // sessions with a place
  int held() const { return totals_.held(); }
  Bytes largest_lane() const { return totals_.largest(); }
  Bytes persistent() const { return persistent_; }
  Bytes used() const { return persistent_ + totals_.bytes(); }
  // What would be used without this session.
  Bytes used_without(SessionNumber session) const;
  // What would be used, beside one more idle lane of `extra` bytes, once all lanes that may merge
  // have merged.
  Bytes used_merged(Bytes extra = 0) const { return persistent_ + totals_.merged(extra); }

  std::string is_valid() const;  // empty, or the first broken invariant in words

 private:
  struct Member {
    Demand demand;
    LaneId lane;
  };

  template <class Change>
  void change(Lane& lane, Change change);
  std::string totals_are_right() const;
  std::string is_valid(LaneId id, const Lane& lane) const;

  std::unordered_map<SessionNumber, Member> members_;
  std::map<LaneId, Lane> lanes_;
  LaneId last_lane_ = kNoLane;
  Bytes persistent_ = 0;  // of all members
  LaneTotals totals_;
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
