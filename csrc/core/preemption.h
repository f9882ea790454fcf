// Preemption: when each running turn should end, and which session should have its lane then.
#pragma once

#include <vector>

#include "core/contention.h"
#include "core/device_state.h"
#include "core/types.h"

namespace gpushare {

class Preemption {
 public:
  Preemption(const DeviceState& state, Seconds now) : state_(state), now_(now) {}

  // Marks the sessions that must end, and those that are promised a turn or have promised theirs.
  void mark(Contention& contention) const;
  // When each running turn should end, and for which session.
  void time_turns(Contention& contention) const;
  // The session to which the holder may pass its turn itself; nullptr: it is decided anew once the
  // turn is over. Turns must be timed.
  const Session* heir(const Contender& holder, const Contention& contention) const;

 private:
  bool goes_before(const Contender& a, const Contender& b) const {
    return before(*state_.policy, a.view, b.view);
  }
  void mark_promises(Contention& contention) const;
  void mark_those_that_must_end(std::vector<Contender>& running) const;
  bool must_end(const Contender& holder, bool runs_among_others) const;
  Seconds asked(const Contender& holder) const;
  void time_turn(Contender& holder, std::vector<const Contender*>& left) const;
  // Whether it could have the holder's lane, which can grow to `room`.
  bool follows(const Contender& other, const Contender& holder, Bytes room) const;
  void choose_successor(Contender& holder, std::vector<const Contender*>& left, Bytes room) const;

  const DeviceState& state_;
  const Seconds now_;
};

}  // namespace gpushare
