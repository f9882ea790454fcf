// Expected waits: what the scheduler would do from now on, tried on a copy of it in virtual time.
//
// Whoever runs computes at its pace, gives its turn back at the first boundary after it was asked
// to, and asks for the next one at once; it ends with the iterations that it has declared, if it
// has. So everything that decides over turns decides over the forecast: the policy, quanta, what
// is owed to others, priorities, lanes. Nobody else comes, and nobody who waits for memory.
//
// What is not known is not said: where a turn whose end nobody can know comes first, a wait is
// absent. That is a session without a known pace, or an iteration that lasts longer than usual. And
// while it is being tried how many lanes may run at once, nobody knows how many will.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/scheduler.h"

namespace gpushare {
namespace {

// Work is counted in passes times sessions, which take about 0.1 us each.
constexpr std::size_t kMostWork = 60'000;
constexpr std::size_t kWorkOfAPass = 8;  // beside that for each session
constexpr Seconds kKeptForEach = 5e-6;   // so forecasts take about a fiftieth of the time
constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
constexpr double kMostIterations = 1e15;  // of one turn, whatever somebody reports
constexpr double kRounding = 1e-6;        // of an iteration

}  // namespace

class Rehearsal {
 public:
  Rehearsal(const Scheduler& real, Seconds now);
  Scheduler::Forecast run();

 private:
  using Session = Scheduler::Session;

  bool step();
  SessionNumber next_to_finish() const;
  void finish(SessionNumber number);
  void count(Session& session) const;
  void enact(const Decision& decision);
  void begins(SessionNumber number, TurnNumber turn);
  Seconds ends(const Session& session) const;
  bool is_known(const Session& session) const;
  bool is_late(const Session& session) const;

  std::unique_ptr<Scheduler> it_;
  const Seconds present_;
  Seconds now_;
  std::vector<SessionNumber> running_;  // of whom it is known when they end
  std::unordered_map<SessionNumber, TurnNumber> waiting_;
  Scheduler::Forecast forecast_;
  std::size_t work_ = 0;
};

Rehearsal::Rehearsal(const Scheduler& real, Seconds now)
    : it_(real.copy()), present_(now), now_(now) {
  if (it_->packs()) it_->rules_.running_lanes = it_->probation_.lanes();  // and no trial begins
  for (const auto& [number, session] : it_->sessions_) {
    if (session.turn && is_known(session) && !is_late(session)) running_.push_back(number);
    if (Scheduler::wants_turn(session) && it_->lanes_.contains(number))
      waiting_[number] = session.request->number;
  }
}

Scheduler::Forecast Rehearsal::run() {
  while (!waiting_.empty() && work_ < kMostWork && step()) {
  }
  forecast_.made = present_;
  forecast_.kept = present_ + static_cast<double>(work_) * kKeptForEach;
  return std::move(forecast_);
}

bool Rehearsal::step() {
  const SessionNumber first = next_to_finish();
  const Seconds finished = first == kNobody ? kNever : ends(it_->sessions_.at(first));
  const Seconds awake = it_->next_event(now_).value_or(kNever);
  if (std::min(finished, awake) == kNever) return false;
  now_ = std::max(now_, std::min(finished, awake));
  if (finished <= awake)
    finish(first);
  else
    enact(it_->assign(now_));
  return true;
}

SessionNumber Rehearsal::next_to_finish() const {
  SessionNumber first = kNobody;
  Seconds soonest = kNever;
  for (const SessionNumber number : running_)
    if (const Seconds end = ends(it_->sessions_.at(number)); end < soonest) {
      soonest = end;
      first = number;
    }
  return first;
}

void Rehearsal::finish(SessionNumber number) {
  Session& session = it_->sessions_.at(number);
  const TurnNumber turn = session.turn->number;
  std::erase(running_, number);
  count(session);
  enact(it_->finish(now_, session.id, turn));
  session.reported_seconds = session.device_seconds;
  if (session.remaining_iterations.value_or(1) > 0) enact(it_->request(now_, session.id, turn + 1));
}

void Rehearsal::count(Session& session) const {
  const double done = (now_ - session.turn->boundary) / *session.pace.iteration();
  const auto iterations =
      static_cast<std::int64_t>(std::clamp(std::round(done), 0.0, kMostIterations));
  session.iterations += std::min(iterations, kAll - session.iterations);
  if (session.remaining_iterations)
    *session.remaining_iterations -= std::min(iterations, *session.remaining_iterations);
}

void Rehearsal::enact(const Decision& decision) {
  work_ += it_->sessions_.size() + kWorkOfAPass;
  for (const Grant& grant : decision.grants) begins(it_->numbers_.at(grant.session), grant.turn);
}

void Rehearsal::begins(SessionNumber number, TurnNumber turn) {
  if (is_known(it_->sessions_.at(number))) running_.push_back(number);
  const auto waits = waiting_.find(number);
  if (waits == waiting_.end() || waits->second != turn) return;
  forecast_.begins[number] = {turn, now_};
  waiting_.erase(waits);
}

// At the boundary after it was asked to yield, or with the last iteration that it has declared.
Seconds Rehearsal::ends(const Session& session) const {
  const auto& turn = *session.turn;
  const Seconds one = *session.pace.iteration();
  const auto boundary = [&](double iterations) {
    return turn.boundary + std::max(1.0, std::ceil(iterations - kRounding)) * one;
  };
  Seconds end = kNever;
  if (session.remaining_iterations.value_or(0) > 0)
    end = boundary(static_cast<double>(*session.remaining_iterations));
  if (turn.asked) end = std::min(end, boundary((*turn.asked - turn.boundary) / one));
  if (end >= present_) return end;
  return turn.asked ? *turn.asked + session.pace.longest() : present_;
}

// One that has several devices is not asked for one of them.
bool Rehearsal::is_known(const Session& session) const {
  return session.pace.iteration() && !session.alone;
}

// Its present iteration has lasted longer than usual. Who is not asked to yield says only now and
// then that iterations go on.
bool Rehearsal::is_late(const Session& session) const {
  const auto& turn = *session.turn;
  const Seconds silent =
      turn.asked ? std::max(*turn.asked, turn.boundary) : turn.boundary + it_->rules_.report;
  return present_ - silent > session.pace.longest();
}

// Of one that has a place and waits for a turn.
std::optional<Seconds> Scheduler::expected_wait(const Session& session, Seconds now) const {
  if (recovering_ || !session.request || (packs() && probation_.is_trying())) return std::nullopt;
  if (now < forecast_.made || now > forecast_.kept) forecast_ = Rehearsal(*this, now).run();
  const auto found = forecast_.begins.find(numbers_.at(session.id));
  if (found == forecast_.begins.end()) return std::nullopt;
  const auto& [turn, begin] = found->second;
  return turn == session.request->number && begin >= now ? std::optional(begin - now)
                                                         : std::nullopt;
}

}  // namespace gpushare
