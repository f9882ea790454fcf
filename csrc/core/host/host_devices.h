// The devices of a host: a scheduler for each, and which of them a newcomer goes on.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/host/scheduler.h"
#include "core/model/types.h"
#include "core/shares/fair_shares.h"

namespace gpushare {

using DeviceNumber = std::size_t;  // they are numbered as they were named

struct DeviceSpec {
  std::string name;
  Bytes capacity = 0;
  Bytes least_chunk = 1;  // of a lane that two sessions use at once
};

struct Device {
  std::string name;
  Bytes capacity = 0;
  Scheduler scheduler;
  FairShares::Weights groups = {}, users = {};
};

class HostDevices {
 public:
  // Raises std::invalid_argument: no devices, or two of one name.
  HostDevices(const std::vector<DeviceSpec>& devices, std::string_view policy, const Rules& rules);

  // Raises std::invalid_argument where there is none of this name.
  DeviceNumber number_of(const std::string& device) const;
  const Device& operator[](DeviceNumber device) const { return devices_[device]; }
  const DeviceState& state(DeviceNumber device) const { return devices_[device].scheduler.state(); }
  std::size_t size() const { return devices_.size(); }
  auto begin() const { return devices_.begin(); }
  auto end() const { return devices_.end(); }

  // The `count` best of these devices for a newcomer, in the order in which they are named. Devices
  // where the demand finds room now come first; among them, those with most free memory for each
  // session, the newcomer included; among equals, the first. A session's demand is seldom known
  // when it opens, so sessions that come together spread over the devices. Raises
  // std::invalid_argument where there are fewer devices than `count`.
  std::vector<std::string> place(const std::vector<std::string>& among, const Demand& demand,
                                 std::size_t count) const;

  // All events of a scheduler pass here, which marks the next event of that device as stale.
  template <class Event>
  Decision tell(DeviceNumber device, const Event& event) {
    Decision made = event(devices_[device].scheduler);
    wakes_[device].touched = true;
    return made;
  }
  // Whether an event or time alone has changed something there since it was looked at last.
  bool is_due(DeviceNumber device, Seconds now) const {
    return wakes_[device].touched || wakes_[device].at <= now;
  }
  Seconds next_event(Seconds now) const;

  void weigh(DeviceNumber device, FairShares::Weights groups, FairShares::Weights users);
  FairShares::Weights mean(FairShares::Weights Device::* weights) const;

  std::string is_valid() const;  // empty, or the first broken invariant in words

 private:
  // When time alone changes something there, unless an event has touched it since.
  struct Wake {
    Seconds at = kNever;
    bool touched = false;
  };

  std::vector<Device> devices_;
  std::unordered_map<std::string, DeviceNumber> numbers_;
  mutable std::vector<Wake> wakes_;
};

}  // namespace gpushare
