#include "core/lanes/lane_table.h"

#include <iterator>
#include <stdexcept>

namespace gpushare {

int LaneTable::Lane::held() const {
  return static_cast<int>(holders.size() - std::ranges::count(holders, kNoSession));
}

Bytes LaneTable::Lane::two_largest() const {
  return largest() + (members.size() > 1 ? std::next(members.begin())->first : 0);
}

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
  Member& member = members_.at(session);
  Lane& lane = lanes_.at(member.lane);
  const bool has_ends = lane.width > 0;
  if (lane.held() > (has_ends ? 1 : 0) || holds(session))
    throw std::logic_error("a lane is held by one session, or each of its ends is");
  if (lane.is_held())
    member.end = lane.holders[0] == kNoSession ? 0 : 1;
  else if (has_ends)
    member.end = lane.last_end;  // it is the successor of this end
  change(lane, [&] { lane.holders[member.end] = session; });
}

void LaneTable::release(SessionNumber session) {
  const Member& member = members_.at(session);
  Lane& lane = lanes_.at(member.lane);
  if (lane.holders[member.end] != session) return;
  change(lane, [&] { lane.holders[member.end] = kNoSession; });
  lane.last_end = member.end;
}

void LaneTable::give_ends(LaneId lane, Bytes width) {
  Lane& given = lanes_.at(lane);
  change(given, [&] { given.width = width; });
}

void LaneTable::take_ends(LaneId lane) {
  Lane& taken = lanes_.at(lane);
  if (taken.held() > 1) throw std::logic_error("two sessions go by the ends of this lane");
  change(taken, [&] { taken.width = 0; });
}

void LaneTable::merge(LaneId gone, LaneId kept) {
  Lane &from = lanes_.at(gone), &to = lanes_.at(kept);
  if (from.is_held()) throw std::logic_error("a held lane stays");
  for (const auto& [bytes, session] : from.members) members_.at(session).lane = kept;
  count(from, -1);
  change(to, [&] { to.members.merge(from.members); });
  lanes_.erase(gone);
}

// All changes of a lane pass here, so that the running totals cannot be forgotten. A lane without
// members is about to open or to close, and does not count.
template <class Change>
void LaneTable::change(Lane& lane, Change change) {
  count(lane, -1);
  change();
  count(lane, 1);
}

void LaneTable::count(const Lane& lane, int times) {
  if (lane.members.empty()) return;
  if (times > 0)
    totals_.add(lane.bytes(), lane.is_held());
  else
    totals_.remove(lane.bytes(), lane.is_held());
  holders_ += times * lane.held();
  with_ends_ += lane.width > 0 ? times : 0;
}

LaneId LaneTable::lane_of(SessionNumber session) const {
  const auto member = members_.find(session);
  return member == members_.end() ? kNoLane : member->second.lane;
}

Bytes LaneTable::bytes_of(LaneId lane) const {
  const auto found = lanes_.find(lane);
  return found == lanes_.end() ? 0 : found->second.bytes();
}

Bytes LaneTable::width_of(LaneId lane) const {
  const auto found = lanes_.find(lane);
  return found == lanes_.end() ? 0 : found->second.width;
}

Bytes LaneTable::used_without(SessionNumber session) const {
  const Member& member = members_.at(session);
  const Lane& lane = lanes_.at(member.lane);
  const bool is_largest = lane.members.begin()->second == session;
  const Bytes others = is_largest ? lane.two_largest() - lane.largest() : lane.largest();
  const Bytes stays = lane.members.size() > 1 ? std::max(lane.width, others) : 0;
  return used() - member.demand.persistent - (lane.bytes() - stays);
}

bool LaneTable::holds(SessionNumber session) const {
  const Member& member = members_.at(session);
  return lanes_.at(member.lane).holders[member.end] == session;
}

int LaneTable::end_of(SessionNumber session) const {
  const auto member = members_.find(session);
  if (member == members_.end() || !holds(session)) return kNoEnd;
  return lanes_.at(member->second.lane).width > 0 ? member->second.end : kNoEnd;
}

SessionNumber LaneTable::other_holder(SessionNumber session) const {
  const auto& holders = lane_with(session).holders;
  return holders[0] != kNoSession && holders[0] != session ? holders[0]
         : holders[1] != session                           ? holders[1]
                                                           : kNoSession;
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
  for (const SessionNumber holder : lane.holders)
    if (holder != kNoSession && lane_of(holder) != id)
      return "a lane is held by a session that is not in it";
  if (lane.held() == 2 && lane.holders[0] == lane.holders[1]) return "a session has both ends";
  return lane.held() == 2 && lane.width == 0 ? "two hold a lane that has no ends" : "";
}

std::string LaneTable::totals_are_right() const {
  Bytes persistent = 0;
  LaneTotals totals;
  for (const auto& [session, member] : members_) persistent += member.demand.persistent;
  int holders = 0, with_ends = 0;
  for (const auto& [id, lane] : lanes_) {
    totals.add(lane.bytes(), lane.is_held());
    holders += lane.held();
    with_ends += lane.width > 0;
  }
  if (persistent != persistent_) return "the total of persistent bytes is wrong";
  if (holders != holders_ || with_ends != with_ends_) return "holders or ends are counted wrong";
  return totals == totals_ ? "" : "the totals of lanes are wrong";
}

}  // namespace gpushare
