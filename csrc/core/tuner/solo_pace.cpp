#include "core/tuner/solo_pace.h"

#include <utility>

namespace gpushare {
namespace {

// Counted in quanta, since sessions are seen at the ends of their turns.
constexpr double kAlone = 1.5;  // until the pace is known
constexpr double kRemembered = 16;

}  // namespace

std::optional<SoloPace::Interval> SoloPace::report(Seconds now, std::int64_t iterations,
                                                   Seconds seconds) {
  unreported_ += seconds;
  if (iterations == 0) return std::nullopt;
  const Seconds since = std::exchange(reported_, now);
  return Interval{since, static_cast<double>(iterations), std::exchange(unreported_, 0)};
}

void SoloPace::count(const Interval& alone, Seconds now, Seconds since, Seconds quantum) {
  if (alone.seconds <= 0) return;
  if (seen_ < since) forget();
  if (seconds_ >= kRemembered * quantum) {
    iterations_ /= 2;
    seconds_ /= 2;
  }
  iterations_ += alone.iterations;
  seconds_ += alone.seconds;
  seen_ = now;
}

bool SoloPace::is_known(Seconds quantum) const {
  return iterations_ >= 2 && seconds_ >= kAlone * quantum;
}

}  // namespace gpushare
