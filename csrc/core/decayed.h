// A quantity that fades: used seconds count half after one half-life, so that what somebody did
// yesterday does not weigh on today. All such values fade by the same factor, so their order only
// changes when something is added.
#pragma once

#include <cmath>

#include "core/types.h"

namespace gpushare {

struct Decayed {
  double value = 0;
  Seconds since = 0;  // when `value` was right

  double at(Seconds now, Seconds half_life) const {
    return value == 0 ? 0 : value * std::exp2((since - now) / half_life);
  }
  void add(Seconds now, Seconds half_life, double x) {
    value = at(now, half_life) + x;
    since = now;
  }
};

}  // namespace gpushare
