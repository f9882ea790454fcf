#include "core/lanes/lane_totals.h"

namespace gpushare {

Bytes LaneTotals::merged(Bytes extra) const {
  return held_.bytes + std::max<Bytes>(0, std::max(extra, idle_.largest()) - held_.largest());
}

void LaneTotals::Sizes::add(Bytes size) {
  sizes.insert(size);
  bytes += size;
}

void LaneTotals::Sizes::remove(Bytes size) {
  sizes.erase(sizes.find(size));
  bytes -= size;
}

}  // namespace gpushare
