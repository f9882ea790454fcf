// Events: what each changes of the sessions. All of them end in the pass.
#include "core/host/scheduler.h"

#include <stdexcept>

#include "core/device/fitting.h"
#include "core/device/paging.h"
#include "core/device/session_validation.h"
#include "core/device/turns.h"
#include "core/model/validation.h"
#include "core/view/snapshot.h"

namespace gpushare {

Scheduler::Scheduler(Bytes capacity, std::string_view policy, const Rules& rules, Bytes least_chunk)
    : state_(std::make_unique<DeviceState>(capacity, policy, rules, least_chunk)) {}

// --- sessions ------------------------------------------------------------------------------------

// A session that opens again has lost its successor.
Decision Scheduler::open(Seconds now, const std::string& id, const SessionSpec& spec) {
  SessionSpec known = spec;
  known.demand = squeezable(state_->rules, spec.demand, spec.alone);
  check_spec(known, state_->lanes);
  happen(now);
  Turns(*state_).open(id, known);
  return pass();
}

Decision Scheduler::close(Seconds now, const std::string& id) {
  Session& closed = known(id);
  happen(now);
  return pass(Turns(*state_).close(closed));
}

Decision Scheduler::change(Seconds now, const std::string& id, std::optional<double> weight,
                           std::optional<int> priority, std::optional<bool> paused) {
  Session& changed = known(id);
  if (weight) check_weight(*weight);
  happen(now);
  if (weight) state_->shares.weigh(changed.shares, *weight);
  changed.priority = priority.value_or(changed.priority);
  changed.paused = paused.value_or(changed.paused);
  return pass();
}

Decision Scheduler::throttle(Seconds now, const std::map<std::string, Why>& reasons) {
  for (const auto& [id, why] : reasons) {
    known(id);
    require(!why.empty(), "a throttled session must be told why");
  }
  happen(now);
  for (Session& session : state_->sessions) {
    const auto why = reasons.find(session.id);
    if (why == reasons.end() && is_throttled(session)) Turns(*state_).restart_wait(session);
    session.throttled = why == reasons.end() ? std::nullopt : std::optional(why->second);
  }
  return pass();
}

// --- turns ---------------------------------------------------------------------------------------

Decision Scheduler::request(Seconds now, const std::string& id, TurnNumber turn) {
  Session& asking = known(id);
  happen(now);
  const bool waits = asking.request && turn <= asking.request->number;
  const bool runs = asking.turn && turn <= asking.turn->number;
  if (waits || runs) return pass();  // a repeated or stale request
  Turns turns(*state_);
  Session::Successor due;
  if (asking.turn) due = turns.end(asking);
  if (asking.request)
    asking.request->number = asking.last_turn = turn;  // keeps its place in the queue
  else
    turns.begin_wait(asking, turn);
  return pass(due);
}

Decision Scheduler::finish(Seconds now, const std::string& id, TurnNumber turn) {
  Session& finished = known(id);
  happen(now);
  Turns turns(*state_);
  Session::Successor due;
  if (finished.turn && finished.turn->number == turn) due = turns.end(finished);
  if (finished.request && finished.request->number == turn) {
    turns.end_wait(finished);
    finished.position.reset();
  }
  return pass(due);
}

Decision Scheduler::preempt(Seconds now, const std::string& id) {
  Session& holder = known(id);
  if (!holder.turn) throw std::invalid_argument(id + " has no turn to end");
  happen(now);
  holder.turn->preempted = true;
  return pass();
}

Decision Scheduler::report(Seconds now, const std::string& id, std::int64_t iterations,
                           const Demand& demand, std::optional<std::int64_t> remaining_iterations) {
  Session& reporting = known(id);
  check_iterations(iterations);
  check_iterations(remaining_iterations.value_or(0));
  const Demand said = squeezable(state_->rules, demand, reporting.alone);
  check_demand(said, state_->lanes);
  happen(now);
  const Seconds seconds = Turns(*state_).count(reporting, iterations);
  reporting.remaining_iterations = remaining_iterations;
  follow_iterations(reporting, iterations, seconds, said);
  state_->sessions.set_demand(reporting, said);
  Placement(*state_).fit_to_demand(reporting);
  return pass();
}

// The first iterations, in which its memory is measured, are not typical. Those during which it was
// paged in are not typical for its pace either.
void Scheduler::follow_iterations(Session& session, std::int64_t iterations, Seconds seconds,
                                  const Demand& demand) {
  const bool is_measured = session.demand.measured && demand.measured;
  if (is_measured)
    state_->tuner.report(state_->now, session.number, iterations, seconds);
  else
    state_->tuner.forget(session.number);
  if (iterations == 0) return;
  if (is_measured && !session.memory.was_just_paged_in()) session.pace.add(iterations, seconds);
  state_->residency.iterate(session.memory);
  if (session.turn) session.turn->boundary = state_->now;
}

// --- memory --------------------------------------------------------------------------------------

Decision Scheduler::set_busy(Seconds now, const std::string& id, bool busy) {
  Session& used = known(id);
  happen(now);
  Paging paging(*state_);
  busy ? paging.begin_cell(used) : paging.end_cell(used);
  return pass();
}

Decision Scheduler::paged_out(Seconds now, const std::string& id, Bytes bytes) {
  Session& gone = known(id);
  check_paged_out(bytes);
  happen(now);
  Paging(*state_).page_out(gone, bytes);
  return pass();
}

Decision Scheduler::page_out_failed(Seconds now, const std::string& id, const std::string& why) {
  Session& stays = known(id);
  happen(now);
  if (stays.memory.residence() == Residence::leaving) state_->residency.refuse(stays.memory, why);
  return pass();
}

Decision Scheduler::evict(Seconds now, const std::string& id) {
  Session& asked = known(id);
  if (!may_be_paged_out(asked) || !state_->has_place(asked))
    throw std::invalid_argument(
        id + " cannot be paged out: only a session that keeps memory and runs no cell can be");
  happen(now);
  state_->residency.ask_to_leave(asked.memory);
  Decision decision = pass();
  decision.page_outs.push_back(id);
  return decision;
}

Decision Scheduler::set_admissible(Seconds now, const std::string& id, bool admissible) {
  Session& changed = known(id);
  require(admissible || !changed.turn, "a session that has a turn stays admitted");
  happen(now);
  changed.admissible = admissible;
  if (!admissible && state_->has_place(changed)) state_->lanes.remove(changed.number);
  return pass();
}

bool Scheduler::may_keep(const std::string& id, Bytes persistent) const {
  const Session& grows = state_->sessions.of(id);
  const LaneAllocator& lanes = state_->lanes;
  const Bytes keeps = std::max(grows.demand.persistent, persistent);
  if (state_->has_place(grows)) return lanes.fits_with(grows.number, keeps);
  return lanes.fits({keeps, room_for(grows, lanes.left() - keeps).ephemeral});
}

// --- the device ----------------------------------------------------------------------------------

Decision Scheduler::set_shares(Seconds now, const std::map<std::string, double>& groups,
                               const std::map<std::string, double>& users) {
  for (const auto& weights : {groups, users})
    for (const auto& [name, weight] : weights) check_weight(weight);
  happen(now);
  state_->shares.set_weights(groups, users);
  return pass();
}

Decision Scheduler::set_policy(Seconds now, std::string_view name) {
  const Policy& policy = policy_named(name);
  happen(now);
  if (state_->policy != &policy) state_->tuner = ConcurrencyTuner(state_->rules.quantum);
  state_->policy = &policy;
  return pass();
}

Decision Scheduler::set_running_lanes(Seconds now, int lanes) {
  check_running_lanes(lanes);
  happen(now);
  if (state_->rules.running_lanes != lanes) state_->tuner = ConcurrencyTuner(state_->rules.quantum);
  state_->rules.running_lanes = lanes;
  return pass();
}

Decision Scheduler::set_unmanaged(Seconds now, Bytes bytes) {
  require(bytes >= 0, "unmanaged memory in bytes must not be negative");
  bytes == state_->lanes.unmanaged() ? advance(now) : happen(now);
  state_->lanes.set_unmanaged(bytes);
  return pass();
}

Decision Scheduler::set_recovering(Seconds now, bool recovering) {
  happen(now);
  state_->recovering = recovering;
  return pass();
}

// --- time and the pass ---------------------------------------------------------------------------

Decision Scheduler::assign(Seconds now) {
  advance(now);
  return pass();
}

// Notes that time has passed, and nothing else.
void Scheduler::advance(Seconds now) {
  state_->advance(now);
  forecast_.age();
}

// An event has happened that may change the order of the waiting sessions.
void Scheduler::happen(Seconds now) {
  advance(now);
  ordered_ = state_->now;
}

Decision Scheduler::pass(Session::Successor due) {
  Decision decision = pass_.run(due);
  if (!decision.grants.empty() || !decision.yields.empty()) ordered_ = state_->now;
  return decision;
}

// --- what can be seen ----------------------------------------------------------------------------

DeviceSnapshot Scheduler::snapshot(Seconds now) const {
  return Snapshot(*state_, state_->latest(now), ordered_, forecast_).take();
}

std::vector<Holder> Scheduler::holders(Seconds now) const {
  return gpushare::holders(*state_, state_->latest(now));
}

std::string Scheduler::is_valid() const {
  Forecast forecast;
  const Snapshot snapshot(*state_, state_->now, ordered_, forecast);
  for (const std::string& broken : {state_->is_valid(), pass_.is_valid(), snapshot.is_valid()})
    if (!broken.empty()) return broken;
  return "";
}

}  // namespace gpushare
