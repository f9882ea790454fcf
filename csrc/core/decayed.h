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

  // Each pass asks all of them at its one moment, some of them again and again: the power that was
  // taken last is kept, and is right whatever the value has become.
  mutable double exponent = 0, power = 1;

  double at(Seconds now, Seconds half_life) const {
    return value == 0 ? 0 : value * power_of((since - now) / half_life);
  }
  double power_of(double asked) const {
    if (asked != exponent) {
      exponent = asked;
      power = std::exp2(asked);
    }
    return power;
  }
  void add(Seconds now, Seconds half_life, double x) {
    value = at(now, half_life) + x;
    since = now;
  }
};

}  // namespace gpushare
