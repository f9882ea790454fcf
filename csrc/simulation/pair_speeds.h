// How fast two jobs are that use one lane at the same time, found once for each pair and lane.
#pragma once

#include <array>
#include <map>

#include "simulation/simulated_job.h"

namespace gpushare {

class PairSpeeds {
 public:
  // Returns the speed of the first, as a part of its speed alone, while both compute in a lane of
  // these bytes and nothing else is on the device.
  double of(const SimulatedJob& job, const SimulatedJob& other, Bytes lane_bytes);

 private:
  struct Key {
    std::array<std::size_t, 4> cells;  // each job and its cell
    Bytes lane_bytes;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::array<double, 2>> known_;
};

}  // namespace gpushare
