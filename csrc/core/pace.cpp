#include "core/pace.h"

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
  seen_ += iterations;
}

std::optional<Seconds> Pace::iteration() const {
  if (seen_ == 0 || mean_ <= 0 || spread_ > kSteady * mean_) return std::nullopt;
  return mean_;
}

Seconds Pace::longest() const { return mean_ + std::max(2 * spread_, kTolerance * mean_); }

}  // namespace gpushare
