// The scheduler as people see it: places, expected waits, and the reasons of each session.
#include <algorithm>

#include "core/scheduler.h"

namespace gpushare {

namespace {

// The reasons of a session that is asked to page out, or is out.
struct Leaving {
  Code by_itself, for_other, for_programs;
};

constexpr Leaving kIsAsked{Code::asked_to_page_out, Code::makes_room,
                           Code::makes_room_for_programs};
constexpr Leaving kIsOut{Code::paged_out, Code::paged_out_for, Code::paged_out_for_programs};

Reason leaving(const Leaving& codes, const std::optional<std::string>& beneficiary) {
  if (!beneficiary) return {codes.by_itself};
  if (beneficiary->empty()) return {codes.for_programs};
  return {.code = codes.for_other, .other = *beneficiary};
}

}  // namespace

Picture Scheduler::picture(Seconds now) const {
  now = latest(now);
  const Contest contest = in_order(now);
  Picture picture;
  picture.policy = policy_->name;
  picture.capacity = lanes_.capacity();
  picture.persistent = lanes_.persistent();
  picture.free = lanes_.free();
  picture.foreign = lanes_.foreign();
  picture.running_lanes = rules_.running_lanes;
  if (packs()) picture.concurrency_tuner = tuner_.finding();
  picture.lanes = lane_states();
  std::unordered_map<SessionNumber, std::size_t> index;
  for (const auto& [number, session] : sessions_) {
    index[number] = picture.sessions.size();
    picture.sessions.push_back(session_state(Contender(*this, number, session, now), contest, now));
  }
  int place = 0;
  for (const Contender* waiting : queue(contest, now)) {
    SessionState& state = picture.sessions[index.at(waiting->number)];
    state.place = ++place;
    state.expected_wait = expected_wait(*waiting->session, now);
  }
  return picture;
}

// Time alone changes no place in the queue: clocks and boosts are those of the last event.
Scheduler::Contest Scheduler::in_order(Seconds now) const {
  Contest contest = look(now, ordered_);
  std::optional<FairShares::ClocksBelow> below;
  for (Contender& waiting : contest.waiting)
    waiting.view.boost = boost_of(*waiting.session, below, ordered_);
  return contest;
}

std::vector<LaneState> Scheduler::lane_states() const {
  std::vector<LaneState> states;
  for (const auto& [id, lane] : lanes_.lanes()) {
    LaneState state{id, lane.bytes(), std::nullopt, {}};
    if (lane.holder != kNobody) state.holder = sessions_.at(lane.holder).id;
    std::vector<SessionNumber> members;
    for (const auto& [bytes, session] : lane.members) members.push_back(session);
    std::ranges::sort(members);
    for (const SessionNumber member : members) state.members.push_back(sessions_.at(member).id);
    states.push_back(std::move(state));
  }
  return states;
}

State Scheduler::state(const Session& session, Seconds now) const {
  if (session.turn) {
    const auto asked = session.turn->asked;
    return asked && now >= *asked + rules_.lease ? State::overdue : State::running;
  }
  const bool wants_device = session.request || session.memory.residence() == Residence::returning;
  if (is_held(session) && wants_device && !session.paused) return State::held;
  if (is_out(session)) return State::paged_out;
  if (session.paused) return State::paused;
  return session.request ? State::waiting : State::idle;
}

std::vector<Holder> Scheduler::holders(Seconds now) const {
  now = latest(now);
  std::vector<Holder> holders;
  for (const auto& [number, session] : sessions_)
    if (session.turn) holders.push_back({session.id, state(session, now) == State::overdue});
  return holders;
}

SessionState Scheduler::session_state(const Contender& of, const Contest& contest,
                                      Seconds now) const {
  const Session& session = *of.session;
  SessionState state;
  state.id = session.id;
  state.user = session.user;
  state.state = this->state(session, now);
  state.demand = session.demand;
  if (of.lane != kNoLane) state.lane = of.lane;
  state.turn = session.last_turn;
  if (wait_of(session)) state.waiting = of.view.waiting;
  state.why = why(of, contest, now);
  state.device_seconds = session.device_seconds + of.view.running;
  state.waited_seconds = session.waited_seconds + of.view.waiting;
  state.iterations = session.iterations;
  state.remaining_iterations = session.remaining_iterations;
  state.weight = session.share().weight;
  state.priority = session.priority;
  state.paged_out_bytes = session.memory.paged_out_bytes();
  state.busy = session.busy;
  return state;
}

// The waiting sessions, in the order in which they will be served: a session that was promised a
// turn has it next, and one without a place waits for memory first.
std::vector<const Scheduler::Contender*> Scheduler::queue(const Contest& contest,
                                                          Seconds now) const {
  std::vector<const Contender*> queue;
  for (const Contender& waiting : contest.waiting) queue.push_back(&waiting);
  std::ranges::sort(queue, [&](const Contender* a, const Contender* b) {
    if ((a->lane != kNoLane) != (b->lane != kNoLane)) return a->lane != kNoLane;
    if (a->promised != b->promised) return a->promised;
    return a->lane == kNoLane ? is_admitted_before(*a, *b, now) : goes_before(*a, *b);
  });
  return queue;
}

// --- reasons -----------------------------------------------------------------------------------

// Reasons hold no times that grow: they stay true until the next event, and viewers have the
// seconds beside them.
Why Scheduler::why(const Contender& of, const Contest& contest, Seconds now) const {
  const Session& session = *of.session;
  const State is = state(session, now);
  if (session.memory.residence() == Residence::leaving)
    return {leaving(kIsAsked, session.memory.makes_room_for())};
  if (is == State::overdue) return {{Code::overdue}};
  if (is == State::paged_out && session.memory.residence() == Residence::out) {
    Reason out = leaving(kIsOut, session.memory.makes_room_for());
    out.bytes = session.memory.paged_out_bytes();
    return {out};
  }
  if (is_held(session)) return {{.code = Code::held_back, .text = session.held_back}};
  if (is == State::running) return why_it_runs(session, contest);
  if (is == State::paused) return {{Code::paused}};
  if (is == State::idle) return {{Code::idle}};
  if (recovering_) return {{Code::recovering}};
  return of.lane == kNoLane ? why_no_place(of, contest, now) : why_it_waits(of, contest, now);
}

// The sessions for which it was asked to yield may have stopped waiting since.
Why Scheduler::why_it_runs(const Session& session, const Contest& contest) const {
  if (session.turn->asked)
    return {{contest.waiting.empty() ? Code::asked_to_yield : Code::yields_to_others}};
  if (session.alone) return {{Code::runs_with_whole_device}};
  return {{session.demand.measured ? Code::runs : Code::runs_until_measured}};
}

Why Scheduler::why_it_waits(const Contender& of, const Contest& contest, Seconds now) const {
  Why why;
  if (of.session->alone)
    why.push_back({Code::needs_whole_device});
  else if (of.everywhere)
    why.push_back({Code::runs_until_measured});
  if (const Contender* other = who_is_in_the_way(of, contest)) {
    why.push_back({.code = Code::waits_for, .other = other->session->id});
    if (const auto code = particular(*other->session, now)) why.push_back({*code});
  } else {
    why.push_back({Code::waits});
  }
  if (policy_->by_remaining && !of.view.remaining) why.push_back({Code::remaining_unknown});
  if (!packs()) return why;
  if (const auto finding = tuner_.finding()) why.push_back(*finding);
  return why;
}

// What is particular about the session that is in the way.
std::optional<Code> Scheduler::particular(const Session& holder, Seconds now) const {
  if (state(holder, now) == State::overdue) return Code::other_is_overdue;
  if (holder.alone) return Code::other_has_whole_device;
  if (!holder.demand.measured) return Code::other_runs_until_measured;
  return std::nullopt;
}

// The holder of its lane or one that excludes all others; else any holder, as no more lanes may
// run; else the session for which the device drains.
const Scheduler::Contender* Scheduler::who_is_in_the_way(const Contender& of,
                                                         const Contest& contest) const {
  const auto excludes = [&](const Contender& holder) {
    return of.everywhere || holder.everywhere || holder.lane == of.lane;
  };
  const auto holder = std::ranges::find_if(contest.running, excludes);
  if (holder != contest.running.end()) return &*holder;
  for (const Contender& waiting : contest.waiting)
    if (waiting.lane != kNoLane && waiting.everywhere && goes_before(waiting, of)) return &waiting;
  return contest.running.empty() ? nullptr : &contest.running.front();
}

Why Scheduler::why_no_place(const Contender& of, const Contest& contest, Seconds now) const {
  const Reason waits{is_out(*of.session) ? Code::waits_to_come_back : Code::waits_for_memory};
  const Demand room = room_for(*of.session);
  if (!lanes_.fits(room)) {
    Why why = why_no_room(of, room, now);
    why.insert(why.begin(), waits);
    return why;
  }
  if (!may_come_in(*of.session, now)) return {waits, {Code::fewer_at_once}};
  for (const Contender& running : contest.running)
    if (running.lane == kNoLane)
      return {waits, {.code = Code::has_no_lane, .other = running.session->id}};
  const auto first =
      std::ranges::min_element(contest.waiting, [&](const Contender& a, const Contender& b) {
        if ((a.lane == kNoLane) != (b.lane == kNoLane)) return a.lane == kNoLane;
        return is_admitted_before(a, b, now);
      });
  return {waits, {.code = Code::comes_first, .other = first->session->id}};
}

Why Scheduler::why_no_room(const Contender& of, const Demand& room, Seconds now) const {
  Why why{{.code = Code::needs_bytes, .bytes = lanes_.needs(room), .free = lanes_.free()}};
  if (lanes_.foreign() > 0)
    why.push_back({.code = Code::used_by_programs, .bytes = lanes_.foreign()});
  if (reserves(of.number, *of.session, now)) why.push_back({Code::is_next});
  if (const auto stays = who_could_not_leave(*of.session)) why.push_back(*stays);
  return why;
}

// The session with most memory of those that were asked to page out and could not. The cause is
// shown to its own user alone: it may name that user's directories.
std::optional<Reason> Scheduler::who_could_not_leave(const Session& of) const {
  const Session* largest = nullptr;
  for (const auto& [number, session] : sessions_)
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

}  // namespace gpushare
