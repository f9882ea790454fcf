#include "core/device/session_validation.h"

#include <cmath>

#include "core/device/squeeze.h"
#include "core/model/validation.h"

namespace gpushare {

void check_demand(const Demand& demand, const LaneAllocator& lanes) {
  require(demand.persistent >= 0 && demand.ephemeral >= 0,
          "a demand in bytes must not be negative");
  check_options(demand);
  const Bytes floor = demand.options.empty() ? demand.ephemeral : floor_of(demand);
  if (lanes.fits_empty({demand.persistent, floor})) return;
  throw DemandTooLarge(demand.persistent, floor, lanes.capacity(), floor < demand.ephemeral);
}

void check_spec(const SessionSpec& spec, const LaneAllocator& lanes) {
  check_weight(spec.weight);
  check_iterations(spec.iterations);
  check_iterations(spec.remaining_iterations.value_or(0));
  require(std::isfinite(spec.device_seconds) && spec.device_seconds >= 0 &&
              std::isfinite(spec.waited_seconds) && spec.waited_seconds >= 0,
          "seconds of the past must be finite and not negative");
  check_paged_out(spec.paged_out_bytes);
  require(spec.squeezed_bytes >= 0, "the bytes of a squeezed iteration must not be negative");
  require(!spec.holding || !spec.waiting, "a session holds its turn or waits for it, not both");
  require(std::isfinite(spec.bears) && spec.bears >= 1,
          "the slowdown that a session bears must be finite and at least 1");
  check_demand(spec.demand, lanes);
}

}  // namespace gpushare
