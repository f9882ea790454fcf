// The devices of several hosts: how many there are, how many of each no gang has, and which of them
// a gang gets.
//
// Invariants, which is_valid() checks: on each host, devices are free or in use. If a host has lost
// devices that gangs still have, its count of free devices is negative.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace gpushare {

using DeviceCounts = std::vector<int>;  // of each host

// Devices that a gang wants at once.
struct Wish {
  int devices = 1;
  int hosts = 0;          // of at most this number of hosts; 0: of any
  bool together = false;  // of as few hosts as can be
};

int sum(const DeviceCounts& devices);
void add(DeviceCounts& to, const DeviceCounts& devices);
void subtract(DeviceCounts& from, const DeviceCounts& devices);
// The lesser of both for each host, and 0 where one is below.
DeviceCounts common(const DeviceCounts& one, const DeviceCounts& other);

bool fits(const Wish& wish, const DeviceCounts& within);
// Which of these devices the gang gets; empty where they are too few.
DeviceCounts choose(const Wish& wish, const DeviceCounts& within);

class DevicePool {
 public:
  // `hosts` has the number of devices of each host. Raises std::invalid_argument.
  explicit DevicePool(DeviceCounts hosts);

  const DeviceCounts& hosts() const { return hosts_; }
  DeviceCounts free() const { return common(free_, hosts_); }
  // Whether the hosts could hold it if all their devices were free, at the largest that each has
  // been.
  bool has_held(const Wish& wish) const { return fits(wish, most_); }

  // The hosts have these devices from now on; new hosts come last. Raises std::invalid_argument.
  void set_hosts(const DeviceCounts& hosts);
  void take(const DeviceCounts& holds) { subtract(free_, holds); }
  void give_back(const DeviceCounts& holds) { add(free_, holds); }

  // Empty, or what is wrong; `holds` has what each gang has.
  std::string is_valid(const std::vector<DeviceCounts>& holds) const;

 private:
  DeviceCounts hosts_, free_;
  DeviceCounts most_;  // that each host has had
};

}  // namespace gpushare
