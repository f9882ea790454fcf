// A share of the device: one node of the tree over which fairness goes, which is groups, their
// users, and their notebooks. All three are alike: a clock that goes with the seconds of all turns
// below the node, the slower the more the node weighs, and faded like all used time.
#pragma once

#include "core/decayed.h"
#include "core/types.h"

namespace gpushare {

struct Share {
  double weight = 1.0;
  int active = 0;                // sessions below that wait or run, as the clocks were told last
  int running = 0;               // turns below that run
  Seconds served = -kNever;      // when a turn below began last
  Seconds idle_since = -kNever;  // when it ceased to be active
  Decayed used;                  // seconds / weight, turns that run counted until `counted`
  Seconds counted = 0;

  double clock(Seconds now, Seconds half_life) const {
    return used.at(now, half_life) + running * (now - counted) / weight;
  }
  void count(Seconds now, Seconds half_life) {
    used = {clock(now, half_life), now};
    counted = now;
  }
  void begin_turn(Seconds now, Seconds half_life) {
    count(now, half_life);
    ++running;
    served = now;
  }
  void end_turn(Seconds now, Seconds half_life) {
    count(now, half_life);
    --running;
  }
  // Counts from now on.
  void weigh(Seconds now, Seconds half_life, double by) {
    count(now, half_life);
    weight = by;
  }
};

}  // namespace gpushare
