#include "core/lane_allocator.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace gpushare {
namespace {

constexpr Bytes kLargestCapacity = Bytes{1} << 60;  // so that no sum below can overflow

void check(const Demand& demand) {
  if (demand.persistent < 0 || demand.ephemeral < 0)
    throw std::invalid_argument("a demand must not be negative: give bytes from 0 up");
}

}  // namespace

LaneAllocator::LaneAllocator(Bytes capacity) : capacity_(capacity) {
  if (capacity < 0 || capacity > kLargestCapacity)
    throw std::invalid_argument("a capacity must be between 0 and 2^60 bytes");
}

std::optional<LaneId> LaneAllocator::place(SessionNumber session, const Demand& demand,
                                           int max_lanes) {
  check(demand);
  if (contains(session)) throw std::invalid_argument("a session has one place at most");
  if (const auto lane = choose(demand, used(), max_lanes, Among::all))
    return insert(session, demand, *lane);
  if (!fits(demand)) return std::nullopt;
  insert(session, demand, kNewLane);  // too much for a moment, until lanes merge
  merge_until_safe();
  return lane_of(session);
}

std::optional<LaneId> LaneAllocator::adopt(SessionNumber session, const Demand& demand,
                                           int max_lanes) {
  check(demand);
  auto lane = choose(demand, used(), max_lanes, Among::idle);
  if (!lane) lane = choose(demand, used(), 0, Among::idle);
  if (!lane) return std::nullopt;
  insert(session, demand, *lane);
  hold(session);
  return lane_of(session);
}

bool LaneAllocator::resize(SessionNumber session, const Demand& demand) {
  check(demand);
  if (std::max(demand.persistent, demand.ephemeral) > capacity_) return false;
  const Demand before = demand_of(session);
  const Bytes most = this->most();
  set_demand(session, demand);
  if (persistent_ + merged_bytes(0) > most) {
    set_demand(session, before);
    return false;
  }
  merge_until_safe();
  return true;
}

void LaneAllocator::remove(SessionNumber session) {
  release(session);
  const Member member = members_.at(session);
  Lane& lane = lanes_.at(member.lane);
  change(lane, [&] { lane.members.erase({member.demand.ephemeral, session}); });
  if (lane.members.empty()) lanes_.erase(member.lane);
  persistent_ -= member.demand.persistent;
  members_.erase(session);
}

void LaneAllocator::hold(SessionNumber session) {
  Lane& lane = lanes_.at(members_.at(session).lane);
  if (lane.holder != kNobody) throw std::logic_error("a lane is held by one session at most");
  change(lane, [&] { lane.holder = session; });
}

void LaneAllocator::release(SessionNumber session) {
  Lane& lane = lanes_.at(members_.at(session).lane);
  if (lane.holder == session) change(lane, [&] { lane.holder = kNobody; });
}

bool LaneAllocator::can_move(SessionNumber session, int max_lanes) const {
  return choose(demand_of(session), used_without(session), max_lanes, Among::idle).has_value();
}

void LaneAllocator::move(SessionNumber session, int max_lanes) {
  const Demand demand = demand_of(session);
  const auto lane = choose(demand, used_without(session), max_lanes, Among::idle);
  if (!lane) throw std::logic_error("a session moves only where it fits");
  remove(session);
  insert(session, demand, *lane);
}

// An idle lane is merged into the lane with the fewest members, which will share its time.
void LaneAllocator::merge_down(int max_lanes) {
  const auto crowd = [](const auto& entry) { return entry.second.members.size(); };
  while (max_lanes != 0 && static_cast<int>(lanes_.size()) > std::max(max_lanes, held())) {
    const auto gone =
        std::ranges::find(lanes_, kNobody, [](const auto& entry) { return entry.second.holder; });
    auto kept = lanes_.end();
    for (auto lane = lanes_.begin(); lane != lanes_.end(); ++lane)
      if (lane != gone && (kept == lanes_.end() || crowd(*lane) < crowd(*kept))) kept = lane;
    merge(gone->first, kept->first);
  }
}

void LaneAllocator::set_unmanaged(Bytes bytes) {
  if (bytes < 0) throw std::invalid_argument("unmanaged memory must not be negative");
  unmanaged_ = std::min(bytes, capacity_);
  limit_ = most();
}

