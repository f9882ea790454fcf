#include "core/cluster/device_pool.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>

#include "core/model/validation.h"

namespace gpushare {
namespace {

constexpr std::int64_t kMostDevices = 1'000'000;  // so that no sum of them overflows

void check(const DeviceCounts& hosts) {
  require(std::ranges::all_of(hosts, [](int devices) { return devices >= 0; }),
          "a host must not have fewer devices than none");
  require(std::accumulate(hosts.begin(), hosts.end(), std::int64_t{0}) <= kMostDevices,
          "there must be at most " + std::to_string(kMostDevices) + " devices");
}

// Uses as few hosts as can be: the smallest gap on one host that holds all devices, else the
// largest gaps. Wishes for any hosts fill the smallest gaps.
std::vector<std::size_t> order(const Wish& wish, const DeviceCounts& within) {
  const bool one_host = fits({wish.devices, 1}, within);
  std::vector<std::size_t> order(within.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t host) {
    const int free = within[host];
    if (!wish.together && wish.hosts == 0) return std::pair(false, free);
    return one_host ? std::pair(free < wish.devices, free) : std::pair(false, -free);
  });
  return order;
}

}  // namespace

int sum(const DeviceCounts& devices) { return std::accumulate(devices.begin(), devices.end(), 0); }

void add(DeviceCounts& to, const DeviceCounts& devices) {
  std::ranges::transform(to, devices, to.begin(), std::plus{});
}

void subtract(DeviceCounts& from, const DeviceCounts& devices) {
  std::ranges::transform(from, devices, from.begin(), std::minus{});
}

DeviceCounts common(const DeviceCounts& one, const DeviceCounts& other) {
  DeviceCounts both(one.size());
  std::ranges::transform(one, other, both.begin(),
                         [](int a, int b) { return std::max(0, std::min(a, b)); });
  return both;
}

bool fits(const Wish& wish, const DeviceCounts& within) {
  const auto hosts = static_cast<std::size_t>(wish.hosts);
  if (hosts == 0 || hosts >= within.size()) return sum(within) >= wish.devices;
  DeviceCounts largest = within;
  const auto end = largest.begin() + wish.hosts;
  std::ranges::nth_element(largest, end, std::greater{});
  return std::accumulate(largest.begin(), end, 0) >= wish.devices;
}

DeviceCounts choose(const Wish& wish, const DeviceCounts& within) {
  if (!fits(wish, within)) return {};
  DeviceCounts holds(within.size(), 0);
  int missing = wish.devices;
  for (const std::size_t host : order(wish, within)) {
    holds[host] = std::min(missing, within[host]);
    missing -= holds[host];
  }
  return holds;
}

DevicePool::DevicePool(DeviceCounts hosts)
    : hosts_(std::move(hosts)), free_(hosts_), most_(hosts_) {
  check(hosts_);
}

void DevicePool::set_hosts(const DeviceCounts& hosts) {
  require(hosts.size() >= hosts_.size(), "a host is never forgotten; a lost one has no devices");
  check(hosts);
  DeviceCounts most = most_;
  most.resize(hosts.size(), 0);
  std::ranges::transform(hosts, most, most.begin(), [](int a, int b) { return std::max(a, b); });
  check(most);
  hosts_.resize(hosts.size(), 0);
  free_.resize(hosts.size(), 0);
  subtract(free_, hosts_);
  add(free_, hosts);
  hosts_ = hosts;
  most_ = std::move(most);
}

std::string DevicePool::is_valid(const std::vector<DeviceCounts>& holds) const {
  DeviceCounts counted = free_;
  for (const DeviceCounts& held : holds) add(counted, held);
  const auto wrong = std::ranges::mismatch(counted, hosts_);
  if (wrong.in1 == counted.end()) return "";
  return "devices of host " + std::to_string(wrong.in1 - counted.begin()) + " are counted wrong";
}

}  // namespace gpushare
