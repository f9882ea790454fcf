// A quantity that fades: used seconds count half after one half-life, so that what a session did
// yesterday does not weigh on today. All such values fade by the same factor, so their order only
// changes when something is added.
//
// They are therefore kept, and compared, in seconds of one common moment, the epoch, and are
// converted to seconds of now only where a duration is needed. Two values that are equal stay
// equal, and two that differ stay in order, at any later moment: reading a value rounds nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <numbers>

#include "core/model/types.h"

namespace gpushare {

// A fading quantity at one moment. Only values of one moment are compared or subtracted.
struct Faded {
  double units = 0;   // seconds of the epoch
  double factor = 1;  // seconds of that moment in one of them

  Seconds seconds() const { return units * factor; }

  Faded& operator+=(Seconds seconds) {
    units += seconds / factor;
    return *this;
  }
  friend bool operator==(const Faded& a, const Faded& b) { return a.units == b.units; }
  friend auto operator<=>(const Faded& a, const Faded& b) { return a.units <=> b.units; }
  friend Seconds operator-(const Faded& a, const Faded& b) {
    return (a.units - b.units) * a.factor;
  }
  friend Faded operator+(Faded a, Seconds seconds) { return a += seconds; }
  friend Faded operator/(const Faded& a, double by) { return {a.units / by, a.factor}; }
};

// How fast values fade, and the epoch in whose seconds they are kept.
class Fading {
 public:
  explicit Fading(Seconds half_life, Seconds epoch = 0) : half_life_(half_life), epoch_(epoch) {}

  double factor(Seconds now) const {
    if (now != asked_) {
      asked_ = now;
      factor_ = std::exp2(std::clamp((epoch_ - now) / half_life_, -kMost, kMost));
    }
    return factor_;
  }
  // What these seconds count at their end, if they have just passed without a break: the integral
  // of 2^(-t / half-life) over them.
  Seconds faded(Seconds seconds) const {
    const double rate = std::numbers::ln2 / half_life_;
    return rate == 0 ? seconds : -std::expm1(-rate * seconds) / rate;
  }
  // Whether the epoch is too long ago: a later one is needed before numbers become too large.
  bool is_stale(Seconds now) const { return now - epoch_ > kMost / 8 * half_life_; }

 private:
  static constexpr double kMost = 900;  // half-lives: their factor is still a normal number

  Seconds half_life_, epoch_;
  // A pass asks many times for the same moment, so the last power is cached.
  mutable Seconds asked_ = kNever;
  mutable double factor_ = 1;
};

struct Decayed {
  double units = 0;

  Faded at(Seconds now, const Fading& fading) const { return {units, fading.factor(now)}; }
  void add(Seconds now, const Fading& fading, Seconds seconds) {
    if (seconds != 0) units += seconds / fading.factor(now);
  }
  // Converts to another epoch or half-life: equal values stay equal, and the order is kept.
  void convert(Seconds now, const Fading& from, const Fading& to) {
    units = units * from.factor(now) / to.factor(now);
  }
};

}  // namespace gpushare
