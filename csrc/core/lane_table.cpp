#include "core/lane_table.h"

#include <stdexcept>

namespace gpushare {

LaneId LaneTable::insert(SessionNumber session, const Demand& demand, LaneId lane) {
  const LaneId id = lane == kNewLane ? ++last_lane_ : lane;
  Lane& joined = lanes_[id];
  change(joined, [&] { joined.members.emplace(demand.ephemeral, session); });
  persistent_ += demand.persistent;
  members_.emplace(session, Member{demand, id});
  return id;
}

void LaneTable::remove(SessionNumber session) {
  release(session);
  const Member member = members_.at(session);
  Lane& lane = lanes_.at(member.lane);
  change(lane, [&] { lane.members.erase({member.demand.ephemeral, session}); });
  if (lane.members.empty()) lanes_.erase(member.lane);
  persistent_ -= member.demand.persistent;
  members_.erase(session);
}

void LaneTable::set_demand(SessionNumber session, const Demand& demand) {
  Member& member = members_.at(session);
  Lane& lane = lanes_.at(member.lane);
  change(lane, [&] {
    lane.members.erase({member.demand.ephemeral, session});
    lane.members.emplace(demand.ephemeral, session);
  });
  persistent_ += demand.persistent - member.demand.persistent;
  member.demand = demand;
}

void LaneTable::hold(SessionNumber session) {
  Lane& lane = lanes_.at(members_.at(session).lane);
  if (lane.is_held()) throw std::logic_error("a lane is held by one session at most");
  change(lane, [&] { lane.holder = session; });
}

void LaneTable::release(SessionNumber session) {
  Lane& lane = lanes_.at(members_.at(session).lane);
  if (lane.holder == session) change(lane, [&] { lane.holder = kNoSession; });
}

void LaneTable::merge(LaneId gone, LaneId kept) {
  Lane &from = lanes_.at(gone), &to = lanes_.at(kept);
  if (from.is_held()) throw std::logic_error("a held lane stays");
  for (const auto& [bytes, session] : from.members) members_.at(session).lane = kept;
  totals_.remove(from.bytes(), false);
  change(to, [&] { to.members.merge(from.members); });
  lanes_.erase(gone);
}

// All changes of a lane pass here, so that the running totals cannot be forgotten. A lane without
// members is about to open or to close, and does not count.
template <class Change>
void LaneTable::change(Lane& lane, Change change) {
  if (!lane.members.empty()) totals_.remove(lane.bytes(), lane.is_held());
  change();
  if (!lane.members.empty()) totals_.add(lane.bytes(), lane.is_held());
}

LaneId LaneTable::lane_of(SessionNumber session) const {
  const auto member = members_.find(session);
  return member == members_.end() ? kNoLane : member->second.lane;
}

Bytes LaneTable::bytes_of(LaneId lane) const {
  const auto found = lanes_.find(lane);
  return found == lanes_.end() ? 0 : found->second.bytes();
}

Bytes LaneTable::used_without(SessionNumber session) const {
  const Member& member = members_.at(session);
  const Members& all = lanes_.at(member.lane).members;
  Bytes shrinks = 0;
  if (all.begin()->second == session)
    shrinks = all.begin()->first - (all.size() > 1 ? std::next(all.begin())->first : 0);
  return used() - member.demand.persistent - shrinks;
}

// --- what must stay true -------------------------------------------------------------------------

std::string LaneTable::is_valid() const {
  std::size_t count = 0;
  for (const auto& [id, lane] : lanes_) {
    if (const std::string broken = is_valid(id, lane); !broken.empty()) return broken;
    count += lane.members.size();
  }
  return count == members_.size() ? totals_are_right() : "a session has a place but no lane";
}

std::string LaneTable::is_valid(LaneId id, const Lane& lane) const {
  if (lane.members.empty()) return "a lane without members is open";
  for (const auto& [bytes, session] : lane.members) {
    if (lane_of(session) != id) return "a lane has a member that is not its own";
    if (demand_of(session).ephemeral != bytes) return "a lane has a member of another size";
  }
  const bool is_right = !lane.is_held() || lane_of(lane.holder) == id;
  return is_right ? "" : "a lane is held by a session that is not in it";
}

std::string LaneTable::totals_are_right() const {
  Bytes persistent = 0;
  LaneTotals totals;
  for (const auto& [session, member] : members_) persistent += member.demand.persistent;
  for (const auto& [id, lane] : lanes_) totals.add(lane.bytes(), lane.is_held());
  if (persistent != persistent_) return "the total of persistent bytes is wrong";
  return totals == totals_ ? "" : "the totals of lanes are wrong";
}

}  // namespace gpushare
