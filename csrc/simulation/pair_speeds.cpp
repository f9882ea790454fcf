#include "simulation/pair_speeds.h"

#include <algorithm>

#include "simulation/together.h"

namespace gpushare {
namespace {

// A job that is squeezed, or was measured with less, has no more than the lane.
IterationCurve curve_of(const SimulatedJob& job, Bytes lane_bytes) {
  IterationCurve curve{job.present_cell().iteration, job.job.curve, job.job.load};
  for (Bytes& bytes : curve.bytes) bytes = std::min(bytes, lane_bytes);
  return curve;
}

}  // namespace

double PairSpeeds::of(const SimulatedJob& job, const SimulatedJob& other, Bytes lane_bytes) {
  const bool is_first = job.number < other.number;
  const SimulatedJob &first = is_first ? job : other, &second = is_first ? other : job;
  const Key key{{first.number, first.cell, second.number, second.cell}, lane_bytes};
  const auto [found, is_new] = known_.try_emplace(key);
  if (is_new) {
    found->second =
        together(curve_of(first, lane_bytes), curve_of(second, lane_bytes), lane_bytes).speeds;
  }
  return found->second[is_first ? 0 : 1];
}

}  // namespace gpushare
