// Events: what each changes of the sessions. All of them end in the pass, assign.cpp.
#include "core/scheduler.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "core/units.h"

namespace gpushare {
namespace {

void require(bool condition, const char* sentence) {
  if (!condition) throw std::invalid_argument(sentence);
}

void check_weight(double weight) {
  require(std::isfinite(weight) && weight > 0, "a weight must be a finite number above 0");
}

void check_running_lanes(int lanes) {
  require(lanes >= 0, "running lanes must be 0 (as the policy says) or the number that may run");
}

void check_iterations(std::int64_t iterations) {
  require(iterations >= 0, "a number of iterations must not be negative");
}

void check_rules(const Rules& rules) {
  require(rules.quantum > 0, "the quantum must be above 0 seconds");
  require(rules.half_life > 0, "the half-life must be above 0 seconds");
  require(rules.lease > 0, "the lease must be above 0 seconds");
  require(std::isfinite(rules.report) && rules.report >= 0,
          "the time between two reports must be finite and not below 0 seconds");
  require(rules.aging >= 0, "the aging threshold must not be below 0 seconds");
  require(std::isfinite(rules.boost) && rules.boost >= 0,
          "the boost must be finite and not below 0 seconds");
  check_running_lanes(rules.running_lanes);
}

std::string exact(Bytes bytes) {
  return bytes_in_words(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

}  // namespace

Scheduler::Scheduler(Bytes capacity, std::string_view policy, const Rules& rules)
    : rules_(rules),
      policy_(&policy_named(policy)),
      lanes_(capacity),
      shares_(rules.half_life),
      tuner_(rules.quantum) {
  check_rules(rules);
}

// An independent copy, in which decisions can be tried.
std::unique_ptr<Scheduler> Scheduler::copy() const {
  std::unique_ptr<Scheduler> twin(new Scheduler(*this));
  for (auto& [number, session] : twin->sessions_)
    session.shares = twin->shares_.path(session.group, session.user, session.id);
  twin->seen_.reset();
  twin->forecast_ = {};
  return twin;
}

// --- events ------------------------------------------------------------------------------------

Decision Scheduler::open(Seconds now, const std::string& id, const SessionSpec& spec) {
  check(spec);
  happen(now);
  const SessionNumber number = prepare(id, spec);
  Session& session = sessions_.at(number);
  session.domain = spec.domain;
  shares_.weigh(session.shares, spec.weight);
  session.priority = spec.priority;
  session.paused = spec.paused;
  session.alone = spec.alone;
  session.demand = spec.demand;
  session.remaining_iterations = spec.remaining_iterations;
  session.last_turn = spec.turn;
  session.busy = spec.busy;
  residency_.open(session.memory, spec.paged_out_bytes);
  due_ = {};  // a session that opens again has lost its successor
  if (spec.holding) adopt_turn(number, session, spec.turn);
  if (spec.waiting) begin_wait(session, spec.turn);
  if (spec.busy) call_back(session);
  return assign(now);
}

Decision Scheduler::close(Seconds now, const std::string& id) {
  const SessionNumber number = number_of(id);
  happen(now);
  forget(number);
  return assign(now);
}

Decision Scheduler::request(Seconds now, const std::string& id, TurnNumber turn) {
  const SessionNumber number = number_of(id);
  happen(now);
  Session& session = sessions_.at(number);
  const bool waits = session.request && turn <= session.request->number;
  const bool runs = session.turn && turn <= session.turn->number;
  if (waits || runs) return assign(now);  // a repeated or stale request
  if (session.turn) end_turn(number, session);
  if (session.request)
    session.request->number = session.last_turn = turn;  // keeps its place in the queue
  else
    begin_wait(session, turn);
  return assign(now);
}

Decision Scheduler::finish(Seconds now, const std::string& id, TurnNumber turn) {
  const SessionNumber number = number_of(id);
  happen(now);
  Session& session = sessions_.at(number);
  if (session.turn && session.turn->number == turn) end_turn(number, session);
  if (session.request && session.request->number == turn) {
    end_wait(session);
    session.position.reset();
  }
  return assign(now);
}

Decision Scheduler::report(Seconds now, const std::string& id, std::int64_t iterations,
                           const Demand& demand, std::optional<std::int64_t> remaining_iterations) {
  const SessionNumber number = number_of(id);
  check_iterations(iterations);
  check_iterations(remaining_iterations.value_or(0));
  check(demand);
  happen(now);
  Session& session = sessions_.at(number);
  if (remaining_iterations)
    session.remaining_iterations = remaining_iterations;
  else if (session.remaining_iterations)
    *session.remaining_iterations -= std::min(iterations, *session.remaining_iterations);
  session.iterations += iterations;
  const Seconds used = session.device_seconds + running_seconds(session, now_);
  const Seconds seconds = used - std::exchange(session.reported_seconds, used);
  follow_pace(session, iterations, seconds, demand);
  if (demand.measured && session.demand.measured)
    tuner_.report(now_, number, iterations, seconds);
  else
    tuner_.forget(number);  // its first iterations are not like the others
  session.demand = demand;
  fit_to_demand(number, session);
  return assign(now);
}

// The first iterations, in which its memory is measured, are not like the others; nor are those
// during which it was paged in.
void Scheduler::follow_pace(Session& session, std::int64_t iterations, Seconds seconds,
                            const Demand& demand) {
  if (iterations == 0) return;
  if (session.demand.measured && demand.measured && !session.memory.has_just_come_in())
    session.pace.add(iterations, seconds);
  residency_.iterate(session.memory);
  if (session.turn) session.turn->boundary = now_;
}

Decision Scheduler::change(Seconds now, const std::string& id, std::optional<double> weight,
                           std::optional<int> priority, std::optional<bool> paused) {
  const SessionNumber number = number_of(id);
  if (weight) check_weight(*weight);
  happen(now);
  Session& session = sessions_.at(number);
  if (weight) shares_.weigh(session.shares, *weight);
  session.priority = priority.value_or(session.priority);
  session.paused = paused.value_or(session.paused);
  return assign(now);
}

Decision Scheduler::recall(Seconds now, const std::string& id) {
  Session& session = sessions_.at(number_of(id));
  if (!session.turn) throw std::invalid_argument(id + " has no turn to end");
  happen(now);
  session.turn->recalled = true;
  return assign(now);
}

Decision Scheduler::hold_back(Seconds now, const std::map<std::string, std::string>& sentences) {
  for (const auto& [id, sentence] : sentences) {
    number_of(id);
    require(!sentence.empty(), "who is held back must be told why");
  }
  happen(now);
  for (auto& [number, session] : sessions_) {
    const auto held = sentences.find(session.id);
    if (held == sentences.end() && is_held(session)) wait_anew(session);
    session.held_back = held == sentences.end() ? "" : held->second;
  }
  return assign(now);
}

Decision Scheduler::set_shares(Seconds now, const std::map<std::string, double>& groups,
                               const std::map<std::string, double>& users) {
  for (const auto& weights : {groups, users})
    for (const auto& [name, weight] : weights) check_weight(weight);
  happen(now);
  shares_.set_weights(groups, users);
  return assign(now);
}

Decision Scheduler::set_policy(Seconds now, std::string_view name) {
  const Policy& policy = policy_named(name);
  happen(now);
  if (policy_ != &policy) tuner_ = ConcurrencyTuner(rules_.quantum);
  policy_ = &policy;
  return assign(now);
}

Decision Scheduler::set_running_lanes(Seconds now, int lanes) {
  check_running_lanes(lanes);
  happen(now);
  if (rules_.running_lanes != lanes) tuner_ = ConcurrencyTuner(rules_.quantum);
  rules_.running_lanes = lanes;
  return assign(now);
}

Decision Scheduler::set_foreign(Seconds now, Bytes bytes) {
  require(bytes >= 0, "foreign memory in bytes must not be negative");
  bytes == lanes_.foreign() ? advance(now) : happen(now);
  lanes_.set_foreign(bytes);
  return assign(now);
}

Decision Scheduler::set_recovering(Seconds now, bool recovering) {
  happen(now);
  recovering_ = recovering;
  return assign(now);
}

// --- one session -------------------------------------------------------------------------------

SessionNumber Scheduler::number_of(const std::string& id) const {
  const auto number = numbers_.find(id);
  if (number == numbers_.end()) throw UnknownSession("no session '" + id + "' is open");
  return number->second;
}

void Scheduler::check(const SessionSpec& spec) const {
  check_weight(spec.weight);
  check_iterations(spec.iterations);
  check_iterations(spec.remaining_iterations.value_or(0));
  require(std::isfinite(spec.device_seconds) && spec.device_seconds >= 0 &&
              std::isfinite(spec.waited_seconds) && spec.waited_seconds >= 0,
          "seconds of the past must be finite and not negative");
  check_paged_out(spec.paged_out_bytes);
  require(!spec.holding || !spec.waiting, "a session holds its turn or waits for it, not both");
  check(spec.demand);
}

void Scheduler::check_paged_out(Bytes bytes) {
  require(bytes >= 0, "the bytes that are paged out must not be negative");
}

void Scheduler::check(const Demand& demand) const {
  require(demand.persistent >= 0 && demand.ephemeral >= 0,
          "a demand in bytes must not be negative");
  if (lanes_.fits_empty(demand)) return;
  throw std::overflow_error("needs " + exact(demand.persistent) + " persistent and " +
                            exact(demand.ephemeral) + " ephemeral; the device has " +
                            exact(lanes_.capacity()));
}

// Notes that time has passed, and nothing else.
void Scheduler::advance(Seconds now) {
  now_ = latest(now);
  seen_.reset();
  if (forecast_.is_cheap()) forecast_ = {};
  shares_.advance(now_);
  residency_.advance(now_);
}

// An event has happened that may change the order of the waiting sessions.
void Scheduler::happen(Seconds now) {
  advance(now);
  ordered_ = now_;
}

Seconds Scheduler::latest(Seconds now) const {
  require(std::isfinite(now), "a time must be a finite number of seconds");
  return std::max(now, now_);
}

// A session of this id, group and user without a turn or a place, new or emptied. What it has used
// stays used, so that opening again gains nothing.
SessionNumber Scheduler::prepare(const std::string& id, const SessionSpec& spec) {
  const auto known = numbers_.find(id);
  if (known != numbers_.end() && (sessions_.at(known->second).user != spec.user ||
                                  sessions_.at(known->second).group != spec.group))
    forget(known->second);
  const auto [entry, is_new] = numbers_.try_emplace(id, last_number_ + 1);
  const SessionNumber number = entry->second;
  Session& session = sessions_[number];
  if (is_new) {
    last_number_ = number;
    session.id = id;
    session.group = spec.group;
    session.user = spec.user;
    session.shares = shares_.add(spec.group, spec.user, id);
    shares_.attain(session.shares, spec.device_seconds);
  }
  vacate(number, session);
  session.device_seconds = std::max(session.device_seconds, spec.device_seconds);
  session.waited_seconds = std::max(session.waited_seconds, spec.waited_seconds);
  session.iterations = std::max(session.iterations, spec.iterations);
  session.reported_seconds = session.device_seconds;
  return number;
}

void Scheduler::vacate(SessionNumber number, Session& session) {
  if (session.memory.residence() == Residence::returning) give_up_return(session);
  if (session.turn) end_turn(number, session);
  if (session.request) end_wait(session);
  if (lanes_.contains(number)) lanes_.remove(number);
  session.position.reset();
  residency_.vacate(session.memory);
}

void Scheduler::forget(SessionNumber number) {
  Session& session = sessions_.at(number);
  vacate(number, session);
  if (session.share().active) shares_.leave(session.shares);
  shares_.remove(session.group, session.user, session.id);
  tuner_.forget(number);
  numbers_.erase(session.id);
  sessions_.erase(number);
}

// The session runs already, whatever the rules say. If there is no lane for it, it is asked to
// yield and no other session starts until then.
void Scheduler::adopt_turn(SessionNumber number, Session& session, TurnNumber turn) {
  take_lane(number, session);
  begin_turn(session, turn);
}

// Takes the lane in which it has its place, or another if that is held.
void Scheduler::take_lane(SessionNumber number, const Session& session) {
  if (lanes_.contains(number)) {
    if (lanes_.holder_of(lanes_.lane_of(number)) == kNobody) return lanes_.hold(number);
    lanes_.remove(number);
  }
  lanes_.adopt(number, room_for(session), limit());
}

void Scheduler::begin_turn(Session& session, TurnNumber turn) {
  if (is_out(session)) bring_in(session);  // a running session has its memory, or gets it on access
  session.turn = {turn, now_, std::nullopt, {}, std::max(now_, is_in_by(session).value_or(now_))};
  shares_.begin_turn(session.shares);
}

void Scheduler::end_turn(SessionNumber number, Session& session) {
  const Seconds used = running_seconds(session, now_);
  session.device_seconds += used;
  shares_.attain(session.shares, used);
  shares_.end_turn(session.shares);
  due_ = session.turn->successor;
  if (!session.turn->asked || session.turn->recalled) session.position.reset();
  session.turn.reset();
  residency_.use(session.memory);
  if (!lanes_.contains(number)) return;
  lanes_.release(number);
  if (has_outgrown(number, session)) lanes_.remove(number);
}

void Scheduler::begin_wait(Session& session, TurnNumber turn) {
  session.request = Session::Request{{now_, ++last_order_}, turn};
  if (!session.position) session.position = *session.request;
  session.last_turn = turn;
  call_back(session);
}

// While it waits to come back, that wait is counted, which began no later.
void Scheduler::end_wait(Session& session) {
  const bool returns = session.memory.residence() == Residence::returning;
  if (!returns) session.waited_seconds += now_ - session.request->since;
  session.request.reset();
  if (session.busy) residency_.let_stay(session.memory);
  if (returns && !session.busy) give_up_return(session);
}

// The wait so far does not count any more, neither for a queue position nor for aging.
void Scheduler::wait_anew(Session& session) {
  const Wait* wait = wait_of(session);
  if (!wait) return;
  session.waited_seconds += now_ - wait->since;
  const Wait anew{now_, ++last_order_};
  if (session.request) static_cast<Wait&>(*session.request) = anew;
  session.position.reset();
  residency_.wait_anew(session.memory, anew);
}

// A holder that has outgrown its place keeps it until its turn ends, which is asked for at once.
void Scheduler::fit_to_demand(SessionNumber number, const Session& session) {
  if (!lanes_.contains(number)) return;
  if (!lanes_.resize(number, room_for(session)) && !session.turn) lanes_.remove(number);
}

bool Scheduler::has_place(const std::string& id) const { return lanes_.contains(number_of(id)); }

bool Scheduler::has_turn(const std::string& id) const {
  return sessions_.at(number_of(id)).turn.has_value();
}

bool Scheduler::was_asked(const std::string& id) const {
  const Session& session = sessions_.at(number_of(id));
  return session.turn && session.turn->asked;
}

const std::string& Scheduler::held_back(const std::string& id) const {
  return sessions_.at(number_of(id)).held_back;
}

Bytes Scheduler::lane_bytes(LaneId lane) const {
  const auto found = lanes_.lanes().find(lane);
  return found == lanes_.lanes().end() ? 0 : found->second.bytes();
}

// --- what follows from a session ---------------------------------------------------------------

bool Scheduler::has_outgrown(SessionNumber number, const Session& session) const {
  return lanes_.contains(number) && lanes_.demand_of(number) != room_for(session);
}

bool Scheduler::has_waited_too_long(const Session& session, Seconds now) const {
  return waits(session) && now >= ages_at(session) - kSoon;
}

// Whether no other session is admitted before there is room for it. Where waiting sessions are
// evicted for it, that is only needed during the eviction: otherwise an evicted session would be
// back before the others are out, and be evicted again.
bool Scheduler::reserves(SessionNumber number, const Session& session, Seconds now) const {
  return has_waited_too_long(session, now) &&
         (!all_make_way() || residency_.makes_room_for(number));
}

// A session that was evicted for another one waits for memory since then.
Seconds Scheduler::ages_at(const Session& session) const {
  return std::max(wait_of(session)->since, session.memory.made_way()) + rules_.aging;
}

bool Scheduler::goes_before(const Contender& a, const Contender& b) const {
  return before(*policy_, a.view, b.view);
}

// Sessions that are past their aging come first, the oldest first, unless others are evicted for
// them; then sessions that wait, by policy; then sessions that are only open.
bool Scheduler::is_admitted_before(const Contender& a, const Contender& b, Seconds now) const {
  const auto rank = [&](const Contender& of) {
    if (reserves(of.number, *of.session, now)) return 0;
    return waits(*of.session) ? 1 : 2;
  };
  const int a_ranks = rank(a), b_ranks = rank(b);
  if (a_ranks != b_ranks) return a_ranks < b_ranks;
  if (a_ranks == 0) return a.view.order < b.view.order;
  return a_ranks == 1 ? goes_before(a, b) : a.number < b.number;
}

Candidate Scheduler::candidate(const Session& session, Seconds now) const {
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
      .group_clock = shares_.clock(group, now),
      .user = &user,
      .user_weight = user.weight,
      .user_turns = user.running,
      .user_clock = shares_.clock(user, now),
      .user_served = user.served,
      .clock = shares_.clock(session.share(), now),
      .attained = shares_.attained(session.shares, now) + running,
      .waiting = wait ? now - wait->since : 0,
      .queued = queued ? now - queued->since : 0,
      .running = running,
      .iteration = iteration(session),
      .remaining = remaining(session, running),
      .boost = std::max(0.0, session.boost - running),
      .begun = session.turn || session.device_seconds > session.before_cell,
      .order = wait ? wait->order : 0,
      .queue_order = queued ? queued->order : 0,
  };
}

Scheduler::Contender::Contender(const Scheduler& scheduler, SessionNumber number,
                                const Session& session, Seconds now)
    : view(scheduler.candidate(session, now)),
      number(number),
      session(&session),
      lane(scheduler.lanes_.lane_of(number)) {
  if (lane != kNoLane)
    everywhere = session.alone || !session.demand.measured;
  else
    everywhere = session.turn.has_value();  // its memory is not counted
}

}  // namespace gpushare
