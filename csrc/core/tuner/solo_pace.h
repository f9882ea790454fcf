// How long an iteration takes a session while no other one runs, by what it has reported.
#pragma once

#include <cstdint>
#include <optional>

#include "core/model/types.h"

namespace gpushare {

class SoloPace {
 public:
  // The progress of a session from one report with iterations to the next.
  struct Interval {
    Seconds since;
    double iterations;
    Seconds seconds;  // of its turns
  };

  explicit SoloPace(Seconds now) : reported_(now) {}

  // It did `iterations` since its last report, in `seconds` of its turns. A report that has no
  // iterations comes from the middle of one: then no interval has ended.
  std::optional<Interval> report(Seconds now, std::int64_t iterations, Seconds seconds);
  // Counts an interval that it ran alone. Measurements before `since` no longer count, and the rest
  // decays.
  void count(const Interval& alone, Seconds now, Seconds since, Seconds quantum);
  void forget() { iterations_ = seconds_ = 0; }

  bool is_known(Seconds quantum) const;
  Seconds seen() const { return seen_; }  // when it was last seen alone
  // The time of these iterations alone. Its pace must be known.
  Seconds work(double iterations) const { return iterations * (seconds_ / iterations_); }

 private:
  Seconds reported_;        // time of its last report, or of its first appearance
  Seconds unreported_ = 0;  // known seconds of its turns since then
  double iterations_ = 0;   // done alone, decayed
  Seconds seconds_ = 0;     // that these took, decayed
  Seconds seen_ = -kNever;
};

}  // namespace gpushare
