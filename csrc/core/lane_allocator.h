// Places sessions in lanes so that, always,
//
//     used = sum of persistent + sum over lanes of the largest ephemeral in it <= capacity.
//
// A lane is nothing but its members: it is as large as the largest of them, and so it grows,
// shrinks, merges and closes with them; none is sized by hand. Members that do not hold their lane
// have nothing in it, so moving them to another one copies nothing. A member that holds its lane
// stays in it, and no lane is held twice: two held lanes never merge.
//
// Programs that are not sessions may have memory of the device as well. No session is placed in
// this unmanaged memory, but none that has a place loses it to them: then the used bytes and the
// unmanaged memory together may exceed the capacity, and the used bytes do not grow before both fit
// again.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/types.h"

namespace gpushare {

class LaneAllocator {
 public:
  using Members = std::set<std::pair<Bytes, SessionNumber>, std::greater<>>;  // largest first

  struct Lane {
    Members members;
    SessionNumber holder = kNobody;

    Bytes bytes() const { return members.empty() ? 0 : members.begin()->first; }
  };

  explicit LaneAllocator(Bytes capacity);

  // Returns the lane that took the session; absent: it has to wait. `max_lanes` 0 means no limit.
  std::optional<LaneId> place(SessionNumber session, const Demand& demand, int max_lanes = 0);
  // As place, for a session that runs already: only in a lane without a holder, if need be in one
  // of its own above `max_lanes`. It holds the lane then.
  std::optional<LaneId> adopt(SessionNumber session, const Demand& demand, int max_lanes = 0);
  // False, and nothing changed, if the new demand does not fit. A smaller one always does.
  bool resize(SessionNumber session, const Demand& demand);
  void remove(SessionNumber session);

  void hold(SessionNumber session);
  void release(SessionNumber session);

  // Whether a session whose lane is held can start in another one now; and the move.
  bool can_move(SessionNumber session, int max_lanes) const;
  void move(SessionNumber session, int max_lanes);
  // Merges lanes down to `max_lanes` (0: no limit), as far as holders allow.
  void merge_down(int max_lanes);

  // Sets the unmanaged memory, at most all of the device.
  void set_unmanaged(Bytes bytes);

  // Whether the demand fits: into the empty device; beside unmanaged memory alone; in place(). And
  // the bytes that it would add at least.
  bool fits_empty(const Demand& demand) const { return fits_into(capacity_, demand); }
  bool fits_alone(const Demand& demand) const { return fits_into(room(), demand); }
  bool fits(const Demand& demand) const;
  Bytes needs(const Demand& demand) const;
  // Whether a member would keep its place with these persistent bytes.
  bool fits_with(SessionNumber session, Bytes persistent) const;
  // The largest ephemeral demand of the members for which `counts` is true.
  template <class Counts>
  Bytes largest_among(Counts counts) const;
  Bytes bytes_of(LaneId lane) const;  // 0 if there is no such lane
  // The size that the lane could have now.
  Bytes could_grow_to(LaneId lane) const { return lanes_.at(lane).bytes() + free(); }

  bool contains(SessionNumber session) const { return members_.contains(session); }
  LaneId lane_of(SessionNumber session) const;  // kNoLane if it has no place
  const Demand& demand_of(SessionNumber session) const { return members_.at(session).demand; }
  SessionNumber holder_of(LaneId lane) const { return lanes_.at(lane).holder; }
  const std::map<LaneId, Lane>& lanes() const { return lanes_; }

  std::size_t size() const { return members_.size(); }
  int held() const { return static_cast<int>(held_.size()); }
  Bytes capacity() const { return capacity_; }
  Bytes persistent() const { return persistent_; }
  Bytes unmanaged() const { return unmanaged_; }
  // What persistent memory leaves for the lanes; below 0 where unmanaged memory takes more.
  Bytes left() const { return room() - persistent_; }
  Bytes free() const { return std::max<Bytes>(0, room() - used()); }
  bool is_overdrawn() const { return used() > room(); }  // unmanaged memory exceeds what was free
  Bytes used() const { return persistent_ + held_bytes_ + idle_bytes_; }

  std::string is_valid() const;  // empty, or the first broken invariant in words

 private:
  struct Member {
    Demand demand;
    LaneId lane;
  };
  enum class Among { all, idle };  // lanes that may be chosen

  // The lane that a session of this demand could go to now, while all others use `used` bytes;
  // kNewLane: one has to be opened.
  static constexpr LaneId kNewLane = -1;
  std::optional<LaneId> choose(const Demand&, Bytes used, int max_lanes, Among) const;
  std::optional<LaneId> to_join(const Demand&, Bytes used, Among) const;
  std::optional<LaneId> to_grow(const Demand&, Bytes used, Among) const;

  static bool fits_into(Bytes bytes, const Demand&);
  Bytes room() const { return capacity_ - unmanaged_; }    // that is not unmanaged
  Bytes most() const { return std::max(room(), used()); }  // bound after a change

  LaneId insert(SessionNumber, const Demand&, LaneId);
  void set_demand(SessionNumber, const Demand&);
  void merge(LaneId gone, LaneId kept);
  void merge_until_safe();
  template <class Change>
  void change(Lane& lane, Change change);
  void count_in(const Lane& lane);
  void count_out(const Lane& lane);

  static Bytes largest(const std::multiset<Bytes>& sizes) {
    return sizes.empty() ? 0 : *sizes.rbegin();
  }
  Bytes largest_lane() const { return std::max(largest(held_), largest(idle_)); }
  Bytes merged_bytes(Bytes extra) const;
  Bytes used_without(SessionNumber session) const;
  std::string totals_are_right() const;
  std::string lanes_are_right() const;

  Bytes capacity_;
  Bytes unmanaged_ = 0;
  Bytes limit_ = capacity_;  // bound of used(): room(), or more if unmanaged memory grew
  std::unordered_map<SessionNumber, Member> members_;
  std::map<LaneId, Lane> lanes_;
  LaneId last_lane_ = kNoLane;
  // Running totals over members_ and lanes_; is_valid() recomputes them.
  Bytes persistent_ = 0;
  Bytes held_bytes_ = 0, idle_bytes_ = 0;
  std::multiset<Bytes> held_, idle_;  // sizes of the lanes that are held, and of the others
};

template <class Counts>
Bytes LaneAllocator::largest_among(Counts counts) const {
  Bytes largest = 0;
  for (const auto& [id, lane] : lanes_) {
    const auto first = std::ranges::find_if(
        lane.members, [&](const auto& member) { return counts(member.second); });
    if (first != lane.members.end()) largest = std::max(largest, first->first);
  }
  return largest;
}

}  // namespace gpushare
