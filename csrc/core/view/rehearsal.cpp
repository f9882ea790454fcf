#include "core/view/rehearsal.h"

#include <algorithm>
#include <cmath>

#include "core/device/turns.h"

namespace gpushare {
namespace {

constexpr std::size_t kWorkOfAPass = 8;   // beside that for each session
constexpr double kMostIterations = 1e15;  // of one turn, whatever is reported
constexpr double kRounding = 1e-6;        // of an iteration
constexpr Seconds kUnforeseen = 1;        // after a turn should have ended whose end is unknown

}  // namespace

Rehearsal::Rehearsal(const DeviceState& real, Seconds now)
    : state_(real), present_(now), now_(now) {
  if (state_.packs()) state_.rules.running_lanes = state_.tuner.lanes();  // and no probe begins
  for (const Session& session : state_.sessions) {
    if (session.turn) may_end(session);
    if (session.turn || session.request) longest_ = std::max(longest_, session.pace.longest());
    if (session.turn && is_known(session) && !is_late(session))
      running_.push_back(session.number);
    else if (session.turn && session.turn->asked)
      unknown_ = now_;
    if (wants_turn(session) && state_.has_place(session))
      waiting_[session.number] = session.request->number;
  }
}

void Rehearsal::run(std::size_t most_work) {
  while (!waiting_.empty() && work_ < most_work && !is_unknown() && step()) {
  }
}

bool Rehearsal::is_unknown() const { return now_ > unknown_ + kUnforeseen; }

bool Rehearsal::step() {
  const SessionNumber first = next_to_finish();
  const Seconds finished = first == kNoSession ? kNever : ends(state_.sessions.at(first));
  const Seconds awake = pass_.next_event(now_).value_or(kNever);
  if (std::min(finished, awake) == kNever) return false;
  now_ = std::max(now_, std::min(finished, awake));
  state_.advance(now_);
  if (finished <= awake)
    finish(state_.sessions.at(first));
  else
    enact(pass_.run());
  return true;
}

SessionNumber Rehearsal::next_to_finish() const {
  SessionNumber first = kNoSession;
  Seconds soonest = kNever;
  for (const SessionNumber number : running_)
    if (const Seconds end = ends(state_.sessions.at(number)); end < soonest) {
      soonest = end;
      first = number;
    }
  return first;
}

void Rehearsal::finish(Session& session) {
  Turns turns(state_);
  const TurnNumber turn = session.turn->number;
  std::erase(running_, session.number);
  if (const auto end = may_end_.find(session.number); end != may_end_.end())
    is_bound_ = is_bound_ || has_passed(end->second);
  turns.count(session, iterations(session));
  enact(pass_.run(turns.end(session)));
  if (session.remaining_iterations.value_or(1) > 0) request(session, turn + 1);
}

void Rehearsal::request(Session& session, TurnNumber turn) {
  Turns(state_).begin_wait(session, turn);
  enact(pass_.run());
}

// The turn that ends now.
std::int64_t Rehearsal::iterations(const Session& session) const {
  const double done = (now_ - session.turn->boundary) / *session.pace.iteration();
  // std::fmax turns the NaN of 0 / 0 into 0.
  return static_cast<std::int64_t>(std::fmin(std::fmax(std::round(done), 0.0), kMostIterations));
}

void Rehearsal::enact(const Decision& decision) {
  work_ += state_.sessions.size() + kWorkOfAPass;
  for (const Grant& grant : decision.grants) begins(state_.sessions.of(grant.session), grant.turn);
  for (const Yield& yield : decision.yields)
    if (std::ranges::find(running_, state_.sessions.of(yield.session).number) == running_.end())
      unknown_ = std::min(unknown_, now_);
}

void Rehearsal::begins(const Session& session, TurnNumber turn) {
  if (is_known(session)) running_.push_back(session.number);
  const bool is_bound = is_bound_ || std::ranges::any_of(may_end_, [&](const auto& cell) {
                          return state_.sessions.at(cell.first).turn && has_passed(cell.second);
                        });
  if (may_end(session)) is_bound_ = true;  // its cell goes on
  const auto waits = waiting_.find(session.number);
  if (waits == waiting_.end() || waits->second != turn) return;
  if (const auto is_in = state_.is_in_by(session); is_in && !is_unknown())
    begins_[session.number] = {turn, std::max(now_, *is_in) + (is_bound ? longest_ : 0), is_bound};
  waiting_.erase(waits);
}

// The turn ends at the boundary after it was asked to yield, or with the last iteration that it has
// declared.
Seconds Rehearsal::ends(const Session& session) const {
  const auto& turn = *session.turn;
  const Seconds one = *session.pace.iteration();
  Seconds end = kNever;
  if (session.remaining_iterations.value_or(0) > 0)
    end = boundary(session, static_cast<double>(*session.remaining_iterations));
  if (turn.asked) end = std::min(end, boundary(session, (*turn.asked - turn.boundary) / one));
  if (end >= present_) return end;
  return turn.asked ? latest(session, *turn.asked) : present_;
}

// A cell that has declared iterations ends with the last of them; any other may end at the next
// boundary of its turn, and at once if that boundary is not known. Returns true if it might already
// have ended in an earlier turn.
bool Rehearsal::may_end(const Session& session) {
  if (session.remaining_iterations.value_or(0) > 0) return false;
  const auto one = session.pace.iteration();
  const Seconds next =
      one ? boundary(session, (now_ - session.turn->boundary) / *one) : now_ - 2 * kSoon;
  return !may_end_.emplace(session.number, next).second;
}

// The time at which its turn has had this number of iterations, but at least one.
Seconds Rehearsal::boundary(const Session& session, double iterations) {
  const double whole = std::max(1.0, std::ceil(iterations - kRounding));
  return session.turn->boundary + whole * *session.pace.iteration();
}

// The latest time of its first boundary after `from`.
Seconds Rehearsal::latest(const Session& session, Seconds from) {
  const Seconds boundary = session.turn->boundary;
  return boundary + session.pace.latest(std::max(0.0, from - boundary), session.pace.longest());
}

// A session on several devices is not asked to yield one of them. The time to page in is only known
// once it was measured.
bool Rehearsal::is_known(const Session& session) const {
  return session.pace.iteration() && !session.alone && state_.is_in_by(session);
}

// Whether its present iteration has lasted longer than usual: otherwise it would have ended its
// turn, or have reported iterations, as it does now and then.
bool Rehearsal::is_late(const Session& session) const {
  const auto& turn = *session.turn;
  const Seconds says = turn.boundary + state_.rules.report;
  return present_ > latest(session, std::min(says, turn.asked.value_or(says))) + kSoon;
}

}  // namespace gpushare
