// One decision about the gangs of a cluster: which of those that wait start, on which devices, and
// which of those that run are asked to yield. It changes nothing; the queue enacts it.
//
// Gangs are tried in order: one that still fits is chosen, one that does not is skipped. The chosen
// gangs fit together, so each of them starts as soon as it finds enough free devices. A gang that
// may have its devices of any hosts needs only their number. For a gang that wants them on a few
// hosts the number is not enough: while it waits, devices are reserved for it, first free ones,
// then those of gangs that are already asked to yield, then those of the gangs that come last. So
// no gang behind it takes them, and the next decision asks no further gang to yield.
//
// While devices may be kept for the first skipped gang, no stopped gang behind it is started.
//
// Before all of them come gangs that keep their devices: those that cannot be stopped, and those
// that have just begun to compute. But no gang keeps devices that its host no longer has. A gang
// that cannot be stopped, and was asked to yield because its host was lost, keeps its devices once
// the host is back.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "core/cluster/cluster_queue.h"
#include "core/cluster/device_pool.h"

namespace gpushare {

class ClusterPass {
 public:
  struct Start {
    std::size_t index;  // in the order
    DeviceCounts devices;
  };

  ClusterPass(const DevicePool& pool, const GangRules& rules,
              std::vector<const GangProgress*> order);

  const std::vector<Start>& starts() const { return starts_; }
  const std::vector<std::size_t>& yields() const { return yields_; }
  // The gang for which free devices are kept that a gang behind it could have.
  std::optional<std::size_t> kept_for() const { return kept_for_; }

 private:
  bool keeps(const GangProgress& gang) const;
  Wish wish_of(const Gang& gang) const;
  void choose_kept();
  void choose_in_order();
  void choose_running(std::size_t index);
  void choose_waiting(std::size_t index);
  bool starts_now(std::size_t index, const Wish& wish);
  void skip(std::size_t index);
  bool are_kept(const GangProgress& gang, const Wish& wish);
  bool take(const DeviceCounts& holds);
  DeviceCounts reserve(std::size_t index, const Wish& wish) const;
  DeviceCounts of_asked() const;

  const GangRules& rules_;
  std::vector<const GangProgress*> order_;
  std::vector<std::size_t> holders_;  // indices of those that have devices
  std::vector<bool> chosen_, asked_;  // of those
  DeviceCounts hosts_;
  DeviceCounts free_, left_;  // of no gang; of no chosen gang, and not reserved
  DeviceCounts reserved_;
  int left_in_all_ = 0;
  std::vector<Start> starts_;
  std::vector<std::size_t> yields_;
  bool has_skipped_ = false;
  std::optional<std::size_t> keeps_, kept_for_;  // the first one that is skipped, if it may
};

}  // namespace gpushare
