#include "core/view/explanation.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/device/fitting.h"

namespace gpushare {
namespace {

// The reasons of a session that is asked to page out, or is out.
struct Leaving {
  Code by_itself, for_other, for_programs;
};

constexpr Leaving kIsAsked{Code::asked_to_page_out, Code::asked_to_page_out_for,
                           Code::asked_to_page_out_for_programs};
constexpr Leaving kIsOut{Code::paged_out, Code::paged_out_for, Code::paged_out_for_programs};

Reason leaving(const Leaving& codes, const std::optional<std::string>& beneficiary) {
  if (!beneficiary) return {codes.by_itself};
  if (beneficiary->empty()) return {codes.for_programs};
  return {.code = codes.for_other, .other = *beneficiary};
}

Reason paged_out(const Session& session) {
  Reason out = leaving(kIsOut, session.memory.evicted_for());
  out.bytes = session.memory.paged_out_bytes();
  return out;
}

}  // namespace

State state_of(const DeviceState& state, const Session& session, Seconds now) {
  if (session.turn) {
    const auto asked = session.turn->asked;
    return asked && now >= *asked + state.rules.lease ? State::overdue : State::running;
  }
  const bool wants_device = session.request || session.memory.residence() == Residence::returning;
  if (is_throttled(session) && wants_device && !session.paused) return State::throttled;
  if (is_out(session)) return State::paged_out;
  if (session.paused) return State::paused;
  return session.request ? State::waiting : State::idle;
}

Why Explanation::why(const RunQueueEntry& of) const {
  Why why = of_state(of);
  std::ranges::copy(of_squeezed(*of.session), std::back_inserter(why));
  return why;
}

Why Explanation::of_state(const RunQueueEntry& of) const {
  const Session& session = *of.session;
  const State is = state_of(state_, session, now_);
  const Residence residence = session.memory.residence();
  if (residence == Residence::leaving) return {leaving(kIsAsked, session.memory.evicted_for())};
  if (is == State::overdue) return {{Code::overdue}};
  if (is == State::paged_out && residence == Residence::out) return {paged_out(session)};
  if (is_throttled(session)) return *session.throttled;
  if (is == State::running) return of_running(session);
  if (is == State::paused) return {{Code::paused}};
  if (is == State::idle) return {{of_idle(session)}};
  if (state_.recovering) return {{Code::recovering}};
  return of.lane == kNoLane ? without_place(of) : of_waiting(of);
}

Code Explanation::of_idle(const Session& session) const {
  if (const auto is_in = state_.is_in_by(session); is_in && now_ < *is_in) return Code::comes_back;
  return session.busy ? Code::needs_no_turn : Code::idle;
}

// The sessions for which it was asked to yield may have stopped waiting since.
Why Explanation::of_running(const Session& session) const {
  if (session.turn->asked)
    return {{run_queue_.waiting.empty() ? Code::asked_to_yield : Code::yields_to_others}};
  if (session.alone) return {{Code::runs_with_whole_device}};
  if (const Session* other = state_.beside(session))
    return {{.code = Code::runs_beside, .other = other->id}};
  return {{session.demand.measured ? Code::runs : Code::runs_until_measured}};
}

// --- it waits for a turn -------------------------------------------------------------------------

Why Explanation::of_waiting(const RunQueueEntry& of) const {
  Why why;
  if (of.session->alone)
    why.push_back({Code::needs_whole_device});
  else if (of.everywhere)
    why.push_back({Code::runs_until_measured});
  if (const RunQueueEntry* other = in_the_way(of)) {
    why.push_back({.code = Code::waits_for, .other = other->session->id});
    if (const auto code = particular(*other->session)) why.push_back({*code});
  } else {
    why.push_back({Code::waits});
  }
  if (state_.policy->by_remaining && !of.view.remaining) why.push_back({Code::remaining_unknown});
  if (!state_.packs()) return why;
  if (const auto finding = state_.tuner.finding()) why.push_back(*finding);
  return why;
}

// The particulars of the session that is in the way.
std::optional<Code> Explanation::particular(const Session& holder) const {
  if (state_of(state_, holder, now_) == State::overdue) return Code::other_is_overdue;
  if (holder.alone) return Code::other_has_whole_device;
  if (!holder.demand.measured) return Code::other_runs_until_measured;
  return std::nullopt;
}

// The holder of its lane or one that excludes all others; else any holder, as no more lanes may
// run; else the session for which the device drains.
const RunQueueEntry* Explanation::in_the_way(const RunQueueEntry& of) const {
  const auto excludes = [&](const RunQueueEntry& holder) {
    return of.everywhere || holder.everywhere || holder.lane == of.lane;
  };
  const auto holder = std::ranges::find_if(run_queue_.running, excludes);
  if (holder != run_queue_.running.end()) return &*holder;
  for (const RunQueueEntry& waiting : run_queue_.waiting)
    if (waiting.lane != kNoLane && waiting.everywhere && goes_before(waiting, of)) return &waiting;
  return run_queue_.running.empty() ? nullptr : &run_queue_.running.front();
}

// --- it waits for memory -------------------------------------------------------------------------

Why Explanation::without_place(const RunQueueEntry& of) const {
  const Reason waits{is_out(*of.session) ? Code::waits_to_come_back : Code::waits_for_memory};
  const Demand room = room_for(*of.session, state_.lanes.left() - of.session->demand.persistent);
  if (!Fitting(state_).has_room(*of.session)) {
    Why why = without_room(*of.session, room);
    why.insert(why.begin(), waits);
    return why;
  }
  if (!admission_.may_be_admitted(*of.session)) return {waits, {Code::fewer_at_once}};
  if (const RunQueueEntry* running = without_lane())
    return {waits, {.code = Code::has_no_lane, .other = running->session->id}};
  return {waits, {.code = Code::comes_first, .other = next_for_memory().session->id}};
}

// A session that runs without a place: its memory is not counted.
const RunQueueEntry* Explanation::without_lane() const {
  const auto running = std::ranges::find(run_queue_.running, kNoLane, &RunQueueEntry::lane);
  return running == run_queue_.running.end() ? nullptr : &*running;
}

const RunQueueEntry& Explanation::next_for_memory() const {
  return *std::ranges::min_element(run_queue_.waiting, [&](const auto& a, const auto& b) {
    if ((a.lane == kNoLane) != (b.lane == kNoLane)) return a.lane == kNoLane;
    return admission_.goes_before(a, b);
  });
}

Why Explanation::without_room(const Session& of, const Demand& room) const {
  const LaneAllocator& lanes = state_.lanes;
  Why why{{.code = Code::needs_bytes, .bytes = lanes.needs(room), .free = lanes.free()}};
  if (lanes.unmanaged() > 0)
    why.push_back({.code = Code::used_by_programs, .bytes = lanes.unmanaged()});
  if (admission_.reserves(of)) why.push_back({Code::is_next});
  if (const auto stays = not_paged_out(of)) why.push_back(*stays);
  return why;
}

// The session with most memory of those that were asked to page out and could not. The cause is
// shown to its own user alone: it may name that user's directories.
std::optional<Reason> Explanation::not_paged_out(const Session& of) const {
  const Session* largest = nullptr;
  for (const Session& session : state_.sessions)
    if (session.memory.refused() && &session != &of &&
        (!largest || session.demand.persistent > largest->demand.persistent))
      largest = &session;
  if (!largest) return std::nullopt;
  Reason stays{.code = Code::not_paged_out, .other = largest->id};
  if (largest->user != of.user) return stays;
  const std::optional<std::string>& refusal = largest->memory.refusal();
  if (!refusal)
    stays.code = Code::not_paged_out_unanswered;
  else if (!refusal->empty())
    stays.code = Code::not_paged_out_because;
  stays.text = refusal.value_or("");
  return stays;
}

// --- it is squeezed ------------------------------------------------------------------------------

Why Explanation::of_squeezed(const Session& session) const {
  const std::optional<SqueezeOption> has = squeezed(state_, session);
  if (!has) return {};
  Why why{{.code = Code::squeezed,
           .bytes = has->bytes,
           .percent = std::lround(100 * (has->slowdown - 1)),
           .whole = session.demand.ephemeral}};
  if (const Session* other = squeezed_for(session, has->bytes))
    why.push_back({.code = Code::squeezed_for, .other = other->id});
  return why;
}

// The latest of the sessions without which it would have more; nullptr if there is none.
const Session* Explanation::squeezed_for(const Session& session, Bytes has) const {
  const Session* last = nullptr;
  for (const Session& other : state_.sessions) {
    if (&other == &session || !state_.has_place(other)) continue;
    const Bytes without =
        state_.lanes.left() + state_.lanes.table().demand_of(other.number).persistent;
    if (choice(session.demand, without).bytes > has) last = &other;
  }
  return last;
}

}  // namespace gpushare
