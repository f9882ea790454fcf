#include "core/cluster/cluster_pass.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace gpushare {

ClusterPass::ClusterPass(const DevicePool& pool, const GangRules& rules,
                         std::vector<const GangProgress*> order)
    : rules_(rules),
      order_(std::move(order)),
      chosen_(order_.size()),
      asked_(order_.size()),
      hosts_(pool.hosts()),
      free_(pool.free()),
      left_(hosts_),
      reserved_(left_.size(), 0),
      left_in_all_(sum(left_)) {
  for (std::size_t each = 0; each < order_.size(); ++each) {
    if (!order_[each]->holds.empty()) holders_.push_back(each);
    asked_[each] = order_[each]->asked;
  }
  choose_kept();
  choose_in_order();
}

void ClusterPass::choose_kept() {
  for (const std::size_t each : holders_)
    if (keeps(*order_[each])) chosen_[each] = take(order_[each]->holds);
}

bool ClusterPass::keeps(const GangProgress& gang) const {
  return gang.gang.stays || (!gang.asked && is_young(gang, rules_));
}

void ClusterPass::choose_in_order() {
  for (std::size_t each = 0; each < order_.size(); ++each) {
    if (chosen_[each]) continue;
    if (order_[each]->wants)
      choose_waiting(each);
    else
      choose_running(each);
  }
}

void ClusterPass::choose_running(std::size_t index) {
  chosen_[index] = take(order_[index]->holds);
  if (chosen_[index] || asked_[index]) return;
  asked_[index] = true;
  yields_.push_back(index);
}

// With thousands of waiting gangs, most return at the first check. At most one gang for each device
// passes it, except gangs that fail the second check, which looks at the hosts.
void ClusterPass::choose_waiting(std::size_t index) {
  const Gang& gang = order_[index]->gang;
  if (gang.devices > left_in_all_) return skip(index);
  const Wish wish = wish_of(gang);
  if (gang.hosts > 0 && !fits(wish, left_)) return skip(index);
  if (are_kept(*order_[index], wish)) return;
  left_in_all_ -= gang.devices;
  if (starts_now(index, wish) || gang.hosts == 0) return;
  const DeviceCounts places = reserve(index, wish);
  subtract(left_, places);
  add(reserved_, places);
}

// Devices are kept only for the first skipped gang, and only if the hosts could hold it.
void ClusterPass::skip(std::size_t index) {
  if (std::exchange(has_skipped_, true)) return;
  const GangProgress& gang = *order_[index];
  if (may_keep_free(gang, rules_) && fits(wish_of(gang.gang), hosts_)) keeps_ = index;
}

bool ClusterPass::are_kept(const GangProgress& gang, const Wish& wish) {
  if (!keeps_ || !gang.started || choose(wish, common(free_, left_)).empty()) return false;
  kept_for_ = keeps_;
  return true;
}

// A skewed model sends few large messages and suffers from a network between its devices.
Wish ClusterPass::wish_of(const Gang& gang) const {
  return {gang.devices, gang.hosts, gang.skew > rules_.consolidates};
}

bool ClusterPass::starts_now(std::size_t index, const Wish& wish) {
  DeviceCounts devices = choose(wish, common(free_, left_));
  if (devices.empty()) return false;
  subtract(free_, devices);
  subtract(left_, devices);
  starts_.push_back({index, std::move(devices)});
  return true;
}

bool ClusterPass::take(const DeviceCounts& holds) {
  const bool are_there = std::ranges::equal(holds, left_, std::ranges::less_equal{});
  const int devices = sum(holds);
  if (!are_there || devices > left_in_all_) return false;
  subtract(left_, holds);
  left_in_all_ -= devices;
  return true;
}

// The loop finds enough devices at the latest once it has added all later gangs: each device that
// is left is free, or belongs to a gang that is asked to yield or comes later.
DeviceCounts ClusterPass::reserve(std::size_t index, const Wish& wish) const {
  DeviceCounts reach = free_;
  subtract(reach, reserved_);
  add(reach, of_asked());
  DeviceCounts places = choose(wish, common(reach, left_));
  for (const std::size_t each : holders_ | std::views::reverse) {
    if (!places.empty() || each < index) break;
    if (asked_[each] || chosen_[each]) continue;
    add(reach, order_[each]->holds);
    places = choose(wish, common(reach, left_));
  }
  return places;
}

DeviceCounts ClusterPass::of_asked() const {
  DeviceCounts devices(left_.size(), 0);
  for (const std::size_t each : holders_)
    if (asked_[each] && !chosen_[each]) add(devices, order_[each]->holds);
  return devices;
}

}  // namespace gpushare
