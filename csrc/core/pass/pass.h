// The pass that every event ends in. It decides, in this order: which turn goes on by a direct
// handoff, which sessions have failed to page out in time, how many lanes may run, which sessions
// memory admits, which start, which are asked to yield, and which to page out. Each pass derives
// again whatever can be derived.
//
// Invariants after a pass, which is_valid() checks, beside those of device_state.h:
//   - a session that runs alone (its memory is unknown) is granted only when nothing else runs,
//     and nothing is granted while it runs;
//   - no session waits that could start, and none is without a place that fits;
//   - if a session waits for memory that others should page out, they were asked; and so was each
//     idle session for which unmanaged memory leaves no room.
#pragma once

#include <optional>
#include <string>

#include "core/device/device_state.h"
#include "core/device/turns.h"
#include "core/model/types.h"
#include "core/pass/run_queue.h"

namespace gpushare {

class Pass {
 public:
  using Successor = Session::Successor;

  explicit Pass(DeviceState& state) : state_(&state) {}

  // `due` was named by a turn that has ended with the event.
  Decision run(Successor due = {});
  // When time alone changes something: a turn that should end, a lease or aging that runs out.
  std::optional<Seconds> next_event(Seconds now) const;
  std::string is_valid() const;  // empty, or the first broken invariant in words

 private:
  void start_successor(Successor due, Decision& decision);
  void give_up_page_outs();
  void follow_tuner();
  void admit();
  void settle_shares();
  void boost_cells();
  void grant(RunQueue& run_queue, Decision& decision);
  void ask_to_yield(RunQueue& run_queue, Decision& decision);
  bool ask_to_page_out(RunQueue& run_queue, Decision& decision);

  RunQueue run_queue(Seconds now) const;  // of sessions that may have turns now
  RunQueueEntry* next_to_start(RunQueue& run_queue) const;
  bool can_start(const RunQueueEntry& waiting) const;
  std::optional<Seconds> next_change(const RunQueue& run_queue, Seconds now) const;
  Seconds next_page_out(Seconds now) const;
  std::string turns_are_right() const;

  DeviceState* state_;
  std::optional<RunQueue> seen_;  // by the last pass, if it changed nothing
};

}  // namespace gpushare
