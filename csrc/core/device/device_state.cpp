#include "core/device/device_state.h"

#include <algorithm>
#include <vector>

#include "core/device/squeeze.h"
#include "core/model/validation.h"

namespace gpushare {

DeviceState::DeviceState(Bytes capacity, std::string_view policy_name, const Rules& known,
                         Bytes least_chunk)
    : rules(known),
      policy(&policy_named(policy_name)),
      lanes(capacity, least_chunk),
      shares(rules.half_life),
      tuner(rules.quantum) {
  check_rules(rules);
}

DeviceState::DeviceState(const DeviceState& other)
    : rules(other.rules),
      policy(other.policy),
      lanes(other.lanes),
      shares(other.shares),
      residency(other.residency),
      tuner(other.tuner),
      sessions(other.sessions),
      recovering(other.recovering),
      now(other.now),
      last_order(other.last_order) {
  for (Session& session : sessions)
    session.shares = shares.path(session.group, session.user, session.id);
}

Seconds DeviceState::latest(Seconds time) const {
  check_time(time);
  return std::max(time, now);
}

void DeviceState::advance(Seconds time) {
  now = latest(time);
  shares.advance(now);
  residency.advance(now);
}

int DeviceState::limit() const {
  if (rules.running_lanes != 0) return rules.running_lanes;
  return policy->packs ? tuner.lanes() : 1;
}

int DeviceState::wanted() const { return packs() ? tuner.hoped() : limit(); }

bool DeviceState::has_outgrown(const Session& session) const {
  if (!has_place(session)) return false;
  const Demand &place = lanes.table().demand_of(session.number), &demand = session.demand;
  return place.persistent != demand.persistent || place.measured != demand.measured ||
         !option_of(demand, place.ephemeral);
}

bool DeviceState::has_outgrown_end(const Session& session) const {
  if (lanes.table().end_of(session.number) == kNoEnd) return false;
  const LaneTable::Lane& lane = lanes.table().lane_with(session.number);
  return lanes.table().demand_of(session.number).ephemeral > lane.width;
}

const Session* DeviceState::beside(const Session& holder) const {
  if (!has_place(holder)) return nullptr;
  return sessions.find(lanes.table().other_holder(holder.number));
}

bool DeviceState::may_join(const Session& waiting) const {
  if (!waiting.can_share || !has_place(waiting)) return false;
  const Session* holder = beside(waiting);
  // A successor that was named before may begin at any time, and without an end.
  if (!holder || holder->turn->asked) return false;
  return may_share(waiting, *holder) && lanes.can_hold_beside(waiting.number);
}

bool DeviceState::may_take_end(const Session& successor) const {
  const LaneTable::Lane& lane = lanes.table().lane_with(successor.number);
  const Session* holder = beside(successor);
  return lane.width > 0 && holder && may_share(successor, *holder) &&
         lanes.can_hold_beside(successor.number);
}

bool DeviceState::promises(const Session::Turn& turn, const Session& waiting, Seconds at) const {
  return waiting.request && turn.successor == successor_of(waiting) &&
         at < *turn.asked + rules.lease - kSoon;
}

bool DeviceState::is_promised(const Session& session) const {
  return std::ranges::any_of(sessions, [&](const Session& other) {
    return other.turn && promises(*other.turn, session, now);
  });
}

std::set<SessionNumber> DeviceState::named_successors() const {
  std::set<SessionNumber> named;
  for (const Session& session : sessions)
    if (session.turn) named.insert(session.turn->successor.number);
  return named;
}

// --- what must stay true -------------------------------------------------------------------------

std::string DeviceState::is_valid() const {
  for (const std::string& broken :
       {sessions.is_valid(), lanes.is_valid(), lanes_agree(), ends_agree(), shares.is_valid(),
        tuner.is_valid(), shares_agree(), squeezes_agree(), throttled_agree(), paging_agrees()})
    if (!broken.empty()) return broken;
  return "";
}

std::string DeviceState::lanes_agree() const {
  std::size_t placed = 0;
  for (const Session& session : sessions) {
    if (session.request && session.turn) return "a session waits and runs at once";
    if (!has_place(session)) continue;
    ++placed;
    const bool holds = lanes.table().holds(session.number);
    if (holds != session.turn.has_value()) return "a lane is held and its holder does not run";
    if (!session.turn && has_outgrown(session)) return "a place has another size";
  }
  return placed == lanes.table().size() ? "" : "a session has a place and is not open";
}

std::string DeviceState::ends_agree() const {
  if (lanes.table().with_ends() == 0) return "";
  for (const auto& [id, lane] : lanes.table().lanes())
    if (lane.width > 0 && !lane.is_held()) return "a lane that is not held has ends";
  for (const Session& session : sessions) {
    if (!session.turn || lanes.table().end_of(session.number) == kNoEnd) continue;
    if (has_outgrown_end(session) && !session.turn->asked)
      return "a session runs unasked in a lane that is too narrow for it";
    const Session* other = beside(session);
    if (!other) continue;
    if (!session.can_share || session.alone || !trust(session, *other))
      return "two sessions use a lane at once that may not";
    if (!session.demand.measured && !session.turn->asked)
      return "a session whose memory is not known runs beside another one";
  }
  return "";
}

std::string DeviceState::shares_agree() const {
  for (const Session& session : sessions)
    if (session.share().active > 1 || session.share().running != session.turn.has_value())
      return "a session's turn is counted wrong";
  return "";
}

// A session that runs may have more than is allowed, and yields if others need it.
std::string DeviceState::squeezes_agree() const {
  const std::set<SessionNumber> named = named_successors();
  for (const Session& session : sessions) {
    if (session.demand.options.empty() || !has_place(session)) continue;
    if (session.turn || named.contains(session.number)) continue;
    const Bytes has = lanes.table().demand_of(session.number).ephemeral;
    const Bytes may_have = choice(session.demand, lanes.left()).bytes;
    if (has > may_have) return "a session that does not run is squeezed too little";
    if (has < may_have && lanes.table().held() == 0) return "a session is squeezed without need";
  }
  return "";
}

// A session may have got a turn before it was throttled, and then it was asked to yield.
std::string DeviceState::throttled_agree() const {
  for (const Session& session : sessions) {
    if (!is_throttled(session)) continue;
    if (session.turn && !session.turn->asked) return "a session is throttled and runs unasked";
    if (session.share().active != session.turn.has_value())
      return "a session is throttled and earns credit";
  }
  return "";
}

std::string DeviceState::paging_agrees() const {
  std::vector<const Residency::Memory*> memories;
  for (const Session& session : sessions) {
    const std::string broken = paging_agrees(session);
    if (!broken.empty()) return broken;
    memories.push_back(&session.memory);
  }
  return residency.is_valid(memories);
}

std::string DeviceState::paging_agrees(const Session& session) const {
  const bool is_used = session.busy || session.request || session.turn;
  if (is_out(session) && has_place(session)) return "a session is paged out and has a place";
  if (is_out(session) && session.turn) return "a session is paged out and runs";
  if (session.memory.residence() == Residence::out && is_used)
    return "a session is used and does not want to come back";
  const bool works = session.turn || (session.busy && !session.request);
  if (session.memory.residence() == Residence::leaving && works)
    return "a session is used and asked to page out";
  return "";
}

}  // namespace gpushare
