#include "core/view/forecast.h"

#include <algorithm>

#include "core/view/longest_wait.h"
#include "core/view/rehearsal.h"

namespace gpushare {
namespace {

constexpr std::size_t kMostWork = 60'000;
constexpr Seconds kKeptForEach = 5e-6;    // so forecasts take about a fiftieth of the time
constexpr Seconds kCheap = 0.02;          // what is kept for less is made anew at each event
constexpr Seconds kShort = 1, kLong = 5;  // a short wait, and one that is not "soon"
constexpr Seconds kForeseen = 10;  // before that, few sessions come that would be served first
// A forecast answers for a time in which waits become shorter.
constexpr Seconds kMostKept = kMostWork * kKeptForEach;
constexpr Seconds kBecomesShort = kShort + kMostKept, kHorizon = kLong + kMostKept;

// Whether cells of the user's other notebooks may go first because they declare less remaining
// work.
bool may_be_passed(const DeviceState& state, const Session& session) {
  return state.policy->by_remaining && std::ranges::any_of(state.sessions, [&](const auto& other) {
           return other.user == session.user && &other != &session && other.remaining_iterations;
         });
}

}  // namespace

std::optional<Seconds> Forecast::wait(const DeviceState& state, const Session& session,
                                      Seconds now) {
  if (state.recovering || !session.request || (state.packs() && state.tuner.is_probing()))
    return std::nullopt;
  if (now < made_ || now > kept_) make(state, now);
  const auto begin = begins_.find(session.number);
  if (begin == begins_.end() || begin->second.turn != session.request->number) return std::nullopt;
  const std::optional<Seconds> wait = promised(begin->second, now);
  return wait > kForeseen && may_be_passed(state, session) ? std::nullopt : wait;
}

std::optional<Seconds> Forecast::promised(const Begin& begin, Seconds now) {
  if (begin.usual < now) return std::nullopt;
  const Seconds wait = begin.usual - now;
  return wait < kShort && begin.worst - now > kLong ? std::nullopt : std::optional(wait);
}

void Forecast::age() {
  if (kept_ - made_ < kCheap) *this = {};
}

void Forecast::make(const DeviceState& state, Seconds now) {
  Rehearsal rehearsal(state, now);
  rehearsal.run(kMostWork);
  made_ = now;
  kept_ = now + static_cast<double>(rehearsal.work()) * kKeptForEach;
  begins_.clear();
  for (const auto& [number, begin] : rehearsal.begins())
    begins_[number] = {begin.turn, begin.at, kNever};
  bound_those_that_begin_soon(state);
}

void Forecast::bound_those_that_begin_soon(const DeviceState& state) {
  std::optional<LongestWait> longest;  // made for the first of them
  for (auto& [number, begin] : begins_) {
    if (begin.usual >= made_ + kBecomesShort) continue;
    if (!longest) longest.emplace(state, made_, kHorizon);
    begin.worst = std::max(begin.usual, made_ + longest->of(state.sessions.at(number)));
  }
}

}  // namespace gpushare
