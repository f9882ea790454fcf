#include "core/device/turns.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/device/fitting.h"

namespace gpushare {

// --- open and closed -----------------------------------------------------------------------------

Session& Turns::open(const std::string& id, const SessionSpec& spec) {
  Session& session = owned(id, spec);
  vacate(session);
  recall_past(session, spec);
  session.domain = spec.domain;
  state_.shares.weigh(session.shares, spec.weight);
  session.priority = spec.priority;
  session.paused = spec.paused;
  session.alone = spec.alone;
  session.can_share = spec.shares;
  session.admissible = true;
  state_.sessions.set_demand(session, spec.demand);
  session.bears = spec.bears;
  session.remaining_iterations = spec.remaining_iterations;
  session.last_turn = spec.turn;
  session.busy = spec.busy;
  session.yields_after = kNever;
  state_.residency.open(session.memory, spec.paged_out_bytes);
  if (spec.holding) adopt(session, spec.turn, brought_room(session, spec.squeezed_bytes));
  if (spec.waiting) begin_wait(session, spec.turn);
  if (spec.busy) paging_.call_back(session);
  return session;
}

// The open session of this id, group and user, or a new one.
Session& Turns::owned(const std::string& id, const SessionSpec& spec) {
  if (!state_.sessions.contains(id)) return add(id, spec);
  Session& known = state_.sessions.of(id);
  if (known.user == spec.user && known.group == spec.group) return known;
  close(known);
  return add(id, spec);
}

Session& Turns::add(const std::string& id, const SessionSpec& spec) {
  Session& session = state_.sessions.add(id);
  session.group = spec.group;
  session.user = spec.user;
  session.shares = state_.shares.add(spec.group, spec.user, id);
  state_.shares.attain(session.shares, spec.device_seconds);
  return session;
}

void Turns::recall_past(Session& session, const SessionSpec& spec) {
  session.device_seconds = std::max(session.device_seconds, spec.device_seconds);
  session.waited_seconds = std::max(session.waited_seconds, spec.waited_seconds);
  session.iterations = std::max(session.iterations, spec.iterations);
  session.reported_seconds = session.device_seconds;
}

Turns::Successor Turns::vacate(Session& session) {
  Successor successor;
  if (session.memory.residence() == Residence::returning) paging_.give_up_return(session);
  if (session.turn) successor = end(session);
  if (session.request) end_wait(session);
  if (state_.has_place(session)) state_.lanes.remove(session.number);
  session.position.reset();
  state_.residency.vacate(session.memory);
  return successor;
}

Turns::Successor Turns::close(Session& session) {
  const Successor successor = vacate(session);
  if (session.share().active) state_.shares.leave(session.shares);
  state_.shares.remove(session.group, session.user, session.id);
  state_.tuner.forget(session.number);
  state_.sessions.remove(session);
  return successor;
}

// --- waits ---------------------------------------------------------------------------------------

void Turns::begin_wait(Session& session, TurnNumber turn) {
  session.request = Session::Request{state_.new_wait(), turn};
  if (!session.position) session.position = *session.request;
  session.last_turn = turn;
  paging_.call_back(session);
}

// If it waits to be paged in, that wait is counted instead, since it began no later.
void Turns::end_wait(Session& session) {
  const bool returns = session.memory.residence() == Residence::returning;
  if (!returns) session.waited_seconds += state_.now - session.request->since;
  session.request.reset();
  if (session.busy) state_.residency.let_stay(session.memory);
  if (returns && !session.busy) paging_.give_up_return(session);
}

void Turns::restart_wait(Session& session) {
  const Wait* before = wait_of(session);
  if (!before) return;
  session.waited_seconds += state_.now - before->since;
  const Wait wait = state_.new_wait();
  if (session.request) static_cast<Wait&>(*session.request) = wait;
  session.position.reset();
  state_.residency.restart_wait(session.memory, wait);
}

// --- turns ---------------------------------------------------------------------------------------

Grant Turns::grant(Session& session) {
  const SessionNumber number = session.number;
  const TurnNumber turn = session.request->number;
  LaneAllocator& lanes = state_.lanes;
  if (lanes.table().has_held_lane(number) && lanes.can_move(number, state_.limit()))
    lanes.move(number, state_.limit());
  end_wait(session);
  begin(session, turn);
  lanes.table().has_held_lane(number) ? lanes.hold_beside(number) : lanes.hold(number);
  return made(session, turn);
}

Grant Turns::made(const Session& session, TurnNumber turn) const {
  const LaneTable& table = state_.lanes.table();
  return {session.id, turn, table.lane_of(session.number), table.end_of(session.number)};
}

Grant Turns::take_over(Session& session) {
  const TurnNumber turn = session.request->number;
  end_wait(session);
  adopt(session, turn, room_for(session, state_.lanes.left() - session.demand.persistent));
  return made(session, turn);
}

// The session runs already, whatever the rules say. If there is no lane for it, it is asked to
// yield and no other session starts until then.
void Turns::adopt(Session& session, TurnNumber turn, const Demand& room) {
  take_lane(session, room);
  begin(session, turn);
}

// Takes the lane in which it has its place, or its predecessor's end of that lane. If the lane is
// held, takes another one for the same demand; without a place, one with `room`.
void Turns::take_lane(const Session& session, const Demand& room) {
  LaneAllocator& lanes = state_.lanes;
  const SessionNumber number = session.number;
  if (!lanes.table().contains(number)) {
    lanes.adopt(number, room, state_.limit());
  } else if (!lanes.table().has_held_lane(number) || state_.may_take_end(session)) {
    lanes.hold(number);
  } else {
    const Demand same = lanes.table().demand_of(number);
    lanes.remove(number);
    lanes.adopt(number, same, state_.limit());
  }
}

// A running session has its memory, or gets it on access.
void Turns::begin(Session& session, TurnNumber turn) {
  const Seconds now = state_.now;
  if (is_out(session)) paging_.bring_in(session);
  session.turn = {
      turn, now, std::nullopt, {}, std::max(now, state_.is_in_by(session).value_or(now))};
  state_.shares.begin_turn(session.shares);
}

Yield Turns::ask_to_yield(Session& session, const Session* successor, LaneId lane) {
  session.turn->asked = state_.now;
  Yield yield{session.id, session.turn->number, std::nullopt, state_.policy->ends == Ends::never};
  if (!successor) return yield;
  session.turn->successor = successor_of(*successor);
  const int end = state_.lanes.table().end_of(session.number);
  yield.successor = Grant{successor->id, successor->request->number, lane, end};
  return yield;
}

Turns::Successor Turns::end(Session& session) {
  const Seconds used = running_seconds(session, state_.now);
  session.device_seconds += used;
  state_.shares.attain(session.shares, used);
  state_.shares.end_turn(session.shares);
  const Successor successor = session.turn->successor;
  if (!session.turn->asked)
    session.yields_after = used;
  else if (used >= state_.quantum())
    session.yields_after = kNever;
  if (!session.turn->asked || session.turn->preempted) session.position.reset();
  session.turn.reset();
  state_.residency.use(session.memory);
  if (!state_.has_place(session)) return successor;
  if (successor.number == kNoSession)
    state_.lanes.release(session.number);
  else
    state_.lanes.release_to_successor(session.number);
  if (state_.has_outgrown(session)) state_.lanes.remove(session.number);
  return successor;
}

Seconds Turns::count(Session& session, std::int64_t iterations) {
  constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  if (session.remaining_iterations)
    *session.remaining_iterations -= std::min(iterations, *session.remaining_iterations);
  session.iterations += std::min(iterations, kAll - session.iterations);
  const Seconds used = session.device_seconds + running_seconds(session, state_.now);
  return used - std::exchange(session.reported_seconds, used);
}

}  // namespace gpushare
