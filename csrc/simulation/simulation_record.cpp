#include "simulation/simulation_record.h"

namespace gpushare {

void SimulationRecord::follow(const HostDevices& devices, Seconds now) {
  free_.resize(devices.size(), -1);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const DeviceState& there = devices.state(i);
    const Bytes free = there.lanes.free();
    const bool was_used = free_[i] >= 0 || there.sessions.size() > 0;
    if (!was_used || free == free_[i]) continue;
    free_[i] = free;
    const Bytes used = there.lanes.capacity() - free, persistent = there.lanes.table().persistent();
    memory_.push_back({now, i, persistent, used - persistent});
  }
}

}  // namespace gpushare
