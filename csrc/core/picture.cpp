// The scheduler as people see it: places, expected waits, and one sentence for each session.
#include <algorithm>

#include "core/scheduler.h"
#include "core/units.h"

namespace gpushare {

namespace {

constexpr const char* kRecovering =
    "waits until all have come back who had turns before the broker was started anew";

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
  if (packs()) picture.concurrency_tuner = tuner_.sentence();
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
    if (session.turn)
      holders.push_back({session.id, title(session), state(session, now) == State::overdue});
  return holders;
}

SessionState Scheduler::session_state(const Contender& of, const Contest& contest,
                                      Seconds now) const {
  const Session& session = *of.session;
  SessionState state;
  state.id = session.id;
  state.name = session.name;
  state.user = session.user;
  state.state = this->state(session, now);
  state.demand = session.demand;
  if (of.lane != kNoLane) state.lane = of.lane;
  state.turn = session.last_turn;
  if (wait_of(session)) state.waiting = of.view.waiting;
  state.reason = reason(of, contest, now);
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

// Those who wait, in the order in which they will be served: who was promised a turn has it next,
// and who has no place waits for memory first.
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

// --- sentences ---------------------------------------------------------------------------------

const std::string& Scheduler::title(const Session& session) {
  return session.name.empty() ? session.id : session.name;
}

// Sentences hold no times that grow: they stay true until the next event, and whoever shows them
// has the seconds beside them.
std::string Scheduler::reason(const Contender& of, const Contest& contest, Seconds now) const {
  const Session& session = *of.session;
  if (session.memory.residence() == Residence::leaving)
    return session.memory.makes_room_for().empty()
               ? "is asked to page out"
               : "is asked to make room for " + session.memory.makes_room_for();
  switch (state(session, now)) {
    case State::overdue:
      return "overdue: was asked to yield and has not";
    case State::running:
      return is_held(session) ? session.held_back : why_it_runs(session, contest);
    case State::held:
      return session.held_back;
    case State::paused:
      return is_held(session) ? session.held_back : "paused";
    case State::idle:
      return is_held(session) ? session.held_back : "nothing to run";
    case State::paged_out:
      if (session.memory.residence() == Residence::out) return why_it_is_out(session);
      break;
    case State::waiting:
      break;
  }
  if (is_held(session)) return session.held_back;  // it is paused too, and on disk
  if (recovering_) return kRecovering;
  return of.lane == kNoLane ? why_no_place(of, contest, now) : why_it_waits(of, contest, now);
}

// Those for whom it was asked may have stopped waiting since.
std::string Scheduler::why_it_runs(const Session& session, const Contest& contest) const {
  if (session.turn->asked)
    return contest.waiting.empty() ? "was asked to yield, and ends its turn with its iteration"
                                   : "ends its iteration, then lets others run";
  if (session.alone) return "runs, and has the whole device";
  if (!session.demand.measured) return "runs alone until its memory is measured";
  return "runs";
}

std::string Scheduler::why_it_is_out(const Session& session) const {
  const std::string text =
      "paged out: " + bytes_in_words(session.memory.paged_out_bytes()) + " are on disk";
  if (session.memory.makes_room_for().empty()) return text;
  return text + " to make room for " + session.memory.makes_room_for();
}

std::string Scheduler::why_it_waits(const Contender& of, const Contest& contest,
                                    Seconds now) const {
  std::string text = "waits";
  if (of.everywhere) text = "runs alone until its memory is measured; waits";
  if (of.session->alone) text = "needs the whole device; waits";
  if (const Contender* other = who_is_in_the_way(of, contest)) {
    const Session& session = *other->session;
    text += " for " + title(session);
    if (state(session, now) == State::overdue)
      text += ", which is overdue";
    else if (session.alone)
      text += ", which has the whole device";
    else if (!session.demand.measured)
      text += ", which runs alone until its memory is measured";
  }
  if (policy_->by_remaining && !of.view.remaining)
    text += "; remaining work unknown: ordered by service so far";
  if (packs() && !tuner_.sentence().empty()) text += "; " + tuner_.sentence();
  return text;
}

// Who holds its lane or excludes all others; else any holder, as no more lanes may run; else the
// one for whom the device drains.
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

std::string Scheduler::why_no_place(const Contender& of, const Contest& contest,
                                    Seconds now) const {
  const Demand room = room_for(*of.session);
  const std::string text =
      is_out(*of.session) ? "waits for room to come back: " : "waits for memory: ";
  if (!lanes_.fits(room))
    return text + "needs " + bytes_in_words(lanes_.needs(room)) + ", " +
           bytes_in_words(lanes_.free()) + " are free" + who_else_has_memory() +
           (reserves(of.number, *of.session, now) ? ", and is next" : "") +
           who_could_not_leave(*of.session);
  if (!may_come_in(*of.session, now)) return text + "with it, fewer could run at once";
  for (const Contender& running : contest.running)
    if (running.lane == kNoLane) return text + title(*running.session) + " runs and has no lane";
  const auto first =
      std::ranges::min_element(contest.waiting, [&](const Contender& a, const Contender& b) {
        if ((a.lane == kNoLane) != (b.lane == kNoLane)) return a.lane == kNoLane;
        return is_admitted_before(a, b, now);
      });
  return text + title(*first->session) + " has waited longer and comes first";
}

// The one with most memory of those that were asked to make room, and could not. Why is for its own
// user alone: it may name that user's directories.
std::string Scheduler::who_could_not_leave(const Session& of) const {
  const Session* largest = nullptr;
  for (const auto& [number, session] : sessions_)
    if (session.memory.refused() && &session != &of &&
        (!largest || session.demand.persistent > largest->demand.persistent))
      largest = &session;
  if (!largest) return "";
  const std::string text = "; " + title(*largest) + " could not be paged out";
  const bool may_know = largest->user == of.user && !largest->memory.refusal().empty();
  return may_know ? text + ": " + largest->memory.refusal() : text;
}

std::string Scheduler::who_else_has_memory() const {
  if (lanes_.foreign() == 0) return "";
  return ", " + bytes_in_words(lanes_.foreign()) + " are used by programs that do not share";
}

}  // namespace gpushare
