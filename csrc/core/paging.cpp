// Where sessions' persistent memory is: the events that change it, and who is asked to page out.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/scheduler.h"

namespace gpushare {
namespace {

// A page-out to any disk is faster; bytes a second.
constexpr double kSlowestPageOut = 50e6;

// What two sessions take that share a lane.
Demand together(const Demand& a, const Demand& b) {
  return {a.persistent + b.persistent, std::max(a.ephemeral, b.ephemeral)};
}

}  // namespace

// --- events ------------------------------------------------------------------------------------

Decision Scheduler::set_busy(Seconds now, const std::string& id, bool busy) {
  Session& session = sessions_.at(number_of(id));
  advance(now);
  if (session.busy && !busy) session.last_used = now_;
  if (busy && !session.busy)
    session.before_cell = session.device_seconds + running_seconds(session, now_);
  session.busy = busy;
  if (busy) {
    session.refused = false;
    call_back(session);
  } else if (session.residence == Residence::returning && !session.request) {
    end_return(session, Residence::out);
  }
  return assign(now);
}

Decision Scheduler::paged_out(Seconds now, const std::string& id, Bytes bytes) {
  const SessionNumber number = number_of(id);
  check_paged_out(bytes);
  advance(now);
  Session& session = sessions_.at(number);
  session.paged_out_bytes = bytes;
  if (!is_out(session)) move_to(session, Residence::out);
  if (session.turn) {
    bring_in(session);  // whoever runs keeps its place
    return assign(now);
  }
  if (lanes_.contains(number)) lanes_.remove(number);
  if (session.busy || session.request) call_back(session);
  return assign(now);
}

Decision Scheduler::page_out_failed(Seconds now, const std::string& id) {
  Session& session = sessions_.at(number_of(id));
  advance(now);
  if (session.residence == Residence::leaving) {
    move_to(session, Residence::in);
    session.refused = true;
  }
  return assign(now);
}

Decision Scheduler::dismiss(Seconds now, const std::string& id) {
  const SessionNumber number = number_of(id);
  Session& session = sessions_.at(number);
  if (!may_be_paged_out(session) || !lanes_.contains(number))
    throw std::invalid_argument(title(session) +
                                " cannot be paged out: only who keeps memory and runs no cell can");
  advance(now);
  move_to(session, Residence::leaving);
  Decision decision = assign(now);
  decision.page_outs.push_back(id);
  return decision;
}

Decision Scheduler::page_in(Seconds now, const std::string& id) {
  Session& session = sessions_.at(number_of(id));
  advance(now);
  if (is_out(session)) call_back(session);
  return assign(now);
}

Decision Scheduler::came_back(Seconds now, const std::string& id) {
  Session& session = sessions_.at(number_of(id));
  advance(now);
  if (is_out(session)) come_in(session);
  return assign(now);
}

bool Scheduler::may_keep(const std::string& id, Bytes persistent) const {
  const SessionNumber number = number_of(id);
  const Session& session = sessions_.at(number);
  Demand room = room_for(session);
  room.persistent = std::max(room.persistent, persistent);
  return lanes_.contains(number) ? lanes_.fits_with(number, room.persistent) : lanes_.fits(room);
}

// --- one session -------------------------------------------------------------------------------

// All changes pass here, so that those who are out are counted.
void Scheduler::move_to(Session& session, Residence residence) {
  if (session.residence == Residence::out) --out_;
  if (residence == Residence::out) ++out_;
  if (residence == Residence::leaving) session.asked_to_leave = now_;
  session.residence = residence;
  if (residence == Residence::in) session.makes_room_for.clear();
}

// It needs its memory: it is not asked for it any more, or wants to come back. A request that came
// before counts from then.
void Scheduler::call_back(Session& session) {
  if (session.residence == Residence::leaving) move_to(session, Residence::in);
  if (session.residence != Residence::out) return;
  session.back = session.request ? Wait(*session.request) : Wait{now_, ++last_order_};
  move_to(session, Residence::returning);
}

// A request that it has made meanwhile goes on waiting.
void Scheduler::end_return(Session& session, Residence residence) {
  const Seconds until = session.request ? session.request->since : now_;
  session.waited_seconds += until - session.back.since;
  move_to(session, residence);
}

void Scheduler::come_in(Session& session) {
  if (session.residence == Residence::returning) end_return(session, Residence::in);
  move_to(session, Residence::in);
  session.paged_out_bytes = 0;
  session.last_used = now_;
}

void Scheduler::bring_in(Session& session) {
  come_in(session);
  came_in_.push_back(session.id);
}

bool Scheduler::is_out(const Session& session) const {
  return session.residence == Residence::out || session.residence == Residence::returning;
}

// Whoever hangs must not keep others waiting for room.
Seconds Scheduler::leaves_by(const Session& session) const {
  const auto moving = static_cast<Seconds>(session.demand.persistent) / kSlowestPageOut;
  return session.asked_to_leave + rules_.lease + moving;
}

// As if they had said that they cannot. If they page out later all the same, so much the better.
void Scheduler::give_up_those_who_do_not_leave() {
  for (auto& [number, session] : sessions_) {
    if (session.residence != Residence::leaving || now_ < leaves_by(session) - kSoon) continue;
    move_to(session, Residence::in);
    session.refused = true;
  }
}

// --- who is asked ------------------------------------------------------------------------------

void Scheduler::ask_to_page_out(Decision& decision) {
  for (PageOuts asked; !(asked = who_should_page_out()).sessions.empty();) {
    for (const SessionNumber number : asked.sessions) {
      Session& session = sessions_.at(number);
      move_to(session, Residence::leaving);
      session.makes_room_for = asked.beneficiary == kNobody
                                   ? "programs that do not share"
                                   : title(sessions_.at(asked.beneficiary));
      decision.page_outs.push_back(session.id);
    }
  }
}

// Where others have taken more than was free, so many that the rest fits beside them. Then, for the
// first of those who wait for room and would have it if all idle sessions were out. Held lanes
// count as merged, since their holders are asked to yield where that is needed.
Scheduler::PageOuts Scheduler::who_should_page_out() const {
  if (all_have_places() && !lanes_.is_overdrawn()) return {};
  const std::vector<const Entry*> idle = idle_sessions();
  if (idle.empty()) return {};
  const Demand staying = what_stays();
  if (lanes_.is_overdrawn()) {
    PageOuts for_others{kNobody, who_must_leave({}, staying, idle)};
    if (!for_others.sessions.empty()) return for_others;
  }
  const SessionNumber first = first_with_room([&](const Session& session) {
    return lanes_.fits_alone(together(staying, room_for(session)));
  });
  if (first == kNobody || !waits(sessions_.at(first))) return {};
  return {first, who_must_leave(room_for(sessions_.at(first)), staying, idle)};
}

// Beginning with the one used last, an idle session stays if there is room for it beside. So those
// leave who have been idle longest, and nobody without whose leaving there is room.
std::vector<SessionNumber> Scheduler::who_must_leave(const Demand& room, Demand staying,
                                                     std::vector<const Entry*> idle) const {
  std::ranges::sort(idle, [](const Entry* a, const Entry* b) {
    return std::pair(a->second.last_used, a->first) > std::pair(b->second.last_used, b->first);
  });
  std::vector<SessionNumber> leaving;
  for (const Entry* entry : idle) {
    const Demand beside = together(staying, room_for(entry->second));
    if (lanes_.fits_alone(together(beside, room)))
      staying = beside;
    else
      leaving.push_back(entry->first);
  }
  std::ranges::reverse(leaving);
  return leaving;
}

// Those who have a place and may be asked.
std::vector<const Scheduler::Entry*> Scheduler::idle_sessions() const {
  std::vector<const Entry*> idle;
  for (const Entry& entry : sessions_)
    if (may_be_paged_out(entry.second) && lanes_.contains(entry.first)) idle.push_back(&entry);
  return idle;
}

// What those take who are in use, or cannot leave: all but the idle ones and those asked already.
Demand Scheduler::what_stays() const {
  const auto stays = [&](const Session& session) {
    return session.residence != Residence::leaving && !may_be_paged_out(session);
  };
  Demand staying{lanes_.persistent(), lanes_.largest_among([&](SessionNumber number) {
                   return stays(sessions_.at(number));
                 })};
  for (const auto& [number, session] : sessions_)
    if (!stays(session) && lanes_.contains(number)) staying.persistent -= session.demand.persistent;
  return staying;
}

bool Scheduler::may_be_paged_out(const Session& session) const {
  return session.residence == Residence::in && !session.busy && !session.refused && !session.turn &&
         !session.request && session.demand.persistent > 0;
}

}  // namespace gpushare