bool LaneAllocator::fits_into(Bytes bytes, const Demand& demand) {
  return demand.persistent <= bytes && demand.ephemeral <= bytes - demand.persistent;
}

bool LaneAllocator::fits(const Demand& demand) const {
  if (std::max(demand.persistent, demand.ephemeral) > capacity_) return false;
  return persistent_ + demand.persistent + merged_bytes(demand.ephemeral) <= room();
}

Bytes LaneAllocator::needs(const Demand& demand) const {
  return demand.persistent + std::max<Bytes>(0, demand.ephemeral - largest_lane());
}

bool LaneAllocator::fits_with(SessionNumber session, Bytes persistent) const {
  if (persistent > capacity_) return false;
  return persistent_ - demand_of(session).persistent + persistent + merged_bytes(0) <= most();
}

Bytes LaneAllocator::bytes_of(LaneId lane) const {
  const auto found = lanes_.find(lane);
  return found == lanes_.end() ? 0 : found->second.bytes();
}

LaneId LaneAllocator::lane_of(SessionNumber session) const {
  const auto member = members_.find(session);
  return member == members_.end() ? kNoLane : member->second.lane;
}

std::optional<LaneId> LaneAllocator::choose(const Demand& demand, Bytes used, int max_lanes,
                                            Among among) const {
  const Bytes left = room() - used;  // below 0 where others have taken more than was free
  if (demand.persistent > left) return std::nullopt;
  const bool may_open = max_lanes == 0 || static_cast<int>(lanes_.size()) < max_lanes;
  if (may_open && demand.ephemeral <= left - demand.persistent) return kNewLane;
  if (among == Among::idle && held_.size() == lanes_.size()) return std::nullopt;
  if (const auto lane = to_join(demand, used, among)) return lane;
  return to_grow(demand, used, among);
}

// A lane that is large enough; of several, the one with the fewest members that share its time.
std::optional<LaneId> LaneAllocator::to_join(const Demand& demand, Bytes used, Among among) const {
  if (demand.persistent > room() - used) return std::nullopt;
  const Lane* best = nullptr;
  std::optional<LaneId> id_of_best;
  for (const auto& [id, lane] : lanes_) {
    if (among == Among::idle && lane.holder != kNobody) continue;
    if (lane.bytes() < demand.ephemeral) continue;
    if (best && lane.members.size() >= best->members.size()) continue;
    best = &lane;
    id_of_best = id;
  }
  return id_of_best;
}

// The smallest lane that has room to grow: larger ones stay as they are for sessions that need
// them.
std::optional<LaneId> LaneAllocator::to_grow(const Demand& demand, Bytes used, Among among) const {
  const Lane* best = nullptr;
  std::optional<LaneId> id_of_best;
  for (const auto& [id, lane] : lanes_) {
    if (among == Among::idle && lane.holder != kNobody) continue;
    const Bytes growth = std::max<Bytes>(0, demand.ephemeral - lane.bytes());
    if (demand.persistent + growth > room() - used) continue;
    if (best && lane.bytes() >= best->bytes()) continue;
    best = &lane;
    id_of_best = id;
  }
  return id_of_best;
}

LaneId LaneAllocator::insert(SessionNumber session, const Demand& demand, LaneId lane) {
  const LaneId id = lane == kNewLane ? ++last_lane_ : lane;
  Members& all = lanes_[id].members;
  change(lanes_.at(id), [&] { all.emplace(demand.ephemeral, session); });
  persistent_ += demand.persistent;
  members_.emplace(session, Member{demand, id});
  return id;
}

void LaneAllocator::set_demand(SessionNumber session, const Demand& demand) {
  Member& member = members_.at(session);
  Lane& lane = lanes_.at(member.lane);
  change(lane, [&] {
    lane.members.erase({member.demand.ephemeral, session});
    lane.members.emplace(demand.ephemeral, session);
  });
  persistent_ += demand.persistent - member.demand.persistent;
  member.demand = demand;
}

void LaneAllocator::merge(LaneId gone, LaneId kept) {
  Lane &from = lanes_.at(gone), &to = lanes_.at(kept);
  if (from.holder != kNobody) throw std::logic_error("a held lane stays");
  for (const auto& [bytes, session] : from.members) members_.at(session).lane = kept;
  count_out(from);
  change(to, [&] { to.members.merge(from.members); });
  lanes_.erase(gone);
}

