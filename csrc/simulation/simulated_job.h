// A job of a simulation: what it does now, and what has become of it.
//
// Progress counts iterations of the job's cell: it was `progress` at `since` and grows by `rate` a
// second while the job computes. Boundaries are found by the time that boundary_time() gives them.
//
// Invariants, which is_valid() checks: a job that computes has a turn, one that has a turn
// does not wait for it, and both only while it is open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/model/types.h"
#include "simulation/event_queue.h"
#include "simulation/workload.h"

namespace gpushare {

struct Outcome {
  std::string id;
  Seconds arrival = 0;
  std::optional<Seconds> started, ended;  // first turn, end of the last cell
  Seconds waited = 0;                     // while a cell ran without a turn
  Seconds device_seconds = 0;             // of its turns, on each of its devices
  std::int64_t iterations = 0;
  Bytes paged = 0;       // out and in
  bool refused = false;  // its devices could never hold it
};

struct SimulatedJob {
  using Event = EventQueue::Event;

  const Cell& present_cell() const { return job.cells[cell]; }
  // Iterations of this cell and of all later ones that are still to come.
  std::int64_t left() const;
  std::optional<std::int64_t> declared() const;
  // The time of the next report.
  Seconds due_report(const Conduct& conduct) const;
  // Seconds of its turn, summed over its devices.
  Seconds turn_seconds(Seconds now) const;
  // The first boundary at this event or after it.
  std::int64_t first_boundary(const Event& after) const;
  Seconds boundary_time(std::int64_t iteration) const;
  // The outcome, including what has begun and not ended yet.
  Outcome outcome_at(Seconds now) const;
  SessionSpec spec() const;  // as it opens

  void begin_wait(Seconds now);
  void begin_turn(Seconds now, LaneId in);
  void begin_to_compute(Seconds now);
  // The job runs at this speed, and is squeezed, from now on.
  void set_rate(Seconds now, double speed);
  void reach(std::int64_t boundary);
  void end_turn(Seconds now);

  std::string is_valid() const;  // empty, or the first broken invariant in words

  std::size_t number = 0;
  Job job;
  Outcome outcome;
  std::vector<std::size_t> devices;
  std::size_t cell = 0;
  bool open = false, wants = false, holds = false, asked = false, computes = false;
  TurnNumber turn = 0;
  LaneId lane = kNoLane;
  Seconds wanted = 0, granted = 0;  // since when it waits for this turn, or has it
  Seconds in_memory = 0;            // when its page-in will be over
  std::int64_t done = 0;            // iterations of this cell, at the last boundary looked at
  double progress = 0, rate = 0;
  double slowdown = 1;  // while it is squeezed
  double beside = 1;    // its speed beside the one that uses its lane at the same time
  Seconds since = 0;
  std::int64_t unreported = 0;
  Seconds reported = -kNever;
};

}  // namespace gpushare
