// How long an iteration of one session takes, of late, and how much they differ: enough to predict
// the end of the present one.
#pragma once

#include <cstdint>
#include <optional>

#include "core/model/types.h"

namespace gpushare {

class Pace {
 public:
  // The iterations took these seconds together.
  void add(std::int64_t iterations, Seconds seconds);

  // Mean seconds of an iteration; absent before the first one, and if they differ too much to
  // predict the next one.
  std::optional<Seconds> iteration() const;
  // An iteration that has lasted longer is not like the others, and its end is unknown.
  Seconds longest() const;
  // The most seconds from one boundary to the first boundary that is at least `after` seconds
  // later, if no iteration takes longer than `longest`.
  Seconds latest(Seconds after, Seconds longest) const;

 private:
  std::int64_t seen_ = 0;
  Seconds mean_ = 0;
  Seconds spread_ = 0;                       // mean distance from the mean
  Seconds shortest_ = kNever, longest_ = 0;  // means of those reported together
};

}  // namespace gpushare
