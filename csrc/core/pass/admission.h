// Admission control: which session has its place next, where memory allows one.
//
// Backfill may admit others before a session that does not fit yet, but aging bounds it: after
// `aging` seconds that session comes first and no other is admitted before it.
#pragma once

#include <functional>
#include <vector>

#include "core/device/device_state.h"
#include "core/model/types.h"
#include "core/pass/run_queue.h"

namespace gpushare {

class Fitting;

class Admission {
 public:
  Admission(const DeviceState& state, Seconds now) : state_(state), now_(now) {}

  // The session that should have a place now; kNoSession: none.
  SessionNumber next() const;
  // The first of the sessions that have room, as `has_room` says.
  SessionNumber first(const std::function<bool(const Session&)>& has_room) const;
  // The first by policy of those past their aging; absent where a session runs without a place.
  std::optional<RunQueueEntry> first_aged() const;
  // Marks the session that waits for all holders.
  void mark(std::vector<RunQueueEntry>& waiting) const;

  // Whether it may have a place, if there is room for it.
  bool may_be_admitted(const Session& session) const;
  // Whether no other session is admitted before there is room for it.
  bool reserves(const Session& session) const;
  bool goes_before(const RunQueueEntry& a, const RunQueueEntry& b) const;
  static Seconds ages_at(const DeviceState& state, const Session& session);

 private:
  bool seeks_place(const Session& session) const;
  bool has_aged(const Session& session) const;
  int rank(const RunQueueEntry& of) const;
  bool needs_holders_to_end(const RunQueueEntry& waiting, const Fitting& fitting) const;
  int lanes_at_once(const Session* newcomer) const;

  const DeviceState& state_;
  const Seconds now_;
};

}  // namespace gpushare
