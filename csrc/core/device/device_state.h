// The state of one device: its rules and sessions, and the objects that keep their lanes, their
// fair shares, where their memory is, and how many lanes should run. Each of these checks itself;
// this checks what must hold between them.
//
// Nothing is decided here. Events and the pass change it; what decides or shows reads it.
//
// Invariants, which is_valid() checks:
//   - the safety rule of lane_allocator.h, over all sessions that have a place, and these use no
//     more than unmanaged memory leaves, or than they used when it grew;
//   - a lane is held by one session at most, and only by one that runs; or by two that may share
//     it, and each that it is too narrow for was asked to yield;
//   - a session that does not run has the largest of its squeeze options that is allowed and fits;
//   - a throttled session was asked to yield if it runs, and earns no credit by waiting;
//   - a session that is paged out has no place and no turn, and one that is asked to page out has
//     no turn, and runs no cell or waits in it.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "core/device/residency.h"
#include "core/device/session_table.h"
#include "core/lanes/lane_allocator.h"
#include "core/model/types.h"
#include "core/policies/policy.h"
#include "core/shares/fair_shares.h"
#include "core/tuner/concurrency_tuner.h"

namespace gpushare {

struct DeviceState {
  // Raises std::invalid_argument.
  DeviceState(Bytes capacity, std::string_view policy_name, const Rules& known,
              Bytes least_chunk = 1);
  DeviceState(const DeviceState& other);  // whose sessions have shares of their own
  DeviceState& operator=(const DeviceState&) = delete;

  Seconds latest(Seconds time) const;  // time does not go back
  void advance(Seconds time);
  Wait new_wait() { return {now, ++last_order}; }

  bool packs() const { return policy->packs && rules.running_lanes == 0; }
  int limit() const;   // lanes that may run at once; 0: no limit
  int wanted() const;  // lanes that should find room at once; 0: no limit
  Seconds quantum() const { return rules.quantum * policy->turn; }
  // Whether queued sessions are evicted for one that has waited too long for memory.
  bool evicts_waiting() const { return rules.page_waiting && !residency.has_refusals(); }

  bool has_place(const Session& session) const { return lanes.table().contains(session.number); }
  bool all_have_places() const { return lanes.table().size() + residency.out() == sessions.size(); }
  bool has_outgrown(const Session& session) const;  // its place
  // Its end: the lane has ends, and is too narrow for it.
  bool has_outgrown_end(const Session& session) const;
  // The session that uses the same lane at the same time; nullptr: there is none.
  const Session* beside(const Session& holder) const;
  // Whether it may use its lane now beside the present holder, which goes on.
  bool may_join(const Session& waiting) const;
  // Whether it may have its predecessor's end of the lane, whatever the other holder does.
  bool may_take_end(const Session& successor) const;
  // The time at which its memory is on the device; in the past if it is there already; absent if
  // unknown.
  std::optional<Seconds> is_in_by(const Session& session) const {
    return residency.is_in_by(session.memory);
  }
  // Whether the turn's holder has named this wait as its successor, so that the session may have
  // begun; true for the lease at most. A session that only waits for its page-in is no successor.
  bool promises(const Session::Turn& turn, const Session& waiting, Seconds at) const;
  bool is_promised(const Session& session) const;
  // The sessions that turns have named. Each may have begun by now, with the memory that it had
  // then.
  std::set<SessionNumber> named_successors() const;

  std::string is_valid() const;  // empty, or the first broken invariant in words

  Rules rules;
  const Policy* policy;
  LaneAllocator lanes;
  FairShares shares;
  Residency residency;
  ConcurrencyTuner tuner;
  SessionTable sessions;
  bool recovering = false;
  Seconds now = -kNever;
  std::uint64_t last_order = 0;  // of waits

 private:
  std::string lanes_agree() const;
  std::string ends_agree() const;
  std::string shares_agree() const;
  std::string squeezes_agree() const;
  std::string throttled_agree() const;
  std::string paging_agrees() const;
  std::string paging_agrees(const Session& session) const;
};

}  // namespace gpushare
