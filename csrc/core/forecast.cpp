// Expected waits: a copy of the scheduler is run from now on in virtual time.
//
// A session that runs computes at its pace, gives its turn back at the first boundary after it was
// asked to yield, and requests the next one at once; it ends with the iterations that it has
// declared, if it has. So everything that decides over turns decides over the forecast: the policy,
// quanta, what is owed to others, priorities, lanes. No other session is assumed to come, and none
// that waits for memory.
//
// A wait is absent where a turn with an unknown end comes first: that of a session without a known
// pace, or of one whose iteration lasts longer than usual. It is absent too during a probe, since
// the number of lanes after it is unknown.
//
// "Soon" is a promise: where a wait of less than kShort could last for kLong, by what
// longest_wait.h says, it is absent too.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/longest_wait.h"
#include "core/scheduler.h"

namespace gpushare {
namespace {

// Work is counted in passes times sessions, which take about 0.1 us each.
constexpr std::size_t kMostWork = 60'000;
constexpr std::size_t kWorkOfAPass = 8;  // beside that for each session
constexpr Seconds kKeptForEach = 5e-6;   // so forecasts take about a fiftieth of the time
constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
constexpr double kMostIterations = 1e15;  // of one turn, whatever is reported
constexpr double kRounding = 1e-6;        // of an iteration
constexpr Seconds kShort = 1, kLong = 5;  // a short wait, and one that is not "soon"
constexpr Seconds kForeseen = 10;  // before that, few sessions come that would be served first
// A forecast answers for a time in which waits become shorter.
constexpr Seconds kMostKept = kMostWork * kKeptForEach;
constexpr Seconds kBecomesShort = kShort + kMostKept, kHorizon = kLong + kMostKept;

}  // namespace

class Rehearsal {
 public:
  using Begins = std::unordered_map<SessionNumber, Scheduler::Begin>;

  Rehearsal(const Scheduler& real, Seconds now);
  // Runs until all waiting sessions have begun, or `most_work` is done.
  void run(std::size_t most_work);

  const Begins& begins() const { return begins_; }
  std::size_t work() const { return work_; }

 private:
  bool step();
  SessionNumber next_to_finish() const;
  void finish(SessionNumber number);
  void count(Session& session) const;
  void enact(const Decision& decision);
  void begins(SessionNumber number, TurnNumber turn);
  Seconds ends(const Session& session) const;
  static Seconds latest(const Session& session, Seconds from);
  bool is_known(const Session& session) const;
  bool is_late(const Session& session) const;

  std::unique_ptr<Scheduler> it_;
  const Seconds present_;
  Seconds now_;
  std::vector<SessionNumber> running_;  // sessions with a known end of their turn
  std::unordered_map<SessionNumber, TurnNumber> waiting_;
  Begins begins_;
  std::size_t work_ = 0;
};

Rehearsal::Rehearsal(const Scheduler& real, Seconds now)
    : it_(real.copy()), present_(now), now_(now) {
  if (it_->packs()) it_->rules_.running_lanes = it_->tuner_.lanes();  // and no probe begins
  for (const auto& [number, session] : it_->sessions_) {
    if (session.turn && is_known(session) && !is_late(session)) running_.push_back(number);
    if (wants_turn(session) && it_->lanes_.contains(number))
      waiting_[number] = session.request->number;
  }
}

void Rehearsal::run(std::size_t most_work) {
  while (!waiting_.empty() && work_ < most_work && step()) {
  }
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
  // std::fmax turns the NaN of 0 / 0 into 0.
  const auto iterations =
      static_cast<std::int64_t>(std::fmin(std::fmax(std::round(done), 0.0), kMostIterations));
  session.iterations += std::min(iterations, kAll - session.iterations);
  if (session.remaining_iterations)
    *session.remaining_iterations -= std::min(iterations, *session.remaining_iterations);
}

void Rehearsal::enact(const Decision& decision) {
  work_ += it_->sessions_.size() + kWorkOfAPass;
  for (const Grant& grant : decision.grants) begins(it_->numbers_.at(grant.session), grant.turn);
}

void Rehearsal::begins(SessionNumber number, TurnNumber turn) {
  const Session& session = it_->sessions_.at(number);
  if (is_known(session)) running_.push_back(number);
  const auto waits = waiting_.find(number);
  if (waits == waiting_.end() || waits->second != turn) return;
  if (const auto is_in = it_->is_in_by(session))
    begins_[number] = {turn, std::max(now_, *is_in), kNever};
  waiting_.erase(waits);
}

// The turn ends at the boundary after it was asked to yield, or with the last iteration that it has
// declared.
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
  return turn.asked ? latest(session, *turn.asked) : present_;
}

// The latest time of its first boundary after `from`.
Seconds Rehearsal::latest(const Session& session, Seconds from) {
  const Seconds boundary = session.turn->boundary;
  return boundary + session.pace.latest(std::max(0.0, from - boundary), session.pace.longest());
}

// One that has several devices is not asked for one of them. How long it takes to page in is only
// known once that was measured.
bool Rehearsal::is_known(const Session& session) const {
  return session.pace.iteration() && !session.alone && it_->is_in_by(session);
}

// Whether its present iteration has lasted longer than usual: else it would have ended its turn, or
// have said that iterations go on, as it does now and then.
bool Rehearsal::is_late(const Session& session) const {
  const auto& turn = *session.turn;
  const Seconds says = turn.boundary + it_->rules_.report;
  return present_ > latest(session, std::min(says, turn.asked.value_or(says))) + kSoon;
}

Scheduler::Forecast Scheduler::forecast(Seconds now) const {
  Rehearsal rehearsal(*this, now);
  rehearsal.run(kMostWork);
  Forecast forecast{now, now + static_cast<double>(rehearsal.work()) * kKeptForEach,
                    rehearsal.begins()};
  bound_those_that_begin_soon(forecast);
  return forecast;
}

void Scheduler::bound_those_that_begin_soon(Forecast& forecast) const {
  std::optional<LongestWait> longest;  // made for the first of them
  for (auto& [number, begin] : forecast.begins) {
    if (begin.usual >= forecast.made + kBecomesShort) continue;
    if (!longest) longest.emplace(*this, forecast.made, kHorizon);
    begin.worst = std::max(begin.usual, forecast.made + longest->of(number));
  }
}

// The session must have a place and wait for a turn.
std::optional<Seconds> Scheduler::expected_wait(const Session& session, Seconds now) const {
  if (recovering_ || !session.request || (packs() && tuner_.is_probing())) return std::nullopt;
  if (now < forecast_.made || now > forecast_.kept) forecast_ = forecast(now);
  const auto found = forecast_.begins.find(numbers_.at(session.id));
  if (found == forecast_.begins.end()) return std::nullopt;
  const Begin& begin = found->second;
  if (begin.turn != session.request->number || begin.usual < now) return std::nullopt;
  const Seconds wait = begin.usual - now;
  if (wait > kForeseen && may_be_overtaken(session)) return std::nullopt;
  return wait < kShort && begin.worst - now > kLong ? std::nullopt : std::optional(wait);
}

// Whether cells of the user's other notebooks may go first because they declare less remaining
// work.
bool Scheduler::may_be_overtaken(const Session& session) const {
  return policy_->by_remaining && std::ranges::any_of(sessions_, [&](const Entry& other) {
           return other.second.user == session.user && &other.second != &session &&
                  other.second.remaining_iterations;
         });
}

}  // namespace gpushare
