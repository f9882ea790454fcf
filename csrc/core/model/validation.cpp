#include "core/model/validation.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace gpushare {

void require(bool condition, const char* sentence) {
  if (!condition) throw std::invalid_argument(sentence);
}

void require(bool condition, const std::string& sentence) { require(condition, sentence.c_str()); }

void check_time(Seconds time) {
  require(std::isfinite(time), "a time must be a finite number of seconds");
}

void check_weight(double weight) {
  require(std::isfinite(weight) && weight > 0, "a weight must be a finite number above 0");
}

void check_running_lanes(int lanes) {
  require(lanes >= 0, "running lanes must be 0 (as the policy says) or the number that may run");
}

void check_iterations(std::int64_t iterations) {
  require(iterations >= 0, "a number of iterations must not be negative");
}

void check_paged_out(Bytes bytes) {
  require(bytes >= 0, "the bytes that are paged out must not be negative");
}

void check_rules(const Rules& rules) {
  require(rules.quantum > 0, "the quantum must be above 0 seconds");
  require(rules.half_life > 0, "the half-life must be above 0 seconds");
  require(rules.lease > 0, "the lease must be above 0 seconds");
  require(std::isfinite(rules.report) && rules.report >= 0,
          "the time between two reports must be finite and not below 0 seconds");
  require(rules.aging >= 0, "the aging threshold must not be below 0 seconds");
  require(std::isfinite(rules.boost) && rules.boost >= 0,
          "the boost must be finite and not below 0 seconds");
  check_running_lanes(rules.running_lanes);
}

}  // namespace gpushare
