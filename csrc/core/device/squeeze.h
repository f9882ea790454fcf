// How far sessions are squeezed, and which are admitted for that: one rule.
//
// All lanes that may merge count as merged, so an iteration may take what persistent memory leaves:
//
//     left = room - sum of persistent.
//
// Each session has the largest of its options that is not above `left`. A newcomer is admitted by
// squeezing others only if each of them has an option that slows it by no more than it bears, or
// than it is slowed already; the newcomer takes any option of its own. None of this is stored: when
// `left` grows, sessions grow back. A session that runs keeps its memory until its turn ends, and
// may have more as soon as that is free.
#pragma once

#include <algorithm>

#include "core/model/types.h"

namespace gpushare {

// Bad options are std::invalid_argument.
void check_options(const Demand& demand);

// The largest option of at most `left` bytes; the smallest, if all are larger. A session without
// options has one, which is all that it needs.
SqueezeOption choice(const Demand& demand, Bytes left);
// The bytes of the smallest option that slows the session by no more than this, of the smallest of
// all, and of the largest.
Bytes least_of(const Demand& demand, double slowdown);
Bytes floor_of(const Demand& demand);
Bytes unsqueezed(const Demand& demand);
// The option of these bytes; absent: the session has none of these.
std::optional<SqueezeOption> option_of(const Demand& demand, Bytes bytes);

// The sessions that have a place, as a newcomer finds them.
class Squeeze {
 public:
  explicit Squeeze(Bytes left) : left_(left) {}

  // A session has `bytes` for its iterations, and `keeps` them for now because it runs.
  void add(const Demand& demand, double bears, Bytes bytes, bool keeps);

  Bytes left_with(const Demand& newcomer) const { return left_ - newcomer.persistent; }
  // Whether there is room for it, by squeezing the others or without, once no session that runs
  // keeps its memory.
  bool admits(const Demand& newcomer, bool by_squeezing) const;
  // Whether the sessions that run leave this room already now.
  bool admits_beside_those_that_run(const Demand& newcomer) const {
    return kept_ <= left_with(newcomer);
  }
  Bytes least() const { return least_; }  // to which the others may be squeezed

 private:
  Bytes left_;
  Bytes chosen_ = 0, least_ = 0, kept_ = 0;  // of the session with the largest
};

}  // namespace gpushare
