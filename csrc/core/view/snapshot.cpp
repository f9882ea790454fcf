#include "core/view/snapshot.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "core/device/fitting.h"
#include "core/pass/boost.h"

namespace gpushare {
namespace {

// Clocks and boosts are those of the last event.
RunQueue in_order(const DeviceState& state, Seconds now, Seconds ordered) {
  RunQueue run_queue(state, now, ordered);
  Boost boost(state, ordered);
  for (RunQueueEntry& waiting : run_queue.waiting) waiting.view.boost = boost.of(*waiting.session);
  return run_queue;
}

}  // namespace

Snapshot::Snapshot(const DeviceState& state, Seconds now, Seconds ordered, Forecast& forecast)
    : state_(state),
      now_(now),
      run_queue_(in_order(state, now, ordered)),
      admission_(state, now),
      explanation_(state, run_queue_, now),
      forecast_(forecast) {}

DeviceSnapshot Snapshot::take() const {
  DeviceSnapshot device;
  device.policy = state_.policy->name;
  device.capacity = state_.lanes.capacity();
  device.persistent = state_.lanes.table().persistent();
  device.free = state_.lanes.free();
  device.unmanaged = state_.lanes.unmanaged();
  device.running_lanes = state_.rules.running_lanes;
  if (state_.packs()) device.concurrency_tuner = state_.tuner.finding();
  device.lanes = lanes();
  device.sessions = sessions();
  return device;
}

std::vector<LaneState> Snapshot::lanes() const {
  std::vector<LaneState> states;
  for (const auto& [id, lane] : state_.lanes.table().lanes()) {
    LaneState state{id, lane.bytes(), std::nullopt, {}, std::nullopt, lane.width};
    for (const SessionNumber holder : lane.holders)
      if (holder != kNoSession)
        (state.holder ? state.beside : state.holder) = state_.sessions.at(holder).id;
    std::vector<SessionNumber> members;
    for (const auto& [bytes, session] : lane.members) members.push_back(session);
    std::ranges::sort(members);
    for (const SessionNumber member : members)
      state.members.push_back(state_.sessions.at(member).id);
    states.push_back(std::move(state));
  }
  return states;
}

std::vector<SessionState> Snapshot::sessions() const {
  std::vector<SessionState> states;
  std::unordered_map<const Session*, std::size_t> index;
  for (const Session& session : state_.sessions) {
    index[&session] = states.size();
    states.push_back(this->session(RunQueueEntry(state_, session, now_)));
  }
  int position = 0;
  std::optional<Forecast::Expected> last = Forecast::Expected{};
  for (const RunQueueEntry* waiting : queue()) {
    SessionState& state = states[index.at(waiting->session)];
    state.position = ++position;
    last = expected(*waiting->session, last);
    if (!last) continue;
    state.expected_wait = last->wait;
    state.is_bound = last->is_bound;
  }
  return states;
}

// Clocks run on, so a session may be served before one that is ahead of it in the queue now: it
// gets the wait of that one, as a bound. No wait behind an unknown one is known.
std::optional<Forecast::Expected> Snapshot::expected(
    const Session& session, const std::optional<Forecast::Expected>& before) const {
  if (!before) return std::nullopt;
  const auto own = forecast_.wait(state_, session, now_);
  return own && own->wait < before->wait ? Forecast::Expected{before->wait, true} : own;
}

SessionState Snapshot::session(const RunQueueEntry& of) const {
  const Session& session = *of.session;
  SessionState state;
  state.id = session.id;
  state.user = session.user;
  state.state = state_of(state_, session, now_);
  state.demand = session.demand;
  if (of.lane != kNoLane) state.lane = of.lane;
  state.turn = session.last_turn;
  if (wait_of(session)) state.waiting = of.view.waiting;
  state.why = explanation_.why(of);
  state.device_seconds = session.device_seconds + of.view.running;
  state.waited_seconds = session.waited_seconds + of.view.waiting;
  state.iterations = session.iterations;
  state.remaining_iterations = session.remaining_iterations;
  state.weight = session.share().weight;
  state.priority = session.priority;
  state.paged_out_bytes = session.memory.paged_out_bytes();
  state.busy = session.busy;
  if (session.turn && session.turn->asked) state.in_iteration = now_ - session.turn->boundary;
  if (const auto has = squeezed(state_, session)) {
    state.squeezed = has->bytes;
    state.slowdown = has->slowdown;
  }
  return state;
}

// The waiting sessions, in the order in which they will be served.
std::vector<const RunQueueEntry*> Snapshot::queue() const {
  std::vector<const RunQueueEntry*> queue;
  for (const RunQueueEntry& waiting : run_queue_.waiting) queue.push_back(&waiting);
  std::ranges::sort(queue, [&](const auto* a, const auto* b) { return is_served_before(a, b); });
  return queue;
}

// A session that was promised a turn has it next, and one without a place waits for memory first.
bool Snapshot::is_served_before(const RunQueueEntry* a, const RunQueueEntry* b) const {
  if ((a->lane != kNoLane) != (b->lane != kNoLane)) return a->lane != kNoLane;
  if (a->promised != b->promised) return a->promised;
  return a->lane == kNoLane ? admission_.goes_before(*a, *b)
                            : before(*state_.policy, a->view, b->view);
}

std::string Snapshot::is_valid() const {
  const std::vector<const RunQueueEntry*> queue = this->queue();
  for (std::size_t i = 1; i < queue.size(); ++i)
    if (is_served_before(queue[i], queue[i - 1])) return "the queue is out of order";
  for (const Session& session : state_.sessions)
    if (const std::string broken = why_is_valid(RunQueueEntry(state_, session, now_));
        !broken.empty())
      return broken;
  return "";
}

std::string Snapshot::why_is_valid(const RunQueueEntry& of) const {
  const Why why = explanation_.why(of);
  if (why.empty()) return "a session has no reason for its state";
  for (const Reason& reason : why) {
    const bool waits_for = reason.code == Code::waits_for || reason.code == Code::comes_first;
    if (waits_for && reason.other == of.session->id) return "a session waits for itself";
    if (waits_for && !state_.sessions.contains(reason.other))
      return "a session waits for one that is not open";
  }
  return "";
}

std::vector<Holder> holders(const DeviceState& state, Seconds now) {
  std::vector<Holder> holders;
  for (const Session& session : state.sessions)
    if (session.turn)
      holders.push_back({session.id, state_of(state, session, now) == State::overdue});
  return holders;
}

}  // namespace gpushare
