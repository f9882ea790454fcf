#include "core/pass/preemption.h"

#include <algorithm>

namespace gpushare {

void Preemption::mark(RunQueue& run_queue) const {
  mark_those_that_must_end(run_queue.running);
  mark_promises(run_queue);
}

// If more turns run than are allowed, the lowest-ranked ones must end; turns already asked to yield
// are chosen first.
void Preemption::mark_those_that_must_end(std::vector<RunQueueEntry>& running) const {
  for (RunQueueEntry& holder : running) holder.must_end = must_end(holder, running.size() > 1);
  const auto allowed = static_cast<std::size_t>(state_.limit());
  if (allowed == 0 || running.size() <= allowed) return;
  std::ranges::sort(running, [&](const RunQueueEntry& a, const RunQueueEntry& b) {
    const bool a_stays = !a.session->turn->asked, b_stays = !b.session->turn->asked;
    return a_stays != b_stays ? a_stays : goes_before(a, b);
  });
  for (std::size_t i = allowed; i < running.size(); ++i) running[i].must_end = true;
}

// Sessions that run and should not: those that are paused or throttled, whose end was requested,
// that have no (large enough) place, or that are exclusive but run among others.
bool Preemption::must_end(const RunQueueEntry& holder, bool runs_among_others) const {
  const Session& session = *holder.session;
  return session.paused || is_throttled(session) || session.turn->preempted ||
         holder.lane == kNoLane || state_.has_outgrown(session) ||
         state_.has_outgrown_end(session) || (holder.everywhere && runs_among_others);
}

// A session that was named as successor may have begun by now, in the lane of its predecessor. It
// is given no other lane: for a moment it would use both lanes, and another session the first one.
void Preemption::mark_promises(RunQueue& run_queue) const {
  for (RunQueueEntry& holder : run_queue.running) {
    const Session::Turn& turn = *holder.session->turn;
    if (turn.successor.number == kNoSession) continue;
    for (RunQueueEntry& waiting : run_queue.waiting)
      if (state_.promises(turn, *waiting.session, now_)) holder.promised = waiting.promised = true;
  }
}

// A waiting session may have any lane that it fits into, so the lowest-ranked running sessions are
// asked first. Each asked session takes one waiting session off the list, so no more are asked than
// sessions wait. The session that was asked longest ago takes first.
void Preemption::time_turns(RunQueue& run_queue) const {
  std::ranges::sort(run_queue.running, [&](const RunQueueEntry& a, const RunQueueEntry& b) {
    if (asked(a) != asked(b)) return asked(a) < asked(b);
    if (a.must_end != b.must_end) return a.must_end;
    if (goes_before(a, b) != goes_before(b, a)) return goes_before(b, a);
    return a.session->number > b.session->number;
  });
  std::vector<const RunQueueEntry*> left;
  left.reserve(run_queue.waiting.size());
  for (const RunQueueEntry& waiting : run_queue.waiting)
    if (!waiting.promised) left.push_back(&waiting);
  for (RunQueueEntry& holder : run_queue.running) time_turn(holder, left);
}

Seconds Preemption::asked(const RunQueueEntry& holder) const {
  return holder.session->turn->asked.value_or(holder.must_end ? now_ : kNever);
}

// The turn ends at the earliest time that one of the remaining sessions asks for, but not before
// now. If it ends now, the best of them gets its lane.
void Preemption::time_turn(RunQueueEntry& holder, std::vector<const RunQueueEntry*>& left) const {
  if (holder.must_end || holder.session->turn->asked) holder.ends_in = 0;
  if (holder.promised) return;
  const Bytes room = holder.lane == kNoLane ? 0 : state_.lanes.could_grow_to(holder.lane);
  for (const RunQueueEntry* other : left) {
    if (holder.ends_in <= 0) break;
    if (holder.everywhere || other->everywhere || follows(*other, holder, room))
      holder.ends_in = std::min(
          holder.ends_in, ends_in(*state_.policy, holder.view, other->view, state_.quantum()));
  }
  if (holder.ends_in <= kSoon) choose_successor(holder, left, room);
}

bool Preemption::follows(const RunQueueEntry& other, const RunQueueEntry& holder,
                         Bytes room) const {
  if (holder.everywhere || other.everywhere || other.lane == kNoLane) return false;
  return other.lane == holder.lane ||
         state_.lanes.table().demand_of(other.session->number).ephemeral <= room;
}

void Preemption::choose_successor(RunQueueEntry& holder, std::vector<const RunQueueEntry*>& left,
                                  Bytes room) const {
  const auto best =
      std::ranges::min_element(left, [&](const RunQueueEntry* a, const RunQueueEntry* b) {
        const bool a_follows = follows(*a, holder, room);
        const bool b_follows = follows(*b, holder, room);
        return a_follows != b_follows ? a_follows : a_follows && goes_before(*a, *b);
      });
  if (best == left.end() || !follows(**best, holder, room)) return;
  holder.successor = *best;
  if (follows_beside(*(*best)->session, *holder.session)) left.erase(best);
}

// If false, the other holder's turn has to end for it as well.
bool Preemption::follows_beside(const Session& other, const Session& holder) const {
  const Session* beside = state_.beside(holder);
  if (!beside) return true;
  const LaneTable& table = state_.lanes.table();
  const Bytes needs = table.demand_of(other.number).ephemeral;
  return may_share(other, *beside) && needs <= table.lane_with(holder.number).width;
}

// A direct handoff is made only within a trust domain, if the lane stays as it is and no waiting
// session comes first: not even one for which the device has to drain, nor one of another user
// after the iteration, however long that lasts. A lane with ends that only one session holds loses
// them at this switch, so it is not handed off.
const Session* Preemption::heir(const RunQueueEntry& holder, const RunQueue& run_queue) const {
  const RunQueueEntry* to = holder.successor;
  if (!to || !trust(*holder.session, *to->session)) return nullptr;
  if (holder.lane != to->lane || state_.has_outgrown(*holder.session)) return nullptr;
  const bool has_end = state_.lanes.table().end_of(holder.session->number) != kNoEnd;
  if (has_end && !state_.beside(*holder.session)) return nullptr;
  if (!follows_beside(*to->session, *holder.session)) return nullptr;
  const bool is_open = std::ranges::any_of(run_queue.waiting, [&](const RunQueueEntry& other) {
    return (other.everywhere && goes_before(other, *to)) || may_come_first(other, *to, holder);
  });
  return is_open ? nullptr : to->session;
}

bool Preemption::may_come_first(const RunQueueEntry& other, const RunQueueEntry& to,
                                const RunQueueEntry& holder) const {
  if (other.promised || !follows(other, holder, state_.lanes.could_grow_to(holder.lane)))
    return false;
  return before(*state_.policy, after_turn(other.view, holder.view),
                after_turn(to.view, holder.view));
}

}  // namespace gpushare
