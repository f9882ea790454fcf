// Why each session is as it is, as values (reason.h).
//
// Reasons hold no times that grow: they stay true until the next event, and viewers have the
// seconds beside them.
#pragma once

#include <optional>

#include "core/device/device_state.h"
#include "core/model/types.h"
#include "core/pass/admission.h"
#include "core/pass/run_queue.h"

namespace gpushare {

// The words for its state.
State state_of(const DeviceState& state, const Session& session, Seconds now);

class Explanation {
 public:
  Explanation(const DeviceState& state, const RunQueue& run_queue, Seconds now)
      : state_(state), run_queue_(run_queue), admission_(state, now), now_(now) {}

  Why why(const RunQueueEntry& of) const;

 private:
  Why of_state(const RunQueueEntry& of) const;
  Code of_idle(const Session& session) const;
  bool goes_before(const RunQueueEntry& a, const RunQueueEntry& b) const {
    return before(*state_.policy, a.view, b.view);
  }
  Why of_running(const Session& session) const;
  Why of_waiting(const RunQueueEntry& of) const;
  std::optional<Code> particular(const Session& holder) const;
  const RunQueueEntry* in_the_way(const RunQueueEntry& of) const;
  Why without_place(const RunQueueEntry& of) const;
  Why without_room(const Session& of, const Demand& room) const;
  const RunQueueEntry* without_lane() const;
  const RunQueueEntry& next_for_memory() const;
  Why of_squeezed(const Session& session) const;
  const Session* squeezed_for(const Session& session, Bytes has) const;
  std::optional<Reason> not_paged_out(const Session& of) const;

  const DeviceState& state_;
  const RunQueue& run_queue_;
  const Admission admission_;
  const Seconds now_;
};

}  // namespace gpushare
