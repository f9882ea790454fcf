// Decides which sessions have a turn on one device.
//
// Events go in with their time, grants and yields come out. Every event changes what is known
// (device_state.h) and then ends in the same pass (pass.h): it admits the sessions that memory
// allows, grants free lanes to the best waiting sessions, asks holders to yield whose turn should
// end, and asks idle sessions to page out where a session that waits for memory then fits. A crash
// is a close and takes no other path.
//
// An event with a bad value raises std::invalid_argument, one of a session that is not open
// UnknownSession, and nothing has changed.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/device/device_state.h"
#include "core/model/types.h"
#include "core/pass/pass.h"
#include "core/view/forecast.h"

namespace gpushare {

class Scheduler {
 public:
  // `least_chunk`: as in lane_allocator.h.
  Scheduler(Bytes capacity, std::string_view policy, const Rules& rules, Bytes least_chunk = 1);

  // A session that is open already is replaced, so that a repeated open is harmless.
  Decision open(Seconds now, const std::string& id, const SessionSpec& spec);
  Decision close(Seconds now, const std::string& id);
  // Harmless if this turn waits or runs already.
  Decision request(Seconds now, const std::string& id, TurnNumber turn);
  // The turn has ended; if it was not granted yet, the request is withdrawn. A turn that is neither
  // is stale and ignored.
  Decision finish(Seconds now, const std::string& id, TurnNumber turn);
  // `iterations` since the last report; without `remaining_iterations`, how many are left is not
  // known any more. A demand that has grown too large for now costs the session its place, never a
  // neighbour anything; one that can never fit is refused.
  Decision report(Seconds now, const std::string& id, std::int64_t iterations, const Demand& demand,
                  std::optional<std::int64_t> remaining_iterations);
  Decision change(Seconds now, const std::string& id, std::optional<double> weight,
                  std::optional<int> priority, std::optional<bool> paused);
  // A session is busy while a cell runs in it. A session that becomes busy while it is paged out
  // waits for room to come back; one that ceases to be busy no longer does.
  Decision set_busy(Seconds now, const std::string& id, bool busy);
  // Its persistent memory is on disk, so it has no place any more. A session that has come to need
  // it meanwhile waits to come back at once.
  Decision paged_out(Seconds now, const std::string& id, Bytes bytes);
  // The session stays, and is not asked again before it has been busy. `why` is shown to sessions
  // of its user that wait for its memory.
  Decision page_out_failed(Seconds now, const std::string& id, const std::string& why = "");
  // Explicit requests to yield, and to page out, whether its time has passed or not. The first
  // throws std::invalid_argument for a session that does not run, the second for a session that
  // runs a cell or is out already.
  Decision preempt(Seconds now, const std::string& id);
  Decision evict(Seconds now, const std::string& id);
  // A session that is not admissible loses its place, and is not admitted; it must have no turn.
  Decision set_admissible(Seconds now, const std::string& id, bool admissible);
  // Sets the throttled sessions, and why each is. A throttled session that runs is asked to yield.
  // One that waits is granted nothing, is not admitted, and delays no other session; once it is no
  // longer throttled, it waits as a new request.
  Decision throttle(Seconds now, const std::map<std::string, Why>& reasons);
  // Weights of groups and users by name, from now on; an absent name has 1.
  Decision set_shares(Seconds now, const std::map<std::string, double>& groups,
                      const std::map<std::string, double>& users);
  Decision set_policy(Seconds now, std::string_view name);
  Decision set_running_lanes(Seconds now, int lanes);
  // Sets the unmanaged memory, used by programs that are not sessions, at most all of the device.
  // No session loses a turn or a place to it, but idle sessions are asked to page out; a new
  // session finds less room.
  Decision set_unmanaged(Seconds now, Bytes bytes);
  // While it recovers, a session that comes with a turn keeps it and one that requests a turn
  // waits: others may have turns that are not known yet.
  Decision set_recovering(Seconds now, bool recovering);

  Decision assign(Seconds now);
  // When time alone changes something: a turn that should end, a lease or aging that runs out.
  std::optional<Seconds> next_event(Seconds now) const { return pass_.next_event(now); }
  DeviceSnapshot snapshot(Seconds now) const;
  std::vector<Holder> holders(Seconds now) const;  // in the order in which they opened
  std::string is_valid() const;                    // empty, or the first broken invariant in words

  // Whether this session would keep its place, or find one, if its persistent memory were at least
  // this.
  bool may_keep(const std::string& id, Bytes persistent) const;
  bool contains(const std::string& id) const { return state_->sessions.contains(id); }
  bool recovering() const { return state_->recovering; }
  const DeviceState& state() const { return *state_; }

 private:
  Session& known(const std::string& id) { return state_->sessions.of(id); }
  void advance(Seconds now);
  void happen(Seconds now);
  Decision pass(Session::Successor due = {});
  void follow_iterations(Session& session, std::int64_t iterations, Seconds seconds,
                         const Demand& demand);

  std::unique_ptr<DeviceState> state_;
  Pass pass_{*state_};
  mutable Forecast forecast_;
  // The time of the last event that may explain a new order of the waiting sessions. Time alone
  // explains none, so viewers see the order at this time.
  Seconds ordered_ = -kNever;
};

}  // namespace gpushare
