// Places sessions in lanes so that, always,
//
//     used = sum of persistent + sum over lanes of the largest ephemeral in it <= capacity.
//
// The lanes are those of a LaneTable: each is as large as the largest of its members, and none is
// sized by hand. Members that do not hold their lane have nothing in it, so moving them to another
// one copies nothing. A member that holds its lane stays in it: two held lanes never merge.
//
// Two members may hold a lane at once, each one end. The lane is then as wide as both of its
// largest members together, each in whole chunks, or as far as there is memory, and stays so while
// it is held.
//
// Programs that are not sessions may have memory of the device as well. No session is placed in
// this unmanaged memory, but none that has a place loses it to them: then the used bytes and the
// unmanaged memory together may exceed the capacity, and the used bytes do not grow before both fit
// again.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "core/lanes/lane_choice.h"
#include "core/lanes/lane_table.h"
#include "core/model/types.h"

namespace gpushare {

class LaneAllocator {
 public:
  // A lane that two members hold consists of whole chunks, which are no smaller than `least_chunk`
  // bytes: what each has of it is counted in chunks.
  explicit LaneAllocator(Bytes capacity, Bytes least_chunk = 1);

  // Returns the lane that took the session; absent: it has to wait. `max_lanes` 0 means no limit.
  std::optional<LaneId> place(SessionNumber session, const Demand& demand, int max_lanes = 0);
  // Places a session that runs already: only in a lane without a holder, if need be in one of its
  // own above `max_lanes`. It holds the lane then.
  std::optional<LaneId> adopt(SessionNumber session, const Demand& demand, int max_lanes = 0);
  // False, and nothing changed, if the new demand does not fit. A smaller one always does.
  bool resize(SessionNumber session, const Demand& demand);
  void remove(SessionNumber session) { table_.remove(session); }

  void hold(SessionNumber session) { table_.hold(session); }
  void release(SessionNumber session);
  // As above, if a successor may hold its lane now: the lane keeps its ends until `settle_ends`.
  void release_to_successor(SessionNumber session) { table_.release(session); }
  void settle_ends();

  // Whether a session can hold its lane beside the one that holds it; and that it does.
  bool can_hold_beside(SessionNumber session) const;
  void hold_beside(SessionNumber session);

  // Whether a session whose lane is held can start in another one now; and the move.
  bool can_move(SessionNumber session, int max_lanes) const;
  void move(SessionNumber session, int max_lanes);
  // Merges lanes down to `max_lanes` (0: no limit), as far as holders allow.
  void merge_down(int max_lanes);

  // Sets the unmanaged memory, at most all of the device.
  void set_unmanaged(Bytes bytes);

  // Whether the demand fits: into the empty device; beside unmanaged memory alone; in place().
  // `needs` returns the least bytes that it would add.
  bool fits_empty(const Demand& demand) const { return fits_into(capacity_, demand); }
  bool fits_alone(const Demand& demand) const { return fits_into(room(), demand); }
  bool fits(const Demand& demand) const;
  Bytes needs(const Demand& demand) const;
  // Whether a member would keep its place with these persistent bytes.
  bool fits_with(SessionNumber session, Bytes persistent) const;
  // The size that the lane could have now.
  Bytes could_grow_to(LaneId lane) const { return table_.lanes().at(lane).bytes() + free(); }

  // Which sessions are in which lane.
  const LaneTable& table() const { return table_; }
  Bytes capacity() const { return capacity_; }
  Bytes unmanaged() const { return unmanaged_; }
  // Bytes that persistent memory leaves for the lanes; below 0 where unmanaged memory takes more.
  Bytes left() const { return room() - table_.persistent(); }
  Bytes free() const { return std::max<Bytes>(0, room() - used()); }
  bool is_overdrawn() const { return used() > room(); }  // unmanaged memory exceeds what was free
  Bytes used() const { return table_.used(); }

  std::string is_valid() const;  // empty, or the first broken invariant in words

 private:
  using Among = LaneChoice::Among;

  // The lane that a session of this demand could go to now, while all others use `used` bytes.
  std::optional<LaneId> choose(const Demand&, Bytes used, int max_lanes, Among) const;
  static bool fits_into(Bytes bytes, const Demand&);
  Bytes room() const { return capacity_ - unmanaged_; }    // that is not unmanaged
  Bytes most() const { return std::max(room(), used()); }  // bound after a change
  void merge_until_safe();
  Bytes width_for_two(const LaneTable::Lane& lane) const;
  Bytes chunk_of(Bytes width) const;

  Bytes capacity_;
  Bytes least_chunk_;
  Bytes unmanaged_ = 0;
  Bytes limit_ = capacity_;  // bound of used(): room(), or more if unmanaged memory grew
  LaneTable table_;
};

}  // namespace gpushare
