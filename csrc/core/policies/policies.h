// One file each; the table is in policy.cpp.
#pragma once

#include <algorithm>

#include "core/policy.h"

namespace gpushare {

extern const Policy fair, fifo, srtf, pack, las, classroom;

// A turn of a policy that changes over after each quantum, at the next boundary.
inline std::optional<Seconds> quantum_left(const Candidate& candidate, Seconds quantum) {
  return std::max(0.0, std::max(quantum, candidate.iteration.value_or(0)) - candidate.running);
}

}  // namespace gpushare
