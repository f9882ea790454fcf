// The residency of sessions' persistent memory: the events that change it, and which sessions are
// asked to page out.
#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "core/scheduler.h"

namespace gpushare {
namespace {

// The demand of two sessions that share a lane.
Demand together(const Demand& a, const Demand& b) {
  return {a.persistent + b.persistent, std::max(a.ephemeral, b.ephemeral)};
}

}  // namespace

// --- events ------------------------------------------------------------------------------------

Decision Scheduler::set_busy(Seconds now, const std::string& id, bool busy) {
  Session& session = sessions_.at(number_of(id));
  happen(now);
  if (busy) {
    begin_cell(session);
    return assign(now);
  }
  if (std::exchange(session.busy, false)) residency_.use(session.memory);
  if (session.memory.residence() == Residence::returning && !session.request)
    give_up_return(session);
  return assign(now);
}

Decision Scheduler::paged_out(Seconds now, const std::string& id, Bytes bytes) {
  const SessionNumber number = number_of(id);
  check_paged_out(bytes);
  happen(now);
  Session& session = sessions_.at(number);
  residency_.leave(session.memory, bytes);
  if (session.turn || is_promised(number, session)) {
    bring_in(session);  // it runs, or may have begun by a handoff, and keeps its place
    return assign(now);
  }
  if (lanes_.contains(number)) lanes_.remove(number);
  if (session.request) residency_.make_way(session.memory);
  if (session.busy || session.request) call_back(session);
  return assign(now);
}

Decision Scheduler::page_out_failed(Seconds now, const std::string& id, const std::string& why) {
  Session& session = sessions_.at(number_of(id));
  happen(now);
  if (session.memory.residence() == Residence::leaving) residency_.refuse(session.memory, why);
  return assign(now);
}

Decision Scheduler::dismiss(Seconds now, const std::string& id) {
  const SessionNumber number = number_of(id);
  Session& session = sessions_.at(number);
  if (!may_be_paged_out(session) || !lanes_.contains(number))
    throw std::invalid_argument(id +
                                " cannot be paged out: only who keeps memory and runs no cell can");
  happen(now);
  residency_.ask_to_leave(session.memory);
  Decision decision = assign(now);
  decision.page_outs.push_back(id);
  return decision;
}

bool Scheduler::may_keep(const std::string& id, Bytes persistent) const {
  const SessionNumber number = number_of(id);
  const Session& session = sessions_.at(number);
  Demand room = room_for(session);
  room.persistent = std::max(room.persistent, persistent);
  return lanes_.contains(number) ? lanes_.fits_with(number, room.persistent) : lanes_.fits(room);
}

// --- one session -------------------------------------------------------------------------------

void Scheduler::begin_cell(Session& session) {
  if (!std::exchange(session.busy, true)) {
    session.before_cell = session.device_seconds + running_seconds(session, now_);
    session.position.reset();  // another cell
  }
  residency_.begin_cell(session.memory);
  call_back(session);
}

// The wait counts from an earlier request, if there is one.
void Scheduler::call_back(Session& session) {
  residency_.let_stay(session.memory);
  if (session.memory.residence() != Residence::out) return;
  residency_.call_back(session.memory,
                       session.request ? Wait(*session.request) : Wait{now_, ++last_order_});
}

// Counts the wait to come back; a request made meanwhile goes on waiting.
void Scheduler::count_return(Session& session) {
  const Seconds until = session.request ? session.request->since : now_;
  session.waited_seconds += until - session.memory.back().since;
}

void Scheduler::give_up_return(Session& session) {
  count_return(session);
  residency_.give_up_return(session.memory);
}

void Scheduler::bring_in(Session& session) {
  if (session.memory.residence() == Residence::returning) count_return(session);
  residency_.come_in(session.memory, session.id);
  if (session.turn) session.turn->boundary = std::max(now_, is_in_by(session).value_or(now_));
}

Seconds Scheduler::leaves_by(const Session& session) const {
  return Residency::leaves_by(session.memory, session.demand.persistent, rules_.lease);
}

// Treats a session that does not page out in time as if it had refused. It may still page out
// later.
void Scheduler::give_up_those_who_do_not_leave() {
  if (residency_.leaving() == 0) return;
  for (auto& [number, session] : sessions_)
    if (session.memory.residence() == Residence::leaving && now_ >= leaves_by(session) - kSoon)
      residency_.refuse(session.memory, std::nullopt);
}

// --- who is asked ------------------------------------------------------------------------------

void Scheduler::ask_to_page_out(Decision& decision) {
  for (PageOuts asked; !(asked = who_should_page_out()).sessions.empty();) {
    const auto first = sessions_.find(asked.beneficiary);
    const std::string beneficiary = first == sessions_.end() ? "" : first->second.id;
    for (const SessionNumber number : asked.sessions) {
      Session& session = sessions_.at(number);
      residency_.ask_to_leave(session.memory, asked.beneficiary, beneficiary);
      decision.page_outs.push_back(session.id);
    }
  }
}

// Where unmanaged memory exceeds what was free, enough sessions are asked that the rest fits beside
// it. Then sessions are asked for the first one that waits for memory and would fit if all idle
// sessions were out. Held lanes count as merged, since their holders are asked to yield where that
// is needed.
Scheduler::PageOuts Scheduler::who_should_page_out() const {
  if (all_have_places() && !lanes_.is_overdrawn()) return {};
  const std::vector<const Entry*> idle = idle_sessions();
  const Demand staying = what_stays(idle);
  if (lanes_.is_overdrawn()) {
    PageOuts for_others{kNobody, who_must_leave({}, staying, idle)};
    if (!for_others.sessions.empty()) return for_others;
  }
  const SessionNumber first = first_with_room([&](const Session& session) {
    return lanes_.fits_alone(together(staying, room_for(session)));
  });
  if (first == kNobody) return who_should_make_way(idle);
  if (!waits(sessions_.at(first))) return {};
  return {first, who_must_leave(room_for(sessions_.at(first)), staying, idle)};
}

// Where idle sessions are not enough, sessions are asked as well whose turn comes after that of the
// session that waits for memory, once that one has waited for `aging` seconds. This is done for one
// session at a time. Sessions that run stay, so no work is lost; and a session that is evicted has
// to age as well, so two do not swap for ever.
Scheduler::PageOuts Scheduler::who_should_make_way(const std::vector<const Entry*>& idle) const {
  if (!all_make_way()) return {};
  const std::optional<Contender> first = first_aged();
  if (!first) return {};
  std::vector<const Entry*> may_leave = who_waits_behind(*first);
  may_leave.insert(may_leave.end(), idle.begin(), idle.end());
  const Demand staying = what_stays(may_leave), room = room_for(*first->session);
  if (!lanes_.fits_alone(together(staying, room))) return {};
  return {first->number, who_must_leave(room, staying, may_leave)};
}

std::optional<Scheduler::Contender> Scheduler::first_aged() const {
  std::optional<Contender> first;
  for (const auto& [number, session] : sessions_) {
    if (session.memory.residence() == Residence::out || lanes_.contains(number)) continue;
    if (session.turn) return std::nullopt;  // it uses memory that is not counted
    if (!has_waited_too_long(session, now_)) continue;
    const Contender contender(*this, number, session, now_);
    if (!first || goes_before(contender, *first)) first = contender;
  }
  return first;
}

// The order is that in which they stay. A session that was named as a successor is not among them.
std::vector<const Scheduler::Entry*> Scheduler::who_waits_behind(const Contender& first) const {
  std::set<SessionNumber> promised;
  std::vector<std::pair<Contender, const Entry*>> behind;
  for (const auto& [number, session] : sessions_)
    if (session.turn) promised.insert(session.turn->successor.number);
  for (const Entry& entry : sessions_) {
    const auto& [number, session] = entry;
    if (!session.request || !can_be_paged_out(session) || !lanes_.contains(number)) continue;
    const Contender contender(*this, number, session, now_);
    if (!promised.contains(number) && goes_before(first, contender))
      behind.emplace_back(contender, &entry);
  }
  std::ranges::stable_sort(
      behind, [&](const auto& a, const auto& b) { return goes_before(a.first, b.first); });
  std::vector<const Entry*> entries;
  for (const auto& each : behind) entries.push_back(each.second);
  return entries;
}

// In this order each session stays if it fits beside the others, so none is evicted without need.
std::vector<SessionNumber> Scheduler::who_must_leave(
    const Demand& room, Demand staying, const std::vector<const Entry*>& may_leave) const {
  std::vector<SessionNumber> leaving;
  for (const Entry* entry : may_leave) {
    const Demand beside = together(staying, room_for(entry->second));
    if (lanes_.fits_alone(together(beside, room)))
      staying = beside;
    else
      leaving.push_back(entry->first);
  }
  std::ranges::reverse(leaving);
  return leaving;
}

// Sessions that have a place and may be asked, the one used last first: the longest idle session
// leaves first.
std::vector<const Scheduler::Entry*> Scheduler::idle_sessions() const {
  std::vector<const Entry*> idle;
  for (const Entry& entry : sessions_)
    if (may_be_paged_out(entry.second) && lanes_.contains(entry.first)) idle.push_back(&entry);
  std::ranges::sort(idle, [](const Entry* a, const Entry* b) {
    return std::pair(a->second.memory.last_used(), a->first) >
           std::pair(b->second.memory.last_used(), b->first);
  });
  return idle;
}

// The demand of all sessions except these and those asked already.
Demand Scheduler::what_stays(const std::vector<const Entry*>& may_leave) const {
  std::set<SessionNumber> leave;
  for (const Entry* entry : may_leave) leave.insert(entry->first);
  for (const auto& [number, session] : sessions_)
    if (session.memory.residence() == Residence::leaving && lanes_.contains(number))
      leave.insert(number);
  Demand staying{lanes_.persistent(), lanes_.largest_among([&](SessionNumber number) {
                   return !leave.contains(number);
                 })};
  for (const SessionNumber number : leave)
    staying.persistent -= sessions_.at(number).demand.persistent;
  return staying;
}

}  // namespace gpushare
