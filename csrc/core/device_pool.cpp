#include "core/device_pool.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "core/validation.h"

namespace gpushare {
namespace {

constexpr std::int64_t kMostDevices = 1'000'000;  // so that no sum of them overflows

}  // namespace

DevicePool::DevicePool(std::vector<int> hosts) : hosts_(std::move(hosts)), free_(hosts_) {
  require(std::ranges::all_of(hosts_, [](int devices) { return devices > 0; }),
          "a host must have a device");
  const std::int64_t devices = std::accumulate(hosts_.begin(), hosts_.end(), std::int64_t{0});
  require(devices > 0 && devices <= kMostDevices,
          "there must be a host, and at most " + std::to_string(kMostDevices) + " devices");
}

int DevicePool::size() const { return std::accumulate(hosts_.begin(), hosts_.end(), 0); }
int DevicePool::free() const { return std::accumulate(free_.begin(), free_.end(), 0); }

std::vector<int> DevicePool::take(int devices, bool together) {
  std::vector<int> holds(hosts_.size(), 0);
  for (const std::size_t host : order(devices, together)) {
    holds[host] = std::min(devices, free_[host]);
    free_[host] -= holds[host];
    devices -= holds[host];
  }
  return holds;
}

// Together: the smallest gap on one host that holds all of them, else the largest gaps. Others fill
// the smallest.
std::vector<std::size_t> DevicePool::order(int devices, bool together) const {
  const bool one_host = std::ranges::max(free_) >= devices;
  std::vector<std::size_t> order(hosts_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t host) {
    const int free = free_[host];
    if (!together) return std::pair(false, free);
    return one_host ? std::pair(free < devices, free) : std::pair(false, -free);
  });
  return order;
}

void DevicePool::give_back(const std::vector<int>& holds) {
  for (std::size_t host = 0; host < hosts_.size(); ++host) free_[host] += holds[host];
}

std::string DevicePool::is_valid(const std::vector<std::vector<int>>& holds) const {
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    int used = 0;
    for (const std::vector<int>& held : holds) used += held[host];
    if (used + free_[host] != hosts_[host] || free_[host] < 0)
      return "devices of host " + std::to_string(host) + " are counted wrong";
  }
  return "";
}

}  // namespace gpushare
