// The record of a simulation: its finished turns, and the use of the memory of each device.
#pragma once

#include <vector>

#include "core/host/host_devices.h"
#include "core/model/types.h"

namespace gpushare {

struct TurnTaken {
  std::size_t job = 0;
  std::size_t device = 0;
  LaneId lane = kNoLane;
  Seconds began = 0, ended = 0;
};

// It holds from `time` until the next one of the device.
struct MemoryUse {
  Seconds time = 0;
  std::size_t device = 0;
  Bytes persistent = 0, lanes = 0;
};

class SimulationRecord {
 public:
  void add(const TurnTaken& turn) { turns_.push_back(turn); }
  // Notes where the free memory has changed. A device that no session has used is left out.
  void follow(const HostDevices& devices, Seconds now);

  const std::vector<TurnTaken>& turns() const { return turns_; }
  const std::vector<MemoryUse>& memory() const { return memory_; }

 private:
  std::vector<TurnTaken> turns_;
  std::vector<MemoryUse> memory_;
  std::vector<Bytes> free_;  // of each device, as it was noted last; -1: not yet
};

}  // namespace gpushare
