#include "core/host/host_devices.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/model/validation.h"

namespace gpushare {
HostDevices::HostDevices(const std::vector<DeviceSpec>& devices, std::string_view policy,
                         const Rules& rules)
    : wakes_(devices.size()) {
  require(!devices.empty(), "a host must have a device");
  for (const DeviceSpec& device : devices) {
    require(numbers_.emplace(device.name, devices_.size()).second,
            "two devices are called '" + device.name + "'");
    devices_.push_back({device.name, device.capacity,
                        Scheduler(device.capacity, policy, rules, device.least_chunk)});
  }
}

DeviceNumber HostDevices::number_of(const std::string& device) const {
  const auto number = numbers_.find(device);
  require(number != numbers_.end(), "there is no device '" + device + "' here");
  return number->second;
}

std::vector<std::string> HostDevices::place(const std::vector<std::string>& among,
                                            const Demand& demand, std::size_t count) const {
  require(count > 0 && count <= among.size(), std::to_string(count) + " devices at once are not " +
                                                  "to be had of " + std::to_string(among.size()));
  const auto worth = [&](const std::string& device) {
    const DeviceState& there = state(number_of(device));
    const Bytes free = there.lanes.free();
    const auto sessions = static_cast<double>(there.sessions.size() + 1);
    return std::pair(free - demand.persistent >= demand.ephemeral,
                     static_cast<double>(free) / sessions);
  };
  std::vector<std::pair<bool, double>> worths;
  std::ranges::transform(among, std::back_inserter(worths), worth);
  std::vector<std::size_t> best(among.size());
  std::iota(best.begin(), best.end(), 0);
  std::ranges::stable_sort(best, std::greater{}, [&](std::size_t i) { return worths[i]; });
  best.resize(count);
  std::ranges::sort(best);
  std::vector<std::string> chosen;
  for (const std::size_t i : best) chosen.push_back(among[i]);
  return chosen;
}

Seconds HostDevices::next_event(Seconds now) const {
  Seconds next = kNever;
  for (DeviceNumber device = 0; device < devices_.size(); ++device) {
    Wake& wake = wakes_[device];
    if (std::exchange(wake.touched, false))
      wake.at = devices_[device].scheduler.next_event(now).value_or(kNever);
    next = std::min(next, wake.at);
  }
  return next;
}

void HostDevices::weigh(DeviceNumber device, FairShares::Weights groups,
                        FairShares::Weights users) {
  devices_[device].groups = std::move(groups);
  devices_[device].users = std::move(users);
}

FairShares::Weights HostDevices::mean(FairShares::Weights Device::* weights) const {
  FairShares::Weights sums;
  for (const Device& device : devices_)
    for (const auto& [name, weight] : device.*weights) sums[name] += weight - 1;
  for (auto& [name, sum] : sums) sum = 1 + sum / static_cast<double>(devices_.size());
  return sums;
}

std::string HostDevices::is_valid() const {
  for (const Device& device : devices_)
    if (const std::string broken = device.scheduler.is_valid(); !broken.empty())
      return device.name + ": " + broken;
  return "";
}

}  // namespace gpushare
