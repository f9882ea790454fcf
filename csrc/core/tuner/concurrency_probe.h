// One probe of the concurrency tuner: its steps, each with one number of lanes, and the best so
// far.
#pragma once

#include <optional>
#include <vector>

#include "core/model/types.h"

namespace gpushare {

class ConcurrencyProbe {
 public:
  struct Outcome {
    int lanes = 1;
    std::optional<double> speedup = 1.0;  // weighted; absent: not measurable
  };

  explicit ConcurrencyProbe(Seconds now) : began_(now) {}

  void begin_step(Seconds now) { began_ = now; }
  void end_step(Seconds now, double speedup) { steps_.push_back({now - began_, speedup}); }
  void set_best(const Outcome& outcome) { best_ = outcome; }

  Seconds step_began() const { return began_; }
  const Outcome& best() const { return best_; }
  // Seconds that the steps have lost beside this weighted speedup.
  Seconds cost(double speedup) const;

 private:
  struct Step {
    Seconds time;
    double speedup;
  };

  Seconds began_;  // of the step that goes on
  std::vector<Step> steps_;
  Outcome best_;
};

}  // namespace gpushare
