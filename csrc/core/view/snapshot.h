// A device as people see it: its lanes, and its sessions with their states, queue positions,
// expected waits and reasons. It reads what is known and changes nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/device/device_state.h"
#include "core/model/types.h"
#include "core/pass/admission.h"
#include "core/pass/run_queue.h"
#include "core/view/explanation.h"
#include "core/view/forecast.h"

namespace gpushare {

class Snapshot {
 public:
  // Time alone changes no place in the queue: the order is that at `ordered`. The forecast keeps
  // what was expensive to make.
  Snapshot(const DeviceState& state, Seconds now, Seconds ordered, Forecast& forecast);
  Snapshot(const Snapshot&) = delete;  // its reasons refer to its run_queue
  Snapshot& operator=(const Snapshot&) = delete;

  DeviceSnapshot take() const;
  // Empty, or what is wrong: each session has a reason, no session waits for itself or for one that
  // is not open, and the queue is in order.
  std::string is_valid() const;

 private:
  std::vector<LaneState> lanes() const;
  std::vector<SessionState> sessions() const;
  SessionState session(const RunQueueEntry& of) const;
  std::optional<Forecast::Expected> expected(const Session& session,
                                             const std::optional<Forecast::Expected>& before) const;
  std::vector<const RunQueueEntry*> queue() const;
  bool is_served_before(const RunQueueEntry* a, const RunQueueEntry* b) const;
  std::string why_is_valid(const RunQueueEntry& of) const;

  const DeviceState& state_;
  const Seconds now_;
  const RunQueue run_queue_;
  const Admission admission_;
  const Explanation explanation_;
  Forecast& forecast_;
};

// The sessions that have a turn, in the order in which they opened.
std::vector<Holder> holders(const DeviceState& state, Seconds now);

}  // namespace gpushare
