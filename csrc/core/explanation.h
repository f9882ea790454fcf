// Why each session is as it is, as values (reason.h).
//
// Reasons hold no times that grow: they stay true until the next event, and viewers have the
// seconds beside them.
#pragma once

#include <optional>

#include "core/admission.h"
#include "core/contention.h"
#include "core/device_state.h"
#include "core/types.h"

namespace gpushare {

// What people call what it does.
State state_of(const DeviceState& state, const Session& session, Seconds now);

class Explanation {
 public:
  Explanation(const DeviceState& state, const Contention& contention, Seconds now)
      : state_(state), contention_(contention), admission_(state, now), now_(now) {}

  Why why(const Contender& of) const;

 private:
  Why of_state(const Contender& of) const;
  bool goes_before(const Contender& a, const Contender& b) const {
    return before(*state_.policy, a.view, b.view);
  }
  Why of_running(const Session& session) const;
  Why of_waiting(const Contender& of) const;
  std::optional<Code> particular(const Session& holder) const;
  const Contender* in_the_way(const Contender& of) const;
  Why without_place(const Contender& of) const;
  Why without_room(const Session& of, const Demand& room) const;
  const Contender* without_lane() const;
  const Contender& next_for_memory() const;
  Why of_squeezed(const Session& session) const;
  const Session* squeezed_for(const Session& session, Bytes has) const;
  std::optional<Reason> not_paged_out(const Session& of) const;

  const DeviceState& state_;
  const Contention& contention_;
  const Admission admission_;
  const Seconds now_;
};

}  // namespace gpushare
