#include "core/pass/pass.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/device/fitting.h"
#include "core/pass/admission.h"
#include "core/pass/boost.h"
#include "core/pass/eviction.h"
#include "core/pass/preemption.h"

namespace gpushare {

Decision Pass::run(Successor due) {
  seen_.reset();
  Decision decision;
  start_successor(due, decision);
  state_->lanes.settle_ends();
  give_up_page_outs();
  follow_tuner();
  state_->lanes.merge_down(state_->limit());
  Placement(*state_).squeeze_to(state_->lanes.left());
  admit();
  Placement(*state_).grow_back();
  settle_shares();
  boost_cells();
  RunQueue run_queue = this->run_queue(state_->now);
  do {
    grant(run_queue, decision);
    ask_to_yield(run_queue, decision);
  } while (ask_to_page_out(run_queue, decision));
  state_->tuner.runs(state_->now, static_cast<int>(run_queue.running.size()));
  if (decision.grants.empty() && decision.yields.empty() && decision.page_outs.empty())
    seen_ = std::move(run_queue);
  decision.page_ins = state_->residency.take_came_in();
  return decision;
}

// The successor may run already, whatever has changed since it was named. If it no longer waits for
// that turn, it has withdrawn, and ignores the direct handoff.
void Pass::start_successor(Successor due, Decision& decision) {
  const Session* named = state_->sessions.find(due.number);
  if (!named || !named->request || named->request->number != due.turn) return;
  decision.grants.push_back(Turns(*state_).take_over(state_->sessions.at(due.number)));
}

// Treats a session that does not page out in time as if it had refused. It may still page out
// later.
void Pass::give_up_page_outs() {
  if (state_->residency.leaving() == 0) return;
  for (Session& session : state_->sessions)
    if (session.memory.residence() == Residence::leaving &&
        state_->now >= Eviction::leaves_by(*state_, session) - kSoon)
      state_->residency.refuse(session.memory, std::nullopt);
}

void Pass::follow_tuner() {
  if (!state_->packs()) return;
  std::vector<SessionNumber> wanting;
  for (const Session& session : state_->sessions)
    if (!session.alone && (session.turn || (wants_turn(session) && state_->has_place(session))))
      wanting.push_back(session.number);
  state_->tuner.follow(state_->now, wanting);
}

void Pass::admit() {
  const Admission admission(*state_, state_->now);
  while (const SessionNumber next = admission.next()) {
    Session& session = state_->sessions.at(next);
    Placement(*state_).admit(session);
    if (is_out(session)) Paging(*state_).bring_in(session);
  }
}

// Updates the clocks of sessions that begin or cease to wait or run. A session that has no place,
// is paused or is throttled earns no credit by waiting: otherwise it would have the device to
// itself once it comes back.
void Pass::settle_shares() {
  const bool all_in = state_->all_have_places();  // except those paged out, which want no turn
  FairShares& shares = state_->shares;
  FairShares::ClocksBelow below;  // the same for all that become active
  for (Session& session : state_->sessions) {
    const bool active =
        session.turn || (wants_turn(session) && (all_in || state_->has_place(session)));
    if (active && !session.share().active) shares.enter(session.shares, below);
    if (!active && session.share().active) {
      shares.leave(session.shares);
      below.clear();
    }
  }
}

// A running session's boost only shrinks, namely when sessions arrive that are behind it in virtual
// time.
void Pass::boost_cells() {
  if (state_->rules.boost <= 0) return;  // then no session ever had any
  Boost boost(*state_, state_->now);
  for (Session& session : state_->sessions) {
    const Seconds left = boost.of(session);
    const Seconds ran = running_seconds(session, state_->now);
    session.boost = session.turn ? std::min(session.boost, ran + left) : left;
  }
}

RunQueue Pass::run_queue(Seconds now) const {
  RunQueue run_queue(*state_, now, now);
  if (state_->recovering) run_queue.waiting.clear();
  return run_queue;
}

// --- turns ---------------------------------------------------------------------------------------

void Pass::grant(RunQueue& run_queue, Decision& decision) {
  const std::size_t before = decision.grants.size();
  while (RunQueueEntry* next = next_to_start(run_queue)) {
    Session& session = state_->sessions.at(next->session->number);
    decision.grants.push_back(Turns(*state_).grant(session));
    run_queue.running.emplace_back(*state_, session, state_->now);
    if (state_->limit() != 1)  // another may start, and this turn counts for its whole user
      for (RunQueueEntry& other : run_queue.waiting)
        other.view = candidate(*state_, *other.session, state_->now);
  }
  if (decision.grants.size() == before) return;  // nothing has changed since it was marked
  std::erase_if(run_queue.waiting,
                [](const RunQueueEntry& other) { return other.session->turn.has_value(); });
  Admission(*state_, state_->now).mark(run_queue.waiting);
}

// The best of the sessions that can start. If the best of all has to run alone, the device drains
// for it. A session that could only join another one in its lane does so only if no waiting session
// goes before it: otherwise the lane might never be free for that session.
RunQueueEntry* Pass::next_to_start(RunQueue& run_queue) const {
  if (state_->limit() != 0 && state_->lanes.table().holders() >= state_->limit()) return nullptr;
  if (std::ranges::any_of(run_queue.running, &RunQueueEntry::everywhere)) return nullptr;
  const auto first_that = [&](const auto& counts) {
    RunQueueEntry* first = nullptr;
    for (RunQueueEntry& waiting : run_queue.waiting) {
      if ((waiting.lane == kNoLane && !waiting.drains) || waiting.session->turn) continue;
      const bool leads = !first || before(*state_->policy, waiting.view, first->view);
      if (leads && counts(waiting)) first = &waiting;
    }
    return first;
  };
  RunQueueEntry* best = first_that([](const RunQueueEntry&) { return true; });
  if (!best || can_start(*best)) return best;  // mostly, after one look at each
  if (best->everywhere) return nullptr;
  RunQueueEntry* first = first_that([](const RunQueueEntry& other) { return !other.promised; });
  const bool joins = first && !can_start(*first) && !first->everywhere && first->lane != kNoLane &&
                     state_->may_join(*first->session);
  return joins ? first : first_that([&](const RunQueueEntry& other) { return can_start(other); });
}

bool Pass::can_start(const RunQueueEntry& waiting) const {
  if (waiting.promised || waiting.drains) return false;
  const LaneAllocator& lanes = state_->lanes;
  if (waiting.everywhere) return lanes.table().held() == 0;
  return !lanes.table().lanes().at(waiting.lane).is_held() ||
         lanes.can_move(waiting.session->number, state_->limit());
}

void Pass::ask_to_yield(RunQueue& run_queue, Decision& decision) {
  const Preemption preemption(*state_, state_->now);
  preemption.time_turns(run_queue);
  for (const RunQueueEntry& holder : run_queue.running) {
    if (holder.session->turn->asked || holder.ends_in > kSoon) continue;
    const Session* heir = preemption.heir(holder, run_queue);
    Session& session = state_->sessions.at(holder.session->number);
    decision.yields.push_back(Turns(*state_).ask_to_yield(session, heir, holder.lane));
  }
}

// --- memory --------------------------------------------------------------------------------------

// Returns whether any session is asked. Then the device need not drain for the session for which
// they are paged out, so others may start.
bool Pass::ask_to_page_out(RunQueue& run_queue, Decision& decision) {
  if (state_->recovering) return false;
  const std::size_t before = decision.page_outs.size();
  for (Eviction::Plan plan; !(plan = Eviction(*state_).plan()).sessions.empty();) {
    const Session* first = state_->sessions.find(plan.beneficiary);
    const std::string beneficiary = first ? first->id : "";
    for (const SessionNumber number : plan.sessions) {
      Session& session = state_->sessions.at(number);
      state_->residency.ask_to_leave(session.memory, plan.beneficiary, beneficiary);
      decision.page_outs.push_back(session.id);
    }
  }
  if (decision.page_outs.size() == before) return false;
  run_queue = this->run_queue(state_->now);
  return true;
}

// --- the next pass -------------------------------------------------------------------------------

std::optional<Seconds> Pass::next_event(Seconds now) const {
  now = state_->latest(now);
  if (seen_ && now == state_->now) return next_change(*seen_, now);
  RunQueue run_queue = this->run_queue(now);
  Preemption(*state_, now).time_turns(run_queue);
  return next_change(run_queue, now);
}

// Needs a run_queue whose turns are timed.
std::optional<Seconds> Pass::next_change(const RunQueue& run_queue, Seconds now) const {
  Seconds next = next_page_out(now);
  const auto at = [&](Seconds time) {
    if (time > now) next = std::min(next, time);
  };
  for (const RunQueueEntry& holder : run_queue.running) {
    if (const auto asked = holder.session->turn->asked)
      at(*asked + state_->rules.lease);
    else
      // A little earlier: by then the end counts as now, in spite of rounding. So a boundary at
      // exactly that moment ends the turn, as forecasts have it.
      next = std::min(next, now + std::max(0.0, holder.ends_in - kSoon / 2));
  }
  for (const RunQueueEntry& waiting : run_queue.waiting)
    if (waiting.lane == kNoLane) at(Admission::ages_at(*state_, *waiting.session));
  if (state_->packs()) at(state_->tuner.next_event().value_or(kNever));
  return next == kNever ? std::nullopt : std::optional(next);
}

// The next deadline of a page-out.
Seconds Pass::next_page_out(Seconds now) const {
  Seconds next = kNever;
  if (state_->residency.leaving() == 0) return next;
  for (const Session& session : state_->sessions) {
    if (session.memory.residence() != Residence::leaving) continue;
    const Seconds by = Eviction::leaves_by(*state_, session);
    if (by > now) next = std::min(next, by);
  }
  return next;
}

// --- what must stay true -------------------------------------------------------------------------

std::string Pass::is_valid() const {
  if (state_->sessions.empty()) return "";
  if (Admission(*state_, state_->now).next() != kNoSession)
    return "a session has no place although there is one";
  if (!state_->recovering && !Eviction(*state_).plan().sessions.empty())
    return "room is needed that others were not asked to make";
  return turns_are_right();
}

std::string Pass::turns_are_right() const {
  RunQueue run_queue = this->run_queue(state_->now);
  if (next_to_start(run_queue)) return "a session waits although it could start";
  for (const RunQueueEntry& holder : run_queue.running) {
    const bool asked = holder.session->turn->asked.has_value();
    if (holder.must_end && !asked) return "a session that must end was not asked to yield";
    if (holder.everywhere && run_queue.running.size() > 1 && !asked)
      return "a session that runs alone runs beside others";
  }
  return "";
}

}  // namespace gpushare
