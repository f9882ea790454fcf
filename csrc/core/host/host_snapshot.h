// A device as people see it: what its scheduler shows, completed for gangs. It reads what is known
// and changes nothing.
#pragma once

#include <string>
#include <vector>

#include "core/host/host_devices.h"
#include "core/host/host_gangs.h"
#include "core/model/types.h"

namespace gpushare {

class HostSnapshot {
 public:
  HostSnapshot(const HostDevices& devices, const HostGangs& gangs, Seconds now)
      : devices_(devices), gangs_(gangs), now_(now) {}

  DeviceSnapshot take(DeviceNumber device) const;

 private:
  using Gang = HostGangs::Gang;

  void complete(SessionState& state, const Gang& gang, DeviceNumber device, int last) const;
  void complete_waiting(SessionState& state, const Gang& gang, int last) const;
  void forget_waits_behind_gangs(std::vector<SessionState>& sessions) const;
  std::string names_of(const Gang& gang) const;
  Why why_it_waits(const Gang& gang) const;
  Why obstacle(const Gang& gang, DeviceNumber device) const;

  const HostDevices& devices_;
  const HostGangs& gangs_;
  const Seconds now_;
};

}  // namespace gpushare
