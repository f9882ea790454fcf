// The work of two sessions that use one lane at once: their iterations follow curves in virtual
// time, and each waits where the claims say that it would.
#pragma once

#include <array>
#include <vector>

#include "core/model/types.h"

namespace gpushare {

// The bytes of an iteration in its lane, in equal parts of its time.
struct IterationCurve {
  Seconds seconds = 0;       // of one, alone
  std::vector<Bytes> bytes;  // the most in each part
  double load = 1;           // the part of the device that it uses while it computes

  Bytes peak() const;
};

struct Together {
  std::array<double, 2> speeds;  // of each, as parts of its own alone
  Bytes most = 0;                // that both had at one time

  double work() const { return speeds[0] + speeds[1]; }
};

// Both follow each other without a pause in a lane of these bytes, which holds each of the two.
// Raises std::invalid_argument.
Together together(const IterationCurve& a, const IterationCurve& b, Bytes lane_bytes);

}  // namespace gpushare
