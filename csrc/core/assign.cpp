// The pass that every event ends in: it decides which sessions memory admits, which start, which
// are asked to yield or to page out, and when the next pass is due.
#include <algorithm>
#include <optional>
#include <utility>

#include "core/scheduler.h"

namespace gpushare {

Decision Scheduler::assign(Seconds now) {
  advance(now);
  Decision decision;
  start_successor(decision);
  give_up_those_who_do_not_leave();
  follow_tuner();
  lanes_.merge_down(limit());
  admit();
  settle_clocks();
  boost_cells();
  Contest contest = this->contest(now_);
  grant(contest, decision);
  ask_to_yield(contest, decision);
  if (!decision.grants.empty() || !decision.yields.empty()) ordered_ = now_;
  if (!recovering_) ask_to_page_out(decision);
  tuner_.runs(now_, static_cast<int>(contest.running.size()));
  if (decision.grants.empty() && decision.yields.empty() && decision.page_outs.empty())
    seen_ = std::move(contest);
  decision.page_ins = residency_.take_came_in();
  return decision;
}

// The successor may run already, whatever has changed since it was named. If it does not wait for
// that turn any more, it has withdrawn, and ignores the direct handoff.
void Scheduler::start_successor(Decision& decision) {
  const auto [number, turn] = std::exchange(due_, {});
  const auto found = sessions_.find(number);
  if (found == sessions_.end()) return;
  Session& session = found->second;
  if (!session.request || session.request->number != turn) return;
  end_wait(session);
  take_lane(number, session);
  begin_turn(session, turn);
  decision.grants.push_back({session.id, turn, lanes_.lane_of(number)});
}

int Scheduler::limit() const {
  if (rules_.running_lanes != 0) return rules_.running_lanes;
  return policy_->packs ? tuner_.lanes() : 1;
}

int Scheduler::wanted() const { return packs() ? tuner_.hoped() : limit(); }

void Scheduler::follow_tuner() {
  if (!packs()) return;
  std::vector<SessionNumber> wanting;
  for (const auto& [number, session] : sessions_)
    if (!session.alone && (session.turn || (wants_turn(session) && lanes_.contains(number))))
      wanting.push_back(number);
  tuner_.follow(now_, wanting);
}

void Scheduler::admit() {
  while (const SessionNumber next = next_to_admit()) {
    Session& session = sessions_.at(next);
    lanes_.place(next, room_for(session), limit());
    if (is_out(session)) bring_in(session);
  }
}

SessionNumber Scheduler::next_to_admit() const {
  if (all_have_places()) return kNobody;
  return first_with_room([&](const Session& session) {
    return lanes_.fits(room_for(session)) && may_come_in(session, now_);
  });
}

// Where several lanes are wanted, a session is not admitted before its aging is over if fewer lanes
// could run at once with it than without it: lanes in use do not merge for it. A session whose
// memory is on the device already, or that runs nothing, is counted as soon as it can be.
bool Scheduler::may_come_in(const Session& session, Seconds now) const {
  const bool is_new = is_out(session) || (session.iterations == 0 && session.device_seconds == 0);
  const bool runs = session.busy || session.request;
  if (wanted() == 1 || !is_new || !runs || has_waited_too_long(session, now)) return true;
  const int before = lanes_at_once(nullptr);
  const int enough = wanted() == 0 ? before : std::min(before, wanted());
  return enough < 2 || lanes_at_once(&session) >= enough;
}

// The number of sessions with a running cell that fit at once, the newcomer included.
int Scheduler::lanes_at_once(const Session* newcomer) const {
  Bytes left = lanes_.capacity() - lanes_.foreign() - lanes_.persistent();
  std::vector<Bytes> sizes;
  const auto add = [&](const Session& session) {
    const bool runs = session.busy || session.turn || session.request;
    if (runs && session.demand.measured && !session.alone && !session.paused && !is_held(session))
      sizes.push_back(session.demand.ephemeral);
  };
  for (const auto& [number, session] : sessions_)
    if (lanes_.contains(number)) add(session);
  if (newcomer) {
    left -= newcomer->demand.persistent;
    add(*newcomer);
  }
  std::ranges::sort(sizes);
  const auto fits = [&](Bytes size) { return (left -= size) >= 0; };
  return static_cast<int>(std::ranges::find_if_not(sizes, fits) - sizes.begin());
}

// The first of the sessions that fit. Backfill may admit others before a session that does not fit
// yet, but aging bounds it: after `aging` that session comes first and no other is admitted before
// it.
SessionNumber Scheduler::first_with_room(
    const std::function<bool(const Session&)>& has_room) const {
  std::optional<Contender> best;
  for (const auto& [number, session] : sessions_) {
    if (session.memory.residence() == Residence::out || lanes_.contains(number)) continue;
    if (session.turn) return kNobody;  // it uses memory that is not counted
    if (is_held(session)) continue;
    if (!reserves(number, session, now_) && !has_room(session)) continue;
    const Contender contender(*this, number, session, now_);
    if (!best || is_admitted_before(contender, *best, now_)) best = contender;
  }
  return best && has_room(*best->session) ? best->number : kNobody;
}

// Updates the clocks of sessions that begin or cease to wait or run. A session that has no place,
// is paused or is throttled earns no credit by waiting: otherwise it would have the device to
// itself once it comes back.
void Scheduler::settle_clocks() {
  const bool all_in = all_have_places();         // except those paged out, which want no turn
  std::optional<FairShares::ClocksBelow> below;  // taken once for all that become active
  for (auto& [number, session] : sessions_) {
    const bool active =
        session.turn || (wants_turn(session) && (all_in || lanes_.contains(number)));
    if (active && !session.share().active) {
      if (!below) below = shares_.clocks_below(now_);
      shares_.enter(session.shares, *below);
    }
    if (!active && session.share().active) {
      shares_.leave(session.shares);
      below.reset();
    }
  }
}

// The boost of a running session only becomes less, when other sessions come of which it is ahead.
void Scheduler::boost_cells() {
  std::optional<FairShares::ClocksBelow> below;  // taken for the first boosted session
  for (auto& [number, session] : sessions_) {
    const Seconds left = boost_of(session, below, now_);
    const Seconds ran = running_seconds(session, now_);
    session.boost = session.turn ? std::min(session.boost, ran + left) : left;
  }
}

// How long the session goes first: the rest of its cell's boost, but at no level of shares further
// than that beyond the lowest clock of the others. So cells that begin often, or many of them, gain
// nothing over time, and a long one is passed over for a bounded time only. A session that is
// further ahead waits for its share like all others, and goes first again as soon as they have come
// near. With 0.5 s, thirty sessions that work beside eight long trainings saw progress after 0.12 s
// in 95 of 100 cells instead of 2 s, in virtual time; 0.1 s and 2 s did as well for them, but the
// former ends few cells, and the latter makes the long ones wait longer.
Seconds Scheduler::boost_of(const Session& session, std::optional<FairShares::ClocksBelow>& below,
                            Seconds now) const {
  if (!session.share().active) return 0;
  const Seconds used = session.device_seconds + running_seconds(session, now);
  const Seconds left = rules_.boost - (used - session.before_cell);
  if (left <= 0) return 0;
  if (!below) below = shares_.clocks_below(now);
  const Seconds near = rules_.boost - shares_.ahead(session.shares, *below, now);
  return std::max(0.0, std::min(left, near));
}

Scheduler::Contest Scheduler::look(Seconds now, Seconds ordered) const {
  Contest contest;
  contest.waiting.reserve(sessions_.size());
  for (const auto& [number, session] : sessions_) {
    if (session.turn)
      contest.running.emplace_back(*this, number, session, ordered);
    else if (waits(session))
      contest.waiting.emplace_back(*this, number, session, ordered);
  }
  mark_those_who_must_end(contest.running);
  mark_promises(contest, now);
  mark_who_needs_lanes_merged(contest.waiting, now);
  return contest;
}

Scheduler::Contest Scheduler::contest(Seconds now) const {
  Contest contest = look(now, now);
  if (recovering_) contest.waiting.clear();
  return contest;
}

// Held lanes do not merge. If merging would free the memory that a waiting session needs, the first
// such session waits for all holders, so that their turns end.
void Scheduler::mark_who_needs_lanes_merged(std::vector<Contender>& waiting, Seconds now) const {
  if (lanes_.held() < 2) return;
  Contender* first = nullptr;
  for (Contender& contender : waiting) {
    if (contender.lane != kNoLane) continue;
    const Demand room = room_for(*contender.session);
    if (lanes_.fits(room) || !lanes_.fits_when_idle(room)) continue;
    if (!may_come_in(*contender.session, now)) continue;
    if (!first || is_admitted_before(contender, *first, now)) first = &contender;
  }
  if (first) first->everywhere = true;
}

// Marks the sessions that run and should not: those that are paused or throttled, whose end was
// requested, that have no (large enough) place, or that are exclusive but run among others, and the
// last by policy if more run than may. Of these, those asked already count first.
void Scheduler::mark_those_who_must_end(std::vector<Contender>& running) const {
  for (Contender& holder : running)
    holder.must_end = holder.session->paused || is_held(*holder.session) ||
                      holder.session->turn->recalled || holder.lane == kNoLane ||
                      has_outgrown(holder.number, *holder.session) ||
                      (holder.everywhere && running.size() > 1);
  const auto allowed = static_cast<std::size_t>(limit());
  if (allowed == 0 || running.size() <= allowed) return;
  std::ranges::sort(running, [&](const Contender& a, const Contender& b) {
    const bool a_stays = !a.session->turn->asked, b_stays = !b.session->turn->asked;
    return a_stays != b_stays ? a_stays : goes_before(a, b);
  });
  for (std::size_t i = allowed; i < running.size(); ++i) running[i].must_end = true;
}

// A session that was named as successor may have begun by now, in the lane of its predecessor, and
// is given no other lane: it would use both for a moment, and another session the first of them.
// This lasts no longer than the lease.
void Scheduler::mark_promises(Contest& contest, Seconds now) const {
  for (Contender& holder : contest.running)
    for (Contender& waiting : contest.waiting)
      if (promises(*holder.session->turn, successor_of(waiting), now))
        holder.promised = waiting.promised = true;
}

bool Scheduler::promises(const Turn& turn, const Successor& waiting, Seconds now) const {
  return turn.successor == waiting && now < *turn.asked + rules_.lease - kSoon;
}

bool Scheduler::is_promised(SessionNumber number, const Session& session) const {
  if (!session.request) return false;
  const Successor waiting{number, session.request->number};
  return std::ranges::any_of(sessions_, [&](const Entry& other) {
    return other.second.turn && promises(*other.second.turn, waiting, now_);
  });
}

Session::Successor Scheduler::successor_of(const Contender& waiting) {
  return {waiting.number, waiting.session->request->number};
}

void Scheduler::grant(Contest& contest, Decision& decision) {
  while (Contender* next = next_to_start(contest)) {
    Session& session = sessions_.at(next->number);
    if (lanes_.holder_of(next->lane) != kNobody) lanes_.move(next->number, limit());
    const TurnNumber turn = session.request->number;
    end_wait(session);
    begin_turn(session, turn);
    lanes_.hold(next->number);
    contest.running.emplace_back(*this, next->number, session, now_);
    decision.grants.push_back({session.id, turn, lanes_.lane_of(next->number)});
    if (limit() != 1)  // another session may start, and this turn counts for its whole user
      for (Contender& other : contest.waiting) other.view = candidate(*other.session, now_);
  }
  std::erase_if(contest.waiting,
                [](const Contender& other) { return other.session->turn.has_value(); });
  mark_who_needs_lanes_merged(contest.waiting, now_);
}

// The best of the sessions that can start. If the best of all has to run alone, the device drains
// for it.
Scheduler::Contender* Scheduler::next_to_start(Contest& contest) const {
  if (limit() != 0 && lanes_.held() >= limit()) return nullptr;
  if (std::ranges::any_of(contest.running, &Contender::everywhere)) return nullptr;
  Contender *best = nullptr, *able = nullptr;
  for (Contender& waiting : contest.waiting) {
    if (waiting.lane == kNoLane || waiting.session->turn) continue;
    if (!best || goes_before(waiting, *best)) best = &waiting;
    if ((!able || goes_before(waiting, *able)) && can_start(waiting)) able = &waiting;
  }
  return best && best->everywhere && able != best ? nullptr : able;
}

bool Scheduler::can_start(const Contender& waiting) const {
  if (waiting.promised) return false;
  if (waiting.everywhere) return lanes_.held() == 0;
  return lanes_.holder_of(waiting.lane) == kNobody || lanes_.can_move(waiting.number, limit());
}

void Scheduler::ask_to_yield(Contest& contest, Decision& decision) {
  time_turns(contest, now_);
  for (const Contender& holder : contest.running) {
    if (holder.session->turn->asked || holder.ends_in > kSoon) continue;
    Session& session = sessions_.at(holder.number);
    session.turn->asked = now_;
    decision.yields.push_back(yield_of(holder, contest, *session.turn));
  }
}

Yield Scheduler::yield_of(const Contender& holder, const Contest& contest, Turn& turn) const {
  Yield yield{holder.session->id, turn.number, std::nullopt};
  if (const Contender* to = holder.successor; to && may_pass_on(holder, *to, contest)) {
    turn.successor = successor_of(*to);
    yield.successor = Grant{to->session->id, turn.successor.turn, holder.lane};
  }
  return yield;
}

// A direct handoff is made only within a trust domain, where the lane stays as it is, and if no
// waiting session comes first: not even one for which the device has to drain.
bool Scheduler::may_pass_on(const Contender& holder, const Contender& to,
                            const Contest& contest) const {
  return trust(*holder.session, *to.session) && holder.lane == to.lane &&
         !has_outgrown(holder.number, *holder.session) &&
         std::ranges::none_of(contest.waiting, [&](const Contender& other) {
           return other.everywhere && goes_before(other, to);
         });
}

// When each running turn should end. A waiting session may have any lane that it fits into, so the
// last of the running sessions are asked first, and each one asked takes one waiting session out of
// the count: no more are asked than there are others to go on. The session that was asked longest
// ago takes first.
void Scheduler::time_turns(Contest& contest, Seconds now) const {
  const auto asked = [&](const Contender& holder) {
    return holder.session->turn->asked.value_or(holder.must_end ? now : kNever);
  };
  std::ranges::sort(contest.running, [&](const Contender& a, const Contender& b) {
    if (asked(a) != asked(b)) return asked(a) < asked(b);
    if (a.must_end != b.must_end) return a.must_end;
    if (goes_before(a, b) != goes_before(b, a)) return goes_before(b, a);
    return a.number > b.number;
  });
  std::vector<const Contender*> left;
  left.reserve(contest.waiting.size());
  for (const Contender& waiting : contest.waiting)
    if (!waiting.promised) left.push_back(&waiting);
  for (Contender& holder : contest.running) time_turn(holder, left);
}

// The turn ends for the soonest of the sessions that are left. If it ends now, the best of them
// will have its lane.
void Scheduler::time_turn(Contender& holder, std::vector<const Contender*>& left) const {
  if (holder.must_end || holder.session->turn->asked) holder.ends_in = 0;
  if (holder.promised) return;
  const Bytes room = holder.lane == kNoLane ? 0 : lanes_.could_grow_to(holder.lane);
  const auto excludes = [&](const Contender* other) {
    return holder.everywhere || other->everywhere;
  };
  const auto fits = [&](const Contender* other) {
    return other->lane == holder.lane || room_for(*other->session).ephemeral <= room;
  };
  const auto follows = [&](const Contender* other) {
    return !excludes(other) && other->lane != kNoLane && fits(other);
  };
  for (const Contender* other : left)
    if (excludes(other) || follows(other))
      holder.ends_in = std::min(holder.ends_in,
                                gpushare::ends_in(*policy_, holder.view, other->view, quantum()));
  if (holder.ends_in > kSoon) return;
  const auto best = std::ranges::min_element(left, [&](const Contender* a, const Contender* b) {
    return follows(a) != follows(b) ? follows(a) : follows(a) && goes_before(*a, *b);
  });
  if (best == left.end() || !follows(*best)) return;
  holder.successor = *best;
  left.erase(best);
}

std::optional<Seconds> Scheduler::next_event(Seconds now) const {
  now = latest(now);
  if (seen_ && now == now_) return next_change(*seen_, now);
  Contest contest = this->contest(now);
  time_turns(contest, now);
  return next_change(contest, now);
}

// Needs a contest whose turns are timed.
std::optional<Seconds> Scheduler::next_change(const Contest& contest, Seconds now) const {
  Seconds next = kNever;
  const auto at = [&](Seconds time) {
    if (time > now) next = std::min(next, time);
  };
  for (const Contender& holder : contest.running) {
    if (const auto asked = holder.session->turn->asked)
      at(*asked + rules_.lease);
    else
      next = std::min(next, now + holder.ends_in);
  }
  for (const Contender& waiting : contest.waiting)
    if (waiting.lane == kNoLane) at(ages_at(*waiting.session));
  if (residency_.leaving() > 0)
    for (const auto& [number, session] : sessions_)
      if (session.memory.residence() == Residence::leaving) at(leaves_by(session));
  if (packs()) at(tuner_.next_event().value_or(kNever));
  return next == kNever ? std::nullopt : std::optional(next);
}

}  // namespace gpushare