// Merges from the second largest lane down into the largest one: that frees the most memory for
// each lane that is lost. When all that may merge has merged, merged_bytes(0) are in use.
void LaneAllocator::merge_until_safe() {
  if (used() <= room()) return;
  std::vector<LaneId> lanes;
  for (const auto& [id, lane] : lanes_) lanes.push_back(id);
  std::ranges::stable_sort(lanes, std::greater<>(),
                           [&](LaneId id) { return lanes_.at(id).bytes(); });
  LaneId largest = lanes.front();
  for (std::size_t i = 1; i < lanes.size() && used() > room(); ++i) {
    LaneId other = lanes[i];
    if (holder_of(other) != kNobody && holder_of(largest) != kNobody) continue;
    if (holder_of(other) != kNobody) std::swap(largest, other);  // a holder stays in its lane
    merge(other, largest);
  }
}

// All changes of a lane pass here, so that the running totals cannot be forgotten.
template <class Change>
void LaneAllocator::change(Lane& lane, Change change) {
  count_out(lane);
  change();
  count_in(lane);
}

void LaneAllocator::count_in(const Lane& lane) {
  if (lane.members.empty()) return;  // it is about to open or to close
  (lane.holder == kNobody ? idle_ : held_).insert(lane.bytes());
  (lane.holder == kNobody ? idle_bytes_ : held_bytes_) += lane.bytes();
}

void LaneAllocator::count_out(const Lane& lane) {
  if (lane.members.empty()) return;
  auto& sizes = lane.holder == kNobody ? idle_ : held_;
  sizes.erase(sizes.find(lane.bytes()));
  (lane.holder == kNobody ? idle_bytes_ : held_bytes_) -= lane.bytes();
}

// The bytes of all lanes, and one more idle lane of `extra` bytes, once all lanes that may merge
// have merged: held lanes stay apart, and idle ones all go to the largest.
Bytes LaneAllocator::merged_bytes(Bytes extra) const {
  return held_bytes_ + std::max<Bytes>(0, std::max(extra, largest(idle_)) - largest(held_));
}

Bytes LaneAllocator::used_without(SessionNumber session) const {
  const Member& member = members_.at(session);
  const Members& all = lanes_.at(member.lane).members;
  Bytes shrinks = 0;
  if (all.begin()->second == session)
    shrinks = all.begin()->first - (all.size() > 1 ? std::next(all.begin())->first : 0);
  return used() - member.demand.persistent - shrinks;
}

std::string LaneAllocator::is_valid() const {
  if (used() > limit_ || limit_ > capacity_) return "the lanes use more than the capacity";
  if (unmanaged_ < 0 || room() > limit_) return "the room beside unmanaged memory is wrong";
  const std::string totals = totals_are_right();
  return totals.empty() ? lanes_are_right() : totals;
}

std::string LaneAllocator::totals_are_right() const {
  Bytes persistent = 0, held_bytes = 0, idle_bytes = 0;
  std::multiset<Bytes> held, idle;
  for (const auto& [session, member] : members_) persistent += member.demand.persistent;
  for (const auto& [id, lane] : lanes_) {
    (lane.holder == kNobody ? idle : held).insert(lane.bytes());
    (lane.holder == kNobody ? idle_bytes : held_bytes) += lane.bytes();
  }
  if (persistent != persistent_) return "the total of persistent bytes is wrong";
  if (held != held_ || idle != idle_) return "the sizes of held or idle lanes are wrong";
  if (held_bytes != held_bytes_ || idle_bytes != idle_bytes_) return "the total of lanes is wrong";
  return "";
}

std::string LaneAllocator::lanes_are_right() const {
  std::size_t count = 0;
  for (const auto& [id, lane] : lanes_) {
    if (lane.members.empty()) return "a lane without members is open";
    count += lane.members.size();
    for (const auto& [bytes, session] : lane.members) {
      const auto member = members_.find(session);
      if (member == members_.end() || member->second.lane != id)
        return "a lane has a member that is not its own";
      if (member->second.demand.ephemeral != bytes) return "a lane has a member of another size";
    }
    if (lane.holder != kNobody && lane_of(lane.holder) != id)
      return "a lane is held by somebody who is not in it";
  }
  return count == members_.size() ? "" : "a session has a place but no lane";
}

}  // namespace gpushare
