#include "core/lanes/lane_choice.h"

#include <algorithm>

namespace gpushare {

std::optional<LaneId> LaneChoice::lane_for(const Demand& demand) const {
  if (demand.persistent > left_) return std::nullopt;
  if (may_open() && demand.ephemeral <= left_ - demand.persistent) return LaneTable::kNewLane;
  const auto lanes = static_cast<int>(table_.lanes().size());
  if (among_ == Among::idle && table_.held() == lanes) return std::nullopt;
  if (const auto lane = to_join(demand)) return lane;
  return to_grow(demand);
}

bool LaneChoice::may_open() const {
  return max_lanes_ == 0 || static_cast<int>(table_.lanes().size()) < max_lanes_;
}

// A lane that is large enough; of several, the one with the fewest members that share its time.
std::optional<LaneId> LaneChoice::to_join(const Demand& demand) const {
  const Lane* best = nullptr;
  std::optional<LaneId> id_of_best;
  for (const auto& [id, lane] : table_.lanes()) {
    if (!may_be(lane) || lane.bytes() < demand.ephemeral) continue;
    if (best && lane.members.size() >= best->members.size()) continue;
    best = &lane;
    id_of_best = id;
  }
  return id_of_best;
}

// The smallest lane that has room to grow: larger ones stay as they are for sessions that need
// them.
std::optional<LaneId> LaneChoice::to_grow(const Demand& demand) const {
  const Lane* best = nullptr;
  std::optional<LaneId> id_of_best;
  for (const auto& [id, lane] : table_.lanes()) {
    const Bytes growth = std::max<Bytes>(0, demand.ephemeral - lane.bytes());
    if (!may_be(lane) || demand.persistent + growth > left_) continue;
    if (best && lane.bytes() >= best->bytes()) continue;
    best = &lane;
    id_of_best = id;
  }
  return id_of_best;
}

}  // namespace gpushare
