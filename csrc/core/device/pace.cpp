#include "core/device/pace.h"

#include <algorithm>
#include <cmath>

namespace gpushare {
namespace {

constexpr double kNewest = 0.3;     // part of the mean that the last report has
constexpr double kSteady = 0.4;     // a spread of at most this part of the mean says something
constexpr double kTolerance = 0.3;  // part of the mean by which any iteration may be longer

}  // namespace

void Pace::add(std::int64_t iterations, Seconds seconds) {
  const Seconds one = seconds / static_cast<double>(iterations);
  const double part = seen_ == 0 ? 1 : kNewest;
  if (seen_ > 0) spread_ += part * (std::abs(one - mean_) - spread_);
  mean_ += part * (one - mean_);
  shortest_ = std::min(shortest_, one);
  longest_ = std::max(longest_, one);
  seen_ += iterations;
}

std::optional<Seconds> Pace::iteration() const {
  if (seen_ == 0 || mean_ <= 0 || spread_ > kSteady * mean_) return std::nullopt;
  return mean_;
}

Seconds Pace::longest() const {
  return std::min(longest_, mean_ + std::max(2 * spread_, kTolerance * mean_));
}

// The iterations before `after` end at `after` at the latest, and their number times `longest` is a
// second bound. Then one more long iteration follows.
Seconds Pace::latest(Seconds after, Seconds longest) const {
  const double before = std::floor(after / shortest_);
  return std::min(after, before * longest) + longest;
}

}  // namespace gpushare
