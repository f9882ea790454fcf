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
//
// "Soon" is a promise, so it is tried at worst too: each iteration takes as long as the longest one
// of its session did, and cells begin at once in all sessions that are open and idle. Once all
// cells go on, and once each ends with its iteration, since then another one of its user may be
// next. Where a wait of less than kShort could so last for kLong, it is absent too.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/scheduler.h"

namespace gpushare {
namespace {

// Work is counted in passes times sessions, which take about 0.1 us each.
constexpr std::size_t kMostWork = 60'000, kMostAtWorst = kMostWork / 4;
constexpr std::size_t kWorkOfAPass = 8;  // beside that for each session
constexpr Seconds kKeptForEach = 5e-6;   // so forecasts take about a fiftieth of the time
constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
constexpr double kMostIterations = 1e15;  // of one turn, whatever somebody reports
constexpr double kRounding = 1e-6;        // of an iteration
constexpr Seconds kShort = 1, kLong = 5;  // a wait, and one that nobody calls soon
// A forecast answers for a time in which waits become shorter.
constexpr Seconds kMostKept = (kMostWork + 2 * kMostAtWorst) * kKeptForEach;
constexpr Seconds kBecomesShort = kShort + kMostKept, kHorizon = kLong + kMostKept;

}  // namespace

class Rehearsal {
 public:
  enum class Future { usual, worst, worst_and_cells_end };
  using Begins = std::unordered_map<SessionNumber, Scheduler::Begin>;

  Rehearsal(const Scheduler& real, Seconds now, Future future);
  // Until all of those who wait have begun, or this time, or so much work is done.
  void run(Seconds until, std::size_t most_work);
  // Of those who wait, only of these.
  void care_only_for(const Begins& those);

  const Begins& begins() const { return begins_; }
  std::size_t work() const { return work_; }

 private:
  void begin_all_cells();
  bool step(Seconds until);
  SessionNumber next_to_finish() const;
  void finish(SessionNumber number);
  bool goes_on(const Session& session) const;
  void count(Session& session) const;
  void enact(const Decision& decision);
  void begins(SessionNumber number, TurnNumber turn);
  Seconds ends(const Session& session) const;
  std::optional<Seconds> iteration(const Session& session) const;
  Seconds latest(const Session& session, Seconds from) const;
  bool is_known(const Session& session) const;
  bool is_late(const Session& session) const;

