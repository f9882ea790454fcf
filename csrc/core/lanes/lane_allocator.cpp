#include "core/lanes/lane_allocator.h"

#include <bit>
#include <functional>
#include <stdexcept>
#include <vector>

namespace gpushare {
namespace {

constexpr Bytes kLargestCapacity = Bytes{1} << 60;  // so that no sum below can overflow
constexpr std::uint64_t kMostChunks = 1024;         // or a few more; as in csrc/claims/chunk.h

// Rounds `bytes` up to a multiple of `chunk`.
Bytes whole(Bytes bytes, Bytes chunk) { return (bytes + chunk - 1) / chunk * chunk; }

void check(const Demand& demand) {
  if (demand.persistent < 0 || demand.ephemeral < 0)
    throw std::invalid_argument("a demand must not be negative: give bytes from 0 up");
}

}  // namespace

LaneAllocator::LaneAllocator(Bytes capacity, Bytes least_chunk)
    : capacity_(capacity), least_chunk_(least_chunk) {
  if (least_chunk < 1) throw std::invalid_argument("a chunk must have at least one byte");
  if (capacity < 0 || capacity > kLargestCapacity)
    throw std::invalid_argument("a capacity must be between 0 and 2^60 bytes");
}

std::optional<LaneId> LaneAllocator::place(SessionNumber session, const Demand& demand,
                                           int max_lanes) {
  check(demand);
  if (table_.contains(session)) throw std::invalid_argument("a session has one place at most");
  if (const auto lane = choose(demand, used(), max_lanes, Among::all))
    return table_.insert(session, demand, *lane);
  if (!fits(demand)) return std::nullopt;
  table_.insert(session, demand, LaneTable::kNewLane);  // too much for a moment, until lanes merge
  merge_until_safe();
  return table_.lane_of(session);
}

std::optional<LaneId> LaneAllocator::adopt(SessionNumber session, const Demand& demand,
                                           int max_lanes) {
  check(demand);
  auto lane = choose(demand, used(), max_lanes, Among::idle);
  if (!lane) lane = choose(demand, used(), 0, Among::idle);
  if (!lane) return std::nullopt;
  const LaneId id = table_.insert(session, demand, *lane);
  table_.hold(session);
  return id;
}

bool LaneAllocator::resize(SessionNumber session, const Demand& demand) {
  check(demand);
  if (std::max(demand.persistent, demand.ephemeral) > capacity_) return false;
  const Demand before = table_.demand_of(session);
  const Bytes most = this->most();
  table_.set_demand(session, demand);
  if (table_.used_merged() > most) {
    table_.set_demand(session, before);
    return false;
  }
  merge_until_safe();
  return true;
}

void LaneAllocator::release(SessionNumber session) {
  table_.release(session);
  settle_ends();
}

void LaneAllocator::settle_ends() {
  if (table_.with_ends() == 0) return;
  for (const auto& [id, lane] : table_.lanes())
    if (lane.width > 0 && !lane.is_held()) table_.take_ends(id);
}

bool LaneAllocator::can_hold_beside(SessionNumber session) const {
  const LaneTable::Lane& lane = table_.lane_with(session);
  const SessionNumber holder = table_.other_holder(session);
  if (lane.held() != 1 || holder == kNoSession) return false;
  const Bytes larger =
      std::max(table_.demand_of(session).ephemeral, table_.demand_of(holder).ephemeral);
  const Bytes width = width_for_two(lane);
  return larger > 0 && whole(larger, chunk_of(width)) <= width;
}

void LaneAllocator::hold_beside(SessionNumber session) {
  if (!can_hold_beside(session)) throw std::logic_error("there is no end of its lane for it");
  const LaneTable::Lane& lane = table_.lane_with(session);
  if (lane.width == 0) table_.give_ends(table_.lane_of(session), width_for_two(lane));
  table_.hold(session);
}

Bytes LaneAllocator::width_for_two(const LaneTable::Lane& lane) const {
  if (lane.width > 0) return lane.width;
  const Bytes chunk = chunk_of(lane.two_largest());
  const Bytes second = lane.two_largest() - lane.largest();
  const Bytes both = whole(lane.largest(), chunk) + whole(second, chunk);
  const Bytes most = std::min(both, lane.bytes() + free());
  return most - most % chunk_of(most);
}

Bytes LaneAllocator::chunk_of(Bytes width) const {
  const auto parts = static_cast<std::uint64_t>(width) / kMostChunks;
  return std::max(least_chunk_, static_cast<Bytes>(std::bit_ceil(parts)));
}

bool LaneAllocator::can_move(SessionNumber session, int max_lanes) const {
  const Bytes others = table_.used_without(session);
  return choose(table_.demand_of(session), others, max_lanes, Among::idle).has_value();
}

void LaneAllocator::move(SessionNumber session, int max_lanes) {
  const Demand demand = table_.demand_of(session);
  const auto lane = choose(demand, table_.used_without(session), max_lanes, Among::idle);
  if (!lane) throw std::logic_error("a session moves only where it fits");
  table_.remove(session);
  table_.insert(session, demand, *lane);
}

// An idle lane is merged into the lane with the fewest members, which will share its time.
void LaneAllocator::merge_down(int max_lanes) {
  const auto& lanes = table_.lanes();
  const auto is_held = [](const auto& entry) { return entry.second.is_held(); };
  const auto members = [](const auto& entry) { return entry.second.members.size(); };
  while (max_lanes != 0 && static_cast<int>(lanes.size()) > std::max(max_lanes, table_.held())) {
    const auto gone = std::ranges::find(lanes, false, is_held);
    auto kept = lanes.end();
    for (auto lane = lanes.begin(); lane != lanes.end(); ++lane)
      if (lane != gone && (kept == lanes.end() || members(*lane) < members(*kept))) kept = lane;
    table_.merge(gone->first, kept->first);
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
  return demand.persistent + table_.used_merged(demand.ephemeral) <= room();
}

Bytes LaneAllocator::needs(const Demand& demand) const {
  return demand.persistent + std::max<Bytes>(0, demand.ephemeral - table_.largest_lane());
}

bool LaneAllocator::fits_with(SessionNumber session, Bytes persistent) const {
  if (persistent > capacity_) return false;
  const Bytes more = persistent - table_.demand_of(session).persistent;
  return table_.used_merged() + more <= most();
}

std::optional<LaneId> LaneAllocator::choose(const Demand& demand, Bytes used, int max_lanes,
                                            Among among) const {
  return LaneChoice(table_, room() - used, max_lanes, among).lane_for(demand);
}

// Merges from the second largest lane down into the largest one: that frees the most memory for
// each lane that is lost. When all that may merge has merged, used_merged() bytes are in use.
void LaneAllocator::merge_until_safe() {
  if (used() <= room()) return;
  std::vector<LaneId> lanes;
  for (const auto& [id, lane] : table_.lanes()) lanes.push_back(id);
  std::ranges::stable_sort(lanes, std::greater<>(), [&](LaneId id) { return table_.bytes_of(id); });
  const auto is_held = [&](LaneId id) { return table_.lanes().at(id).is_held(); };
  LaneId largest = lanes.front();
  for (std::size_t i = 1; i < lanes.size() && used() > room(); ++i) {
    LaneId other = lanes[i];
    if (is_held(other) && is_held(largest)) continue;
    if (is_held(other)) std::swap(largest, other);  // a holder stays in its lane
    table_.merge(other, largest);
  }
}

std::string LaneAllocator::is_valid() const {
  if (used() > limit_ || limit_ > capacity_) return "the lanes use more than the capacity";
  if (unmanaged_ < 0 || room() > limit_) return "the room beside unmanaged memory is wrong";
  return table_.is_valid();
}

}  // namespace gpushare
