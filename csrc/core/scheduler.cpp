#include "core/scheduler.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>

#include "core/units.h"

namespace gpushare {
namespace {

// Closer than this counts as now: times are sums of floating point numbers, and a next_event that
// lies a rounding error ahead would be asked for again and again.
constexpr Seconds kSoon = 1e-6;

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
  require(rules.patience >= 0, "the patience must not be below 0 seconds");
  check_running_lanes(rules.running_lanes);
}

std::string exact(Bytes bytes) {
  return bytes_in_words(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

}  // namespace

Scheduler::Scheduler(Bytes capacity, std::string_view policy, const Rules& rules)
    : rules_(rules), policy_(&policy_named(policy)), lanes_(capacity) {
  check_rules(rules);
}

// --- events ------------------------------------------------------------------------------------

Decision Scheduler::open(Seconds now, const std::string& id, const SessionSpec& spec) {
  check(spec);
  advance(now);
  const SessionNumber number = prepare(id, spec);
  Session& session = sessions_.at(number);
  session.name = spec.name;
  session.weight = spec.weight;
  session.priority = spec.priority;
  session.paused = spec.paused;
  session.demand = spec.demand;
  session.remaining_iterations = spec.remaining_iterations;
  session.last_turn = spec.turn;
  if (spec.holding) adopt_turn(number, session, spec.turn);
  if (spec.waiting) begin_wait(session, spec.turn);
  return assign(now);
}

Decision Scheduler::close(Seconds now, const std::string& id) {
  const SessionNumber number = number_of(id);
  advance(now);
  forget(number);
  return assign(now);
}

Decision Scheduler::request(Seconds now, const std::string& id, TurnNumber turn) {
  const SessionNumber number = number_of(id);
  advance(now);
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
  advance(now);
  Session& session = sessions_.at(number);
  if (session.turn && session.turn->number == turn) end_turn(number, session);
  if (session.request && session.request->number == turn) end_wait(session);
  return assign(now);
}

Decision Scheduler::report(Seconds now, const std::string& id, std::int64_t iterations,
                           const Demand& demand, std::optional<std::int64_t> remaining_iterations) {
  const SessionNumber number = number_of(id);
  check_iterations(iterations);
  check_iterations(remaining_iterations.value_or(0));
  check(demand);
  advance(now);
  Session& session = sessions_.at(number);
  if (remaining_iterations)
    session.remaining_iterations = remaining_iterations;
  else if (session.remaining_iterations)
    *session.remaining_iterations -= std::min(iterations, *session.remaining_iterations);
  session.iterations += iterations;
  session.reported_seconds = session.device_seconds + running_seconds(session, now_);
  session.demand = demand;
  fit_to_demand(number, session);
  return assign(now);
}

Decision Scheduler::change(Seconds now, const std::string& id, std::optional<double> weight,
                           std::optional<int> priority, std::optional<bool> paused) {
  const SessionNumber number = number_of(id);
  if (weight) check_weight(*weight);
  advance(now);
  Session& session = sessions_.at(number);
  session.weight = weight.value_or(session.weight);
  session.priority = priority.value_or(session.priority);
  session.paused = paused.value_or(session.paused);
  return assign(now);
}

Decision Scheduler::set_policy(Seconds now, std::string_view name) {
  const Policy& policy = policy_named(name);
  advance(now);
  policy_ = &policy;
  return assign(now);
}

Decision Scheduler::set_running_lanes(Seconds now, int lanes) {
  check_running_lanes(lanes);
  advance(now);
  rules_.running_lanes = lanes;
  return assign(now);
}

// --- the pass ----------------------------------------------------------------------------------

Decision Scheduler::assign(Seconds now) {
  advance(now);
  lanes_.merge_down(limit());
  admit();
  settle_clocks();
  Decision decision;
  Contest contest = look(now_);
  grant(contest, decision);
  ask_to_yield(contest, decision);
  return decision;
}

int Scheduler::limit() const {
  if (rules_.running_lanes != 0) return rules_.running_lanes;
  return policy_->packs ? 0 : 1;
}

void Scheduler::admit() {
  while (const SessionNumber next = next_to_admit())
    lanes_.place(next, room_for(sessions_.at(next)), limit());
}

// Of those for whom there is a place, the first. Others may overtake one for whom there is none,
// but not for ever: after `patience` it comes first and nobody is admitted before it.
SessionNumber Scheduler::next_to_admit() const {
  if (lanes_.size() == sessions_.size()) return kNobody;
  std::optional<Contender> best;
  for (const auto& [number, session] : sessions_) {
    if (lanes_.contains(number)) continue;
    if (session.turn) return kNobody;  // it uses memory that is not counted
    if (!has_waited_too_long(session, now_) && !lanes_.fits(room_for(session))) continue;
    const Contender contender = this->contender(number, session, now_);
    if (!best || is_admitted_before(contender, *best, now_)) best = contender;
  }
  return best && lanes_.fits(room_for(*best->session)) ? best->number : kNobody;
}

// Clocks of those who begin or cease to wait or run. Without a place or paused, a session earns no
// credit by waiting: it would have the device to itself once it comes back.
void Scheduler::settle_clocks() {
  for (auto& [number, session] : sessions_) {
    const bool waits = session.request && !session.paused && lanes_.contains(number);
    const bool active = waits || session.turn;
    if (active && !session.active) enter(session);
    if (!active && session.active) leave(session);
  }
}

void Scheduler::enter(Session& session) {
  User& user = session.user->second;
  if (user.active == 0) lift(user.clock, floor_over_users(user), user.idle_since, 1);
  lift(session.clock, floor_within_user(session), session.idle_since, session.weight);
  session.active = true;
  ++user.active;
}

void Scheduler::leave(Session& session) {
  User& user = session.user->second;
  session.active = false;
  session.idle_since = now_;
  if (--user.active == 0) user.idle_since = now_;
}

// Who was away starts where the others are, less one quantum so that short cells come soon. It
// counts as if it had run while it was away: idle time earns nothing, and a short break does not
// cost what is owed from before it.
void Scheduler::lift(Decayed& clock, std::optional<double> floor, Seconds idle_since,
                     double weight) const {
  if (!floor) return;
  const double own = clock.at(now_, rules_.half_life);
  const double as_if_run = own + (now_ - idle_since) / weight;
  const double lifted = std::min(*floor - rules_.quantum / weight, as_if_run);
  if (lifted > own) clock = {lifted, now_};
}

// The lowest clock of those who are active, or the highest of the others if none is.
std::optional<double> Scheduler::floor_over_users(const User& newcomer) const {
  std::optional<double> lowest, highest;
  for (const auto& [name, user] : users_) {
    if (&user == &newcomer) continue;
    const double value = user_clock(user, now_);
    if (user.active > 0) lowest = std::min(lowest.value_or(value), value);
    highest = std::max(highest.value_or(value), value);
  }
  return lowest ? lowest : highest;
}

std::optional<double> Scheduler::floor_within_user(const Session& newcomer) const {
  std::optional<double> lowest, highest;
  for (const auto& [number, session] : sessions_) {
    if (&session == &newcomer || session.user != newcomer.user) continue;
    const double value = clock(session, now_);
    if (session.active) lowest = std::min(lowest.value_or(value), value);
    highest = std::max(highest.value_or(value), value);
  }
  return lowest ? lowest : highest;
}

Scheduler::Contest Scheduler::look(Seconds now) const {
  Contest contest;
  contest.waiting.reserve(sessions_.size());
  for (const auto& [number, session] : sessions_) {
    if (session.turn)
      contest.running.push_back(contender(number, session, now));
    else if (session.request && !session.paused)
      contest.waiting.push_back(contender(number, session, now));
  }
  mark_those_who_must_end(contest.running);
  mark_who_needs_lanes_merged(contest.waiting, now);
  return contest;
}

// Held lanes do not merge. If merging would make room for somebody, the first of them waits for all
// holders, so that their turns end.
void Scheduler::mark_who_needs_lanes_merged(std::vector<Contender>& waiting, Seconds now) const {
  if (lanes_.held() < 2) return;
  Contender* first = nullptr;
  for (Contender& contender : waiting) {
    if (contender.lane != kNoLane) continue;
    const Demand room = room_for(*contender.session);
    if (lanes_.fits(room) || !lanes_.fits_when_idle(room)) continue;
    if (!first || is_admitted_before(contender, *first, now)) first = &contender;
  }
  if (first) first->everywhere = true;
}

// Those who run and should not: paused, without a (large enough) place, alone but among others, and
// the last by policy if more run than may. Of the last, those asked already count first.
void Scheduler::mark_those_who_must_end(std::vector<Contender>& running) const {
  for (Contender& holder : running)
    holder.must_end = holder.session->paused || holder.lane == kNoLane ||
                      has_outgrown(holder.number, *holder.session) ||
                      (holder.everywhere && running.size() > 1);
  const auto allowed = static_cast<std::size_t>(limit());
  if (allowed == 0 || running.size() <= allowed) return;
  std::ranges::sort(running, [&](const Contender& a, const Contender& b) {
    const bool a_stays = !a.session->turn->asked, b_stays = !b.session->turn->asked;
    return a_stays != b_stays ? a_stays : goes_before(a, b);
  });
  for (std::size_t i = allowed; i < running.size(); ++i) running[i].must_end = true;
}

void Scheduler::grant(Contest& contest, Decision& decision) {
  while (Contender* next = next_to_start(contest)) {
    Session& session = sessions_.at(next->number);
    if (lanes_.holder_of(next->lane) != kNobody) lanes_.move(next->number, limit());
    const TurnNumber turn = session.request->number;
    end_wait(session);
    begin_turn(session, turn);
    lanes_.hold(next->number);
    contest.running.push_back(contender(next->number, session, now_));
    decision.grants.push_back({session.id, turn, lanes_.lane_of(next->number)});
  }
  std::erase_if(contest.waiting,
                [](const Contender& other) { return other.session->turn.has_value(); });
  mark_who_needs_lanes_merged(contest.waiting, now_);
}

// The best of those who can start. If the best of all has to run alone, the device drains for it.
Scheduler::Contender* Scheduler::next_to_start(Contest& contest) const {
  if (std::ranges::any_of(contest.running, &Contender::everywhere)) return nullptr;
  Contender *best = nullptr, *able = nullptr;
  for (Contender& waiting : contest.waiting) {
    if (waiting.lane == kNoLane || waiting.session->turn) continue;
    if (!best || goes_before(waiting, *best)) best = &waiting;
    if ((!able || goes_before(waiting, *able)) && can_start(waiting)) able = &waiting;
  }
  return best && best->everywhere && able != best ? nullptr : able;
}

bool Scheduler::can_start(const Contender& waiting) const {
  if (limit() != 0 && lanes_.held() >= limit()) return false;
  if (waiting.everywhere) return lanes_.held() == 0;
  return lanes_.holder_of(waiting.lane) == kNobody || lanes_.can_move(waiting.number, limit());
}

void Scheduler::ask_to_yield(Contest& contest, Decision& decision) {
  time_turns(contest, now_);
  for (const Contender& holder : contest.running) {
    if (holder.session->turn->asked || holder.ends_in > kSoon) continue;
    Session& session = sessions_.at(holder.number);
    session.turn->asked = now_;
    decision.yields.push_back({session.id, session.turn->number});
  }
}

// When each running turn should end. Who waits may have any lane that it fits into, so the last of
// those who run are asked first, and each one asked takes one of those who wait out of the count:
// no more are asked than there are others to go on. Who was asked longest ago takes first.
void Scheduler::time_turns(Contest& contest, Seconds now) const {
  const auto asked = [&](const Contender& holder) {
    return holder.session->turn->asked.value_or(holder.must_end ? now : kNever);
  };
  std::ranges::sort(contest.running, [&](const Contender& a, const Contender& b) {
    if (asked(a) != asked(b)) return asked(a) < asked(b);
    if (a.must_end != b.must_end) return a.must_end;
    if (goes_before(a, b) != goes_before(b, a)) return goes_before(b, a);
    return a.number > b.number;
  });
  std::vector<const Contender*> left;
  for (const Contender& waiting : contest.waiting) left.push_back(&waiting);
  for (Contender& holder : contest.running) time_turn(holder, left);
}

// For the soonest of those who are left. If it ends now, the best of them will have its lane.
void Scheduler::time_turn(Contender& holder, std::vector<const Contender*>& left) const {
  if (holder.must_end || holder.session->turn->asked) holder.ends_in = 0;
  const Bytes room = holder.lane == kNoLane ? 0 : lanes_.could_grow_to(holder.lane);
  auto best = left.end();
  for (auto waiting = left.begin(); waiting != left.end(); ++waiting) {
    const Contender& other = **waiting;
    const bool excludes = holder.everywhere || other.everywhere;
    const bool fits = other.lane == holder.lane || room_for(*other.session).ephemeral <= room;
    if (!excludes && (other.lane == kNoLane || !fits)) continue;
    holder.ends_in = std::min(holder.ends_in,
                              gpushare::ends_in(*policy_, holder.view, other.view, rules_.quantum));
    if (!excludes && (best == left.end() || goes_before(other, **best))) best = waiting;
  }
  if (holder.ends_in <= kSoon && best != left.end()) left.erase(best);
}

std::optional<Seconds> Scheduler::next_event(Seconds now) const {
  now = latest(now);
  Seconds next = kNever;
  const auto at = [&](Seconds time) {
    if (time > now) next = std::min(next, time);
  };
  Contest contest = look(now);
  time_turns(contest, now);
  for (const Contender& holder : contest.running) {
    if (const auto asked = holder.session->turn->asked)
      at(*asked + rules_.lease);
    else
      next = std::min(next, now + holder.ends_in);
  }
  for (const Contender& waiting : contest.waiting)
    if (waiting.lane == kNoLane) at(waiting.session->request->since + rules_.patience);
  return next == kNever ? std::nullopt : std::optional(next);
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
  require(!spec.holding || !spec.waiting, "a session holds its turn or waits for it, not both");
  check(spec.demand);
}

void Scheduler::check(const Demand& demand) const {
  require(demand.persistent >= 0 && demand.ephemeral >= 0,
          "a demand in bytes must not be negative");
  const Bytes capacity = lanes_.capacity();
  if (demand.persistent <= capacity && demand.ephemeral <= capacity - demand.persistent) return;
  throw std::overflow_error("needs " + exact(demand.persistent) + " persistent and " +
                            exact(demand.ephemeral) + " ephemeral; the device has " +
                            exact(capacity));
}

Seconds Scheduler::latest(Seconds now) const {
  require(std::isfinite(now), "a time must be a finite number of seconds");
  return std::max(now, now_);
}

// A session of this id and user without a turn or a place, new or emptied. What it has used stays
// used, so that nobody gains by opening again.
SessionNumber Scheduler::prepare(const std::string& id, const SessionSpec& spec) {
  const auto known = numbers_.find(id);
  if (known != numbers_.end() && sessions_.at(known->second).user->first != spec.user)
    forget(known->second);
  const auto [entry, is_new] = numbers_.try_emplace(id, last_number_ + 1);
  const SessionNumber number = entry->second;
  Session& session = sessions_[number];
  if (is_new) {
    last_number_ = number;
    session.id = id;
    session.user = users_.try_emplace(spec.user).first;
    session.attained = {spec.device_seconds, now_};
    ++session.user->second.sessions;
  }
  vacate(number, session);
  session.device_seconds = std::max(session.device_seconds, spec.device_seconds);
  session.waited_seconds = std::max(session.waited_seconds, spec.waited_seconds);
  session.iterations = std::max(session.iterations, spec.iterations);
  session.reported_seconds = session.device_seconds;
  return number;
}

void Scheduler::vacate(SessionNumber number, Session& session) {
  if (session.turn) end_turn(number, session);
  if (session.request) end_wait(session);
  if (lanes_.contains(number)) lanes_.remove(number);
}

void Scheduler::forget(SessionNumber number) {
  Session& session = sessions_.at(number);
  vacate(number, session);
  if (session.active) leave(session);
  if (--session.user->second.sessions == 0) users_.erase(session.user);
  numbers_.erase(session.id);
  sessions_.erase(number);
}

// It runs already, whatever we think of it. If there is no lane for it, it is asked to yield and
// nobody else starts until then.
void Scheduler::adopt_turn(SessionNumber number, Session& session, TurnNumber turn) {
  lanes_.adopt(number, room_for(session), limit());
  begin_turn(session, turn);
}

void Scheduler::begin_turn(Session& session, TurnNumber turn) {
  session.turn = {turn, now_, std::nullopt};
  ++session.user->second.running;
  session.user->second.granted += now_;
}

void Scheduler::end_turn(SessionNumber number, Session& session) {
  User& user = session.user->second;
  const Seconds used = running_seconds(session, now_);
  session.device_seconds += used;
  session.attained.add(now_, rules_.half_life, used);
  session.clock.add(now_, rules_.half_life, used / session.weight);
  user.clock.add(now_, rules_.half_life, used);
  user.granted = --user.running == 0 ? 0 : user.granted - session.turn->since;
  session.turn.reset();
  if (!lanes_.contains(number)) return;
  lanes_.release(number);
  if (has_outgrown(number, session)) lanes_.remove(number);
}

void Scheduler::begin_wait(Session& session, TurnNumber turn) {
  session.request = {turn, now_, ++last_order_};
  session.last_turn = turn;
}

void Scheduler::end_wait(Session& session) {
  session.waited_seconds += now_ - session.request->since;
  session.request.reset();
}

// A holder that has outgrown its place keeps it until its turn ends, which is asked for at once.
void Scheduler::fit_to_demand(SessionNumber number, const Session& session) {
  if (!lanes_.contains(number)) return;
  if (!lanes_.resize(number, room_for(session)) && !session.turn) lanes_.remove(number);
}

// --- what follows from a session ---------------------------------------------------------------

Demand Scheduler::room_for(const Session& session) const {
  const Demand& demand = session.demand;
  return {demand.persistent, demand.measured ? demand.ephemeral : 0, demand.measured};
}

bool Scheduler::has_outgrown(SessionNumber number, const Session& session) const {
  return lanes_.contains(number) && lanes_.demand_of(number) != room_for(session);
}

bool Scheduler::has_waited_too_long(const Session& session, Seconds now) const {
  return session.request && !session.paused &&
         now - session.request->since >= rules_.patience - kSoon;
}

bool Scheduler::goes_before(const Contender& a, const Contender& b) const {
  return before(*policy_, a.view, b.view);
}

// Who has waited too long, the oldest first; then who waits, by policy; then who only is open.
bool Scheduler::is_admitted_before(const Contender& a, const Contender& b, Seconds now) const {
  const auto rank = [&](const Contender& of) {
    if (has_waited_too_long(*of.session, now)) return 0;
    return of.session->request && !of.session->paused ? 1 : 2;
  };
  const int a_ranks = rank(a), b_ranks = rank(b);
  if (a_ranks != b_ranks) return a_ranks < b_ranks;
  if (a_ranks == 0) return a.view.order < b.view.order;
  return a_ranks == 1 ? goes_before(a, b) : a.number < b.number;
}

Candidate Scheduler::candidate(const Session& session, Seconds now) const {
  const User& user = session.user->second;
  Candidate view;
  view.priority = session.priority;
  view.weight = session.weight;
  view.user = &user;
  view.user_turns = user.running;
  view.user_clock = user_clock(user, now);
  view.clock = clock(session, now);
  view.running = running_seconds(session, now);
  view.attained = session.attained.at(now, rules_.half_life) + view.running;
  if (session.request) view.waiting = now - session.request->since;
  if (session.request) view.order = session.request->order;
  if (session.iterations > 0)
    view.iteration = session.reported_seconds / static_cast<double>(session.iterations);
  view.remaining = remaining(session, now);
  return view;
}

Scheduler::Contender Scheduler::contender(SessionNumber number, const Session& session,
                                          Seconds now) const {
  Contender contender{candidate(session, now), number, &session, lanes_.lane_of(number)};
  if (contender.lane != kNoLane)
    contender.everywhere = !session.demand.measured;  // it runs alone
  else
    contender.everywhere = session.turn.has_value();  // its memory is not counted
  return contender;
}

// Declared iterations times their mean duration so far, less the time since they were declared;
// nothing once that is used up, so that who overruns is not the shortest for ever.
std::optional<Seconds> Scheduler::remaining(const Session& session, Seconds now) const {
  if (!session.remaining_iterations || session.iterations == 0) return std::nullopt;
  const Seconds iteration = session.reported_seconds / static_cast<double>(session.iterations);
  const Seconds since =
      session.device_seconds + running_seconds(session, now) - session.reported_seconds;
  const Seconds left = static_cast<double>(*session.remaining_iterations) * iteration - since;
  return left > 0 ? std::optional(left) : std::nullopt;
}

Seconds Scheduler::user_clock(const User& user, Seconds now) const {
  return user.clock.at(now, rules_.half_life) + user.running * now - user.granted;
}

Seconds Scheduler::clock(const Session& session, Seconds now) const {
  return session.clock.at(now, rules_.half_life) + running_seconds(session, now) / session.weight;
}

Seconds Scheduler::running_seconds(const Session& session, Seconds now) {
  return session.turn ? now - session.turn->since : 0;
}

// --- invariants --------------------------------------------------------------------------------

std::string Scheduler::is_valid() const {
  for (const std::string& broken :
       {lanes_.is_valid(), lanes_agree(), users_agree(), nobody_waits_in_vain()})
    if (!broken.empty()) return broken;
  return "";
}

std::string Scheduler::lanes_agree() const {
  if (numbers_.size() != sessions_.size()) return "a session has no id";
  std::size_t placed = 0;
  for (const auto& [number, session] : sessions_) {
    if (numbers_.at(session.id) != number) return "an id leads to another session";
    if (session.request && session.turn) return "a session waits and runs at once";
    const LaneId lane = lanes_.lane_of(number);
    if (lane == kNoLane) continue;
    ++placed;
    const bool holds = lanes_.holder_of(lane) == number;
    if (holds != session.turn.has_value()) return "a lane is held and its holder does not run";
    if (!session.turn && has_outgrown(number, session)) return "a place has another size";
  }
  return placed == lanes_.size() ? "" : "a session has a place and is not open";
}

std::string Scheduler::users_agree() const {
  std::map<std::string, std::tuple<int, int, int>> counted;
  for (const auto& [number, session] : sessions_) {
    auto& [sessions, active, running] = counted[session.user->first];
    ++sessions;
    active += session.active;
    running += session.turn.has_value();
  }
  if (counted.size() != users_.size()) return "a user without sessions is known";
  for (const auto& [name, user] : users_)
    if (counted[name] != std::tuple(user.sessions, user.active, user.running))
      return "a user's sessions are counted wrong";
  return "";
}

std::string Scheduler::nobody_waits_in_vain() const {
  if (sessions_.empty()) return "";
  if (next_to_admit() != kNobody) return "a session has no place although there is one";
  Contest contest = look(now_);
  if (next_to_start(contest)) return "a session waits although it could start";
  for (const Contender& holder : contest.running) {
    const bool asked = holder.session->turn->asked.has_value();
    if (holder.must_end && !asked) return "a session that must end was not asked to yield";
    if (holder.everywhere && contest.running.size() > 1 && !asked)
      return "a session that runs alone runs beside others";
  }
  return "";
}

}  // namespace gpushare
