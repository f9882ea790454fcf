// The devices of several hosts: how many of each no gang has, and which of them a gang gets.
//
// What must stay true, and is_valid() looks at: on each host, devices are free or in use.
#pragma once

#include <string>
#include <vector>

namespace gpushare {

class DevicePool {
 public:
  // `hosts` has the number of devices of each host. Raises std::invalid_argument.
  explicit DevicePool(std::vector<int> hosts);

  int size() const;  // of all hosts
  int free() const;
  // Takes this many, no more than are free, and returns how many of each host. If `together`, of as
  // few hosts as can be.
  std::vector<int> take(int devices, bool together);
  void give_back(const std::vector<int>& holds);

  // Empty, or what is wrong; `holds` has what each gang has.
  std::string is_valid(const std::vector<std::vector<int>>& holds) const;

 private:
  std::vector<std::size_t> order(int devices, bool together) const;

  std::vector<int> hosts_, free_;
};

}  // namespace gpushare
