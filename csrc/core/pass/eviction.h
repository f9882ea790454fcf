// Which sessions should be asked to page out, and for which session.
//
// Sessions that run stay, so no work is lost, and none is evicted without need.
#pragma once

#include <vector>

#include "core/device/device_state.h"
#include "core/model/types.h"
#include "core/pass/admission.h"

namespace gpushare {

class Eviction {
 public:
  struct Plan {
    SessionNumber beneficiary = kNoSession;  // none, if unmanaged memory takes the room
    std::vector<SessionNumber> sessions;     // longest idle first
  };

  explicit Eviction(const DeviceState& state) : state_(state), admission_(state, state.now) {}

  // The next requests; no sessions: none.
  Plan plan() const;
  // The deadline of a page-out.
  static Seconds leaves_by(const DeviceState& state, const Session& session);

 private:
  using Sessions = std::vector<const Session*>;

  Plan for_waiting(const Sessions& idle) const;
  Plan for_aged(const Sessions& idle) const;
  Sessions idle_sessions() const;
  Sessions waiting_behind(const RunQueueEntry& first) const;
  std::vector<SessionNumber> leaving(const Demand& room, const Sessions& may_leave) const;
  Bytes left_beside(const Demand& staying) const;  // for iterations
  Demand staying(const Sessions& may_leave) const;

  const DeviceState& state_;
  const Admission admission_;
};

}  // namespace gpushare
