// A share of the device: one node of the tree over which fairness goes, which is groups, their
// users, and their notebooks. All three are alike: a clock that goes with the seconds of all turns
// below the node, the slower the more the node weighs, and faded like all used time.
#pragma once

#include "core/model/types.h"
#include "core/shares/decayed.h"

namespace gpushare {

struct Share {
  double weight = 1.0;
  int active = 0;            // sessions below that wait or run, as counted by the last pass
  int running = 0;           // turns below that run
  Seconds served = -kNever;  // when a turn below began last
  Decayed used;              // seconds / weight, turns that run counted until `counted`
  Seconds counted = 0;
  // How far the lowest clock of its active siblings was beyond its own when it ceased to be active.
  Decayed behind;

  Faded clock(Seconds now, const Fading& fading) const {
    const Faded clock = used.at(now, fading);
    return running == 0 ? clock : clock + running * fading.faded(now - counted) / weight;
  }
  void count(Seconds now, const Fading& fading) {
    used.units = clock(now, fading).units;
    counted = now;
  }
  void begin_turn(Seconds now, const Fading& fading) {
    count(now, fading);
    ++running;
    served = now;
  }
  void end_turn(Seconds now, const Fading& fading) {
    count(now, fading);
    --running;
  }
  // Counts from now on.
  void weigh(Seconds now, const Fading& fading, double by) {
    count(now, fading);
    weight = by;
  }
};

}  // namespace gpushare
