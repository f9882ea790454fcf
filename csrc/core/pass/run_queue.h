// The sessions that run or wait at one moment, as one pass or one look compares them.
#pragma once

#include <vector>

#include "core/device/device_state.h"
#include "core/model/types.h"
#include "core/policies/policy.h"

namespace gpushare {

Candidate candidate(const DeviceState& state, const Session& session, Seconds now);

struct RunQueueEntry {
  RunQueueEntry(const DeviceState& state, const Session& session, Seconds now);

  Candidate view;
  const Session* session;
  LaneId lane;               // none: it waits for memory, or runs and could not be placed
  bool everywhere = false;   // excludes all others, whatever their lanes
  bool must_end = false;     // runs, and should not
  bool drains = false;       // waits for memory that others keep while they run
  bool promised = false;     // has named a session that still waits; or waits, and has been named
  Seconds ends_in = kNever;  // runs: until a waiting session should have its turn
  const RunQueueEntry* successor = nullptr;  // runs, and should end: the next in its lane
};

struct RunQueue {
  // Ordered by values at `ordered`. Marks those that must end, those that are promised a turn, and
  // the one that has to wait for all holders.
  RunQueue(const DeviceState& state, Seconds now, Seconds ordered);

  std::vector<RunQueueEntry> running, waiting;
};

}  // namespace gpushare
