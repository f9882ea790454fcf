#include "core/validation.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "core/lane_allocator.h"
#include "core/squeeze.h"
#include "core/units.h"

namespace gpushare {
namespace {

std::string exact(Bytes bytes) {
  return bytes_in_words(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

}  // namespace

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

void check_demand(const Demand& demand, const LaneAllocator& lanes) {
  require(demand.persistent >= 0 && demand.ephemeral >= 0,
          "a demand in bytes must not be negative");
  check_options(demand);
  const Bytes floor = demand.options.empty() ? demand.ephemeral : floor_of(demand);
  if (lanes.fits_empty({demand.persistent, floor})) return;
  const char* squeezed = floor < demand.ephemeral ? ", squeezed as far as it can be" : "";
  throw std::overflow_error("needs " + exact(demand.persistent) + " persistent and " +
                            exact(floor) + " ephemeral" + squeezed + "; the device has " +
                            exact(lanes.capacity()));
}

void check_spec(const SessionSpec& spec, const LaneAllocator& lanes) {
  check_weight(spec.weight);
  check_iterations(spec.iterations);
  check_iterations(spec.remaining_iterations.value_or(0));
  require(std::isfinite(spec.device_seconds) && spec.device_seconds >= 0 &&
              std::isfinite(spec.waited_seconds) && spec.waited_seconds >= 0,
          "seconds of the past must be finite and not negative");
  check_paged_out(spec.paged_out_bytes);
  require(spec.squeezed_bytes >= 0, "the bytes of a squeezed iteration must not be negative");
  require(!spec.holding || !spec.waiting, "a session holds its turn or waits for it, not both");
  require(std::isfinite(spec.bears) && spec.bears >= 1,
          "the slowdown that a session bears must be finite and at least 1");
  check_demand(spec.demand, lanes);
}

}  // namespace gpushare
