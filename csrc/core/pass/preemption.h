// Preemption: when each running turn should end, and which session should have its lane then.
#pragma once

#include <vector>

#include "core/device/device_state.h"
#include "core/model/types.h"
#include "core/pass/run_queue.h"

namespace gpushare {

class Preemption {
 public:
  Preemption(const DeviceState& state, Seconds now) : state_(state), now_(now) {}

  // Marks the sessions that must end, and those that are promised a turn or have promised theirs.
  void mark(RunQueue& run_queue) const;
  // When each running turn should end, and for which session.
  void time_turns(RunQueue& run_queue) const;
  // The session to which the holder may pass its turn itself; nullptr: it is decided again once the
  // turn has ended. Turns must be timed.
  const Session* heir(const RunQueueEntry& holder, const RunQueue& run_queue) const;

 private:
  bool goes_before(const RunQueueEntry& a, const RunQueueEntry& b) const {
    return before(*state_.policy, a.view, b.view);
  }
  void mark_promises(RunQueue& run_queue) const;
  void mark_those_that_must_end(std::vector<RunQueueEntry>& running) const;
  bool must_end(const RunQueueEntry& holder, bool runs_among_others) const;
  Seconds asked(const RunQueueEntry& holder) const;
  void time_turn(RunQueueEntry& holder, std::vector<const RunQueueEntry*>& left) const;
  // Whether it could have the holder's lane, which can grow to `room`.
  bool follows(const RunQueueEntry& other, const RunQueueEntry& holder, Bytes room) const;
  // Whether it could have the holder's part of the lane while the other holder goes on.
  bool follows_beside(const Session& other, const Session& holder) const;
  void choose_successor(RunQueueEntry& holder, std::vector<const RunQueueEntry*>& left,
                        Bytes room) const;

  // Whether `other` may come before `to` at the end of the holder's iteration, although `to` comes
  // first now.
  bool may_come_first(const RunQueueEntry& other, const RunQueueEntry& to,
                      const RunQueueEntry& holder) const;

  const DeviceState& state_;
  const Seconds now_;
};

}  // namespace gpushare