  std::unique_ptr<Scheduler> it_;
  const Future future_;
  const Seconds present_;
  Seconds now_;
  std::vector<SessionNumber> running_;  // of whom it is known when they end
  std::unordered_map<SessionNumber, TurnNumber> waiting_;
  Begins begins_;
  std::size_t work_ = 0;
};

Rehearsal::Rehearsal(const Scheduler& real, Seconds now, Future future)
    : it_(real.copy()), future_(future), present_(now), now_(now) {
  if (it_->packs()) it_->rules_.running_lanes = it_->tuner_.lanes();  // and no probe begins
  for (const auto& [number, session] : it_->sessions_) {
    if (session.turn && is_known(session) && !is_late(session)) running_.push_back(number);
    if (wants_turn(session) && it_->lanes_.contains(number))
      waiting_[number] = session.request->number;
  }
  if (future_ != Future::usual) begin_all_cells();
}

// Those who wait or run already are in one.
void Rehearsal::begin_all_cells() {
  it_->happen(now_);
  for (auto& [number, session] : it_->sessions_) {
    if (session.turn || session.request || session.paused || is_held(session)) continue;
    it_->begin_cell(session);
    it_->begin_wait(session, session.last_turn + 1);
  }
  enact(it_->assign(now_));
}

void Rehearsal::care_only_for(const Begins& those) {
  std::erase_if(waiting_, [&](const auto& waits) { return !those.contains(waits.first); });
}

void Rehearsal::run(Seconds until, std::size_t most_work) {
  while (!waiting_.empty() && work_ < most_work && step(until)) {
  }
}

bool Rehearsal::step(Seconds until) {
  const SessionNumber first = next_to_finish();
  const Seconds finished = first == kNobody ? kNever : ends(it_->sessions_.at(first));
  const Seconds awake = it_->next_event(now_).value_or(kNever);
  if (std::min(finished, awake) == kNever || std::min(finished, awake) > until) return false;
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
  if (goes_on(session)) enact(it_->request(now_, session.id, turn + 1));
}

bool Rehearsal::goes_on(const Session& session) const {
  if (future_ == Future::usual) return session.remaining_iterations.value_or(1) > 0;
  return future_ == Future::worst;
}

void Rehearsal::count(Session& session) const {
  const double done = (now_ - session.turn->boundary) / *iteration(session);
  // Of no time at no time an iteration, which is no number, fmax makes 0.
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

// At the boundary after it was asked to yield, or with the last iteration that it has declared. At
// worst an iteration began just before it was asked. Where cells end, who runs is at its last
// boundary now.
Seconds Rehearsal::ends(const Session& session) const {
  const auto& turn = *session.turn;
  const Seconds one = *iteration(session);
  if (future_ == Future::worst_and_cells_end)
    return turn.since < present_ ? present_ : turn.boundary + one;
  const auto boundary = [&](double iterations) {
    return turn.boundary + std::max(1.0, std::ceil(iterations - kRounding)) * one;
  };
  Seconds end = kNever;
  if (session.remaining_iterations.value_or(0) > 0)
    end = boundary(static_cast<double>(*session.remaining_iterations));
  if (turn.asked && future_ != Future::usual) return std::min(end, latest(session, *turn.asked));
  if (turn.asked) end = std::min(end, boundary((*turn.asked - turn.boundary) / one));
  if (end >= present_) return end;
  return turn.asked ? latest(session, *turn.asked) : present_;
}

std::optional<Seconds> Rehearsal::iteration(const Session& session) const {
  return future_ != Future::usual ? session.pace.worst() : session.pace.iteration();
}

// Its first boundary from then on.
Seconds Rehearsal::latest(const Session& session, Seconds from) const {
  const bool is_worst = future_ != Future::usual;
  const Seconds longest = is_worst ? *session.pace.worst() : session.pace.longest();
  const Seconds boundary = session.turn->boundary;
  return boundary + session.pace.latest(std::max(0.0, from - boundary), longest);
}

// One that has several devices is not asked for one of them. How long it takes to page in is only
// known once that was measured.
bool Rehearsal::is_known(const Session& session) const {
  return iteration(session) && !session.alone && it_->is_in_by(session);
}

// Its present iteration has lasted longer than usual: else it would have ended its turn, or have
// said that iterations go on, as it does now and then.
bool Rehearsal::is_late(const Session& session) const {
  const auto& turn = *session.turn;
  const Seconds says = turn.boundary + it_->rules_.report;
  return present_ > latest(session, std::min(says, turn.asked.value_or(says))) + kSoon;
}

Scheduler::Forecast Scheduler::forecast(Seconds now) const {
  Rehearsal usual(*this, now, Rehearsal::Future::usual);
  usual.run(kNever, kMostWork);
  Forecast forecast{now, now, usual.begins()};
  const std::size_t work = usual.work() + try_at_worst(forecast);
  forecast.kept = now + static_cast<double>(work) * kKeptForEach;
  return forecast;
}

// Of those who begin soon, as long as no future is found in which that takes long.
std::size_t Scheduler::try_at_worst(Forecast& forecast) const {
  using Future = Rehearsal::Future;
  auto soon = forecast.begins;
  std::erase_if(
      soon, [&](const auto& entry) { return entry.second.usual >= forecast.made + kBecomesShort; });
  for (const auto& [number, begin] : soon) forecast.begins[number].worst = begin.usual;
  std::size_t work = 0;
  for (const auto future : {Future::worst_and_cells_end, Future::worst}) {
    if (soon.empty()) break;
    Rehearsal worst(*this, forecast.made, future);
    worst.care_only_for(soon);
    worst.run(forecast.made + kHorizon, kMostAtWorst);
    work += worst.work();
    std::erase_if(soon, [&](const auto& entry) {
      const auto found = worst.begins().find(entry.first);
      Seconds& latest = forecast.begins[entry.first].worst;
      latest = found == worst.begins().end() ? kNever : std::max(latest, found->second.usual);
      return latest == kNever;
    });
  }
  return work;
}

// Of one that has a place and waits for a turn.
std::optional<Seconds> Scheduler::expected_wait(const Session& session, Seconds now) const {
  if (recovering_ || !session.request || (packs() && tuner_.is_probing())) return std::nullopt;
  if (now < forecast_.made || now > forecast_.kept) forecast_ = forecast(now);
  const auto found = forecast_.begins.find(numbers_.at(session.id));
  if (found == forecast_.begins.end()) return std::nullopt;
  const Begin& begin = found->second;
  if (begin.turn != session.request->number || begin.usual < now) return std::nullopt;
  const Seconds wait = begin.usual - now;
  return wait < kShort && begin.worst - now > kLong ? std::nullopt : std::optional(wait);
}

}  // namespace gpushare
