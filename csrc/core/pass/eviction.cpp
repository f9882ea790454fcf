#include "core/pass/eviction.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/device/fitting.h"

namespace gpushare {
namespace {

// The demand of two sessions that share a lane.
Demand together(const Demand& a, const Demand& b) {
  return {a.persistent + b.persistent, std::max(a.ephemeral, b.ephemeral)};
}

}  // namespace

Seconds Eviction::leaves_by(const DeviceState& state, const Session& session) {
  return Residency::leaves_by(session.memory, session.demand.persistent, state.rules.lease);
}

// If unmanaged memory exceeds what was free, enough sessions are asked that the rest fits beside
// it. Then sessions are asked for one that waits for memory.
Eviction::Plan Eviction::plan() const {
  if (state_.all_have_places() && !state_.lanes.is_overdrawn()) return {};
  const Sessions idle = idle_sessions();
  if (state_.lanes.is_overdrawn()) {
    Plan for_programs{kNoSession, leaving({}, idle)};
    if (!for_programs.sessions.empty()) return for_programs;
  }
  return for_waiting(idle);
}

// Plans for the first session that waits for memory and would fit if all idle sessions were out.
// Held lanes count as merged, since their holders are asked to yield where that is needed.
Eviction::Plan Eviction::for_waiting(const Sessions& idle) const {
  const Demand staying = this->staying(idle);
  const SessionNumber first = admission_.first([&](const Session& session) {
    return state_.lanes.fits_alone(together(staying, floor_room(session)));
  });
  if (first == kNoSession) return for_aged(idle);
  const Session& session = state_.sessions.at(first);
  if (!waits(session) || Fitting(state_).has_room(session)) return {};
  return {first, leaving(floor_room(session), idle)};
}

// If idle sessions are not enough and the first waiting session has waited for `aging` seconds,
// sessions whose turn comes after its own are asked as well. This is done for one waiting session
// at a time. An evicted session has to age as well, so two sessions do not swap forever.
Eviction::Plan Eviction::for_aged(const Sessions& idle) const {
  if (!state_.evicts_waiting()) return {};
  const std::optional<RunQueueEntry> first = admission_.first_aged();
  if (!first || Fitting(state_).has_room(*first->session)) return {};
  Sessions may_leave = waiting_behind(*first);
  may_leave.insert(may_leave.end(), idle.begin(), idle.end());
  const Demand room = floor_room(*first->session);
  if (!state_.lanes.fits_alone(together(staying(may_leave), room))) return {};
  return {first->session->number, leaving(room, may_leave)};
}

// Sessions that have a place and may be asked, in the order in which they stay: the longest idle
// session is last, so it leaves first. A throttled session counts as idle while its cell waits,
// since it gets no turn, unless it was named as a successor before.
Eviction::Sessions Eviction::idle_sessions() const {
  const std::set<SessionNumber> named = state_.named_successors();
  Sessions idle;
  for (const Session& session : state_.sessions) {
    const bool is_held_back = is_throttled(session) && session.request &&
                              can_be_paged_out(session) && !named.contains(session.number);
    if ((may_be_paged_out(session) || is_held_back) && state_.has_place(session))
      idle.push_back(&session);
  }
  std::ranges::sort(idle, [](const Session* a, const Session* b) {
    return std::pair(a->memory.last_used(), a->number) >
           std::pair(b->memory.last_used(), b->number);
  });
  return idle;
}

// Sorted in the order in which they stay. A session that was named as a successor is not among
// them, nor a throttled session, which counts as idle.
Eviction::Sessions Eviction::waiting_behind(const RunQueueEntry& first) const {
  const std::set<SessionNumber> named = state_.named_successors();
  const auto goes_before = [&](const RunQueueEntry& a, const RunQueueEntry& b) {
    return before(*state_.policy, a.view, b.view);
  };
  std::vector<RunQueueEntry> behind;
  for (const Session& session : state_.sessions) {
    if (!session.request || is_throttled(session)) continue;
    if (!can_be_paged_out(session) || !state_.has_place(session)) continue;
    const RunQueueEntry entry(state_, session, state_.now);
    if (!named.contains(session.number) && goes_before(first, entry)) behind.push_back(entry);
  }
  std::ranges::stable_sort(behind, goes_before);
  Sessions sessions;
  for (const RunQueueEntry& each : behind) sessions.push_back(each.session);
  return sessions;
}

// Tries the sessions in this order. A session stays if it fits beside the others when all are
// squeezed as far as they may be, so none is evicted without need.
std::vector<SessionNumber> Eviction::leaving(const Demand& room, const Sessions& may_leave) const {
  Demand staying = this->staying(may_leave);
  const Bytes left = left_beside(staying);
  std::vector<SessionNumber> leaving;
  for (const Session* session : may_leave) {
    const Demand beside = together(staying, least_room(*session, left));
    if (state_.lanes.fits_alone(together(beside, room)))
      staying = beside;
    else
      leaving.push_back(session->number);
  }
  std::ranges::reverse(leaving);
  return leaving;
}

Bytes Eviction::left_beside(const Demand& staying) const {
  return state_.lanes.left() + state_.lanes.table().persistent() - staying.persistent;
}

// The demand of all sessions except these and those asked already, squeezed as far as they may be
// for a newcomer then.
Demand Eviction::staying(const Sessions& may_leave) const {
  std::set<SessionNumber> leave;
  for (const Session* session : may_leave) leave.insert(session->number);
  for (const Session& session : state_.sessions)
    if (session.memory.residence() == Residence::leaving && state_.has_place(session))
      leave.insert(session.number);
  Demand staying{state_.lanes.table().persistent(), 0};
  for (const SessionNumber number : leave)
    staying.persistent -= state_.sessions.at(number).demand.persistent;
  staying.ephemeral = state_.lanes.table().largest_among([&](SessionNumber number) {
    return !leave.contains(number) && state_.sessions.at(number).demand.options.empty();
  });
  const Bytes left = left_beside(staying);
  for (const Session& session : state_.sessions)
    if (!session.demand.options.empty() && state_.has_place(session) &&
        !leave.contains(session.number))
      staying.ephemeral = std::max(staying.ephemeral, least_room(session, left).ephemeral);
  return staying;
}

}  // namespace gpushare
