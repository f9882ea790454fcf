// Chooses the lane that a session of some demand should go to now. It changes nothing.
#pragma once

#include <optional>

#include "core/lanes/lane_table.h"
#include "core/model/types.h"

namespace gpushare {

class LaneChoice {
 public:
  enum class Among { all, idle };  // lanes that may be chosen

  // The demand may add `left` bytes to what is used; below 0, unmanaged memory takes more than was
  // free. A new lane may be opened where there are less than `max_lanes` (0: no limit).
  LaneChoice(const LaneTable& table, Bytes left, int max_lanes, Among among)
      : table_(table), left_(left), max_lanes_(max_lanes), among_(among) {}

  // kNewLane: one has to be opened; absent: the demand does not fit now.
  std::optional<LaneId> lane_for(const Demand& demand) const;

 private:
  using Lane = LaneTable::Lane;

  bool may_open() const;
  bool may_be(const Lane& lane) const { return among_ == Among::all || !lane.is_held(); }
  std::optional<LaneId> to_join(const Demand& demand) const;
  std::optional<LaneId> to_grow(const Demand& demand) const;

  const LaneTable& table_;
  Bytes left_;
  int max_lanes_;
  Among among_;
};

}  // namespace gpushare
