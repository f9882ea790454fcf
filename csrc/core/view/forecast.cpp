#include "core/view/forecast.h"

#include <algorithm>

namespace gpushare {
namespace {

constexpr std::size_t kMostWork = 60'000;
constexpr Seconds kKeptForEach = 5e-6;  // so forecasts take about a fiftieth of the time
constexpr Seconds kCheap = 0.02;        // a forecast that is kept for less is made at each event
constexpr Seconds kForeseen = 10;       // before that, few sessions come that would be served first
constexpr Seconds kFarthest = 86'400;   // beyond it, a declaration says nothing: cells end before

// Whether cells of the user's other notebooks may go first because they declare less remaining
// work.
bool may_be_passed(const DeviceState& state, const Session& session) {
  return state.policy->by_remaining && std::ranges::any_of(state.sessions, [&](const auto& other) {
           return other.user == session.user && &other != &session && other.remaining_iterations;
         });
}

}  // namespace

std::optional<Forecast::Expected> Forecast::wait(const DeviceState& state, const Session& session,
                                                 Seconds now) {
  if (state.recovering || !session.request || (state.packs() && state.tuner.is_probing()))
    return std::nullopt;
  if (now < made_ || now > kept_) make(state, now);
  const auto begin = begins_.find(session.number);
  if (begin == begins_.end() || begin->second.turn != session.request->number) return std::nullopt;
  const Seconds wait = begin->second.at - now;
  if (wait < 0 || wait > kFarthest || (wait > kForeseen && may_be_passed(state, session)))
    return std::nullopt;
  return Expected{wait, begin->second.is_bound};
}

void Forecast::age() {
  if (kept_ - made_ < kCheap) *this = {};
}

void Forecast::make(const DeviceState& state, Seconds now) {
  Rehearsal rehearsal(state, now);
  rehearsal.run(kMostWork);
  made_ = now;
  kept_ = now + static_cast<double>(rehearsal.work()) * kKeptForEach;
  begins_ = rehearsal.begins();
}

}  // namespace gpushare
