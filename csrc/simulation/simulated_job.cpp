#include "simulation/simulated_job.h"

#include <algorithm>
#include <cmath>

namespace gpushare {
namespace {

constexpr double kAtEndOfTurn = 0.1;  // of the time between two reports, as in usage.py

}  // namespace

std::int64_t SimulatedJob::left() const {
  std::int64_t left = -done;
  for (std::size_t each = cell; each < job.cells.size(); ++each) left += job.cells[each].iterations;
  return left;
}

std::optional<std::int64_t> SimulatedJob::declared() const {
  return job.declares ? std::optional(left()) : std::nullopt;
}

// usage.py has the same rule.
Seconds SimulatedJob::due_report(const Conduct& conduct) const {
  if (holds && reported > -kNever) return std::max(granted, reported) + conduct.report;
  return reported + kAtEndOfTurn * conduct.report;
}

Seconds SimulatedJob::turn_seconds(Seconds now) const {
  return (now - granted) * static_cast<double>(devices.size());
}

// Finds it by its boundary_time(), so that a rounding error does not find another one.
std::int64_t SimulatedJob::first_boundary(const Event& after) const {
  const auto is_over = [&](std::int64_t iteration) {
    return Event{boundary_time(iteration), EventQueue::Kind::boundary, number} < after;
  };
  const double reached = progress + (after.time - since) * rate;
  const std::int64_t last = present_cell().iterations;
  const double bounded = std::clamp(std::floor(reached), 0.0, static_cast<double>(last));
  std::int64_t next = std::max(done, static_cast<std::int64_t>(bounded));
  while (next > done && !is_over(next - 1)) --next;
  while (next < last && is_over(next)) ++next;
  return next;
}

Seconds SimulatedJob::boundary_time(std::int64_t iteration) const {
  return since + (static_cast<double>(iteration) - progress) / rate;
}

Outcome SimulatedJob::outcome_at(Seconds now) const {
  Outcome so_far = outcome;
  if (wants) so_far.waited += now - wanted;
  if (holds) so_far.device_seconds += turn_seconds(now);
  if (!computes) return so_far;
  const std::int64_t next = first_boundary({now, EventQueue::Kind::leaves, 0});
  so_far.iterations += std::max<std::int64_t>(0, next - 1 - done);
  return so_far;
}

SessionSpec SimulatedJob::spec() const {
  SessionSpec spec;
  spec.user = job.user;
  spec.group = job.group;
  spec.weight = job.weight;
  spec.priority = job.priority;
  spec.demand = job.demand;
  if (!spec.demand.measured) spec.demand.options.clear();
  spec.bears = job.bears;
  spec.remaining_iterations = declared();
  spec.shares = !job.curve.empty() && job.devices == 1;
  spec.busy = job.cells.front().think == 0;
  return spec;
}

// --- what it does --------------------------------------------------------------------------------

void SimulatedJob::begin_wait(Seconds now) {
  wants = true;
  wanted = now;
  ++turn;
}

void SimulatedJob::begin_turn(Seconds now, LaneId in) {
  wants = asked = false;
  holds = true;
  lane = in;
  granted = now;
  outcome.waited += now - wanted;
  if (!outcome.started) outcome.started = now;
}

void SimulatedJob::begin_to_compute(Seconds now) {
  computes = true;
  progress = static_cast<double>(done);
  since = now;
  rate = 0;
}

void SimulatedJob::set_rate(Seconds now, double speed) {
  progress += (now - since) * rate;
  since = now;
  rate = speed / (present_cell().iteration * slowdown);
}

void SimulatedJob::reach(std::int64_t boundary) {
  unreported += boundary - done;
  outcome.iterations += boundary - done;
  done = boundary;
}

void SimulatedJob::end_turn(Seconds now) {
  holds = computes = false;
  outcome.device_seconds += turn_seconds(now);
}

std::string SimulatedJob::is_valid() const {
  if (computes && !holds) return "a job computes without a turn";
  if (holds && wants) return "a job waits for the turn that it has";
  return open || (!holds && !wants) ? "" : "a job has a turn and is not open";
}

}  // namespace gpushare
