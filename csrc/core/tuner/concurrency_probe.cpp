#include "core/tuner/concurrency_probe.h"

#include <algorithm>

namespace gpushare {

Seconds ConcurrencyProbe::cost(double speedup) const {
  Seconds cost = 0;
  for (const Step& step : steps_) cost += step.time * std::max(0.0, 1 - step.speedup / speedup);
  return cost;
}

}  // namespace gpushare
