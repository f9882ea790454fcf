#include "core/pass/run_queue.h"

#include <algorithm>

#include "core/pass/admission.h"
#include "core/pass/preemption.h"

namespace gpushare {

Candidate candidate(const DeviceState& state, const Session& session, Seconds now) {
  const Share &group = session.shares[0]->share, &user = session.shares[1]->share;
  const Seconds running = running_seconds(session, now);
  const Wait* wait = wait_of(session);
  const Wait* queued = session.position ? &*session.position : wait;
  return {
      .priority = session.priority,
      .weight = session.share().weight,
      .group = &group,
      .group_weight = group.weight,
      .group_turns = group.running,
      .group_clock = state.shares.clock(group, now),
      .user = &user,
      .user_weight = user.weight,
      .user_turns = user.running,
      .user_clock = state.shares.clock(user, now),
      .user_served = user.served,
      .clock = state.shares.clock(session.share(), now),
      .attained = state.shares.attained(session.shares, now, running),
      .waiting = wait ? now - wait->since : 0,
      .queued = queued ? now - queued->since : 0,
      .running = running,
      .yields_after = session.yields_after,
      .remaining = state.policy->by_remaining ? remaining(session, running) : std::nullopt,
      .boost = std::max(0.0, session.boost - running),
      .begun = session.turn || session.device_seconds > session.before_cell,
      .order = wait ? wait->order : 0,
      .queue_order = queued ? queued->order : 0,
  };
}

RunQueueEntry::RunQueueEntry(const DeviceState& state, const Session& of, Seconds now)
    : view(candidate(state, of, now)), session(&of), lane(state.lanes.table().lane_of(of.number)) {
  if (lane != kNoLane)
    everywhere = of.alone || !of.demand.measured;
  else
    everywhere = of.turn.has_value();  // its memory is not counted
}

RunQueue::RunQueue(const DeviceState& state, Seconds now, Seconds ordered) {
  waiting.reserve(state.sessions.size());
  for (const Session& session : state.sessions) {
    if (session.turn)
      running.emplace_back(state, session, ordered);
    else if (waits(session))
      waiting.emplace_back(state, session, ordered);
  }
  Preemption(state, now).mark(*this);
  Admission(state, now).mark(waiting);
}

}  // namespace gpushare
