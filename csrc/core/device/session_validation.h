// Checks a session's statements against the device: raises as core/model/validation.h says.
#pragma once

#include "core/lanes/lane_allocator.h"
#include "core/model/types.h"

namespace gpushare {

// Raises DemandTooLarge for a demand that the empty device does not hold.
void check_demand(const Demand& demand, const LaneAllocator& lanes);
void check_spec(const SessionSpec& spec, const LaneAllocator& lanes);

}  // namespace gpushare
