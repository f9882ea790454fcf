// Waits and turns of sessions: how they begin and end. Changes of a session's place, share and
// memory that go with them happen here too, so that all agree.
//
// pass.h decides which session begins or ends.
#pragma once

#include "core/device/device_state.h"
#include "core/device/paging.h"
#include "core/model/types.h"

namespace gpushare {

class Turns {
 public:
  using Successor = Session::Successor;

  explicit Turns(DeviceState& state) : state_(state), paging_(state) {}

  // A session of this id, new or emptied. It keeps its usage, so that opening again gains
  // nothing.
  Session& open(const std::string& id, const SessionSpec& spec);
  // Both return the successor of the turn that ends with it, if it has named one.
  Successor close(Session& session);
  Successor end(Session& session);

  void begin_wait(Session& session, TurnNumber turn);
  void end_wait(Session& session);
  // The wait so far does not count any more, neither for a queue position nor for aging.
  void restart_wait(Session& session);

  // The turn that it waits for begins: in its lane or one that it can move to. If it may run
  // already, the turn begins in whatever lane there is.
  Grant grant(Session& session);
  Grant take_over(Session& session);
  Yield ask_to_yield(Session& session, const Session* successor, LaneId lane);

  // It has done these iterations; returns the seconds of its turns since the last report.
  Seconds count(Session& session, std::int64_t iterations);

 private:
  Session& owned(const std::string& id, const SessionSpec& spec);
  Session& add(const std::string& id, const SessionSpec& spec);
  Successor vacate(Session& session);
  static void recall_past(Session& session, const SessionSpec& spec);
  void adopt(Session& session, TurnNumber turn, const Demand& room);
  void take_lane(const Session& session, const Demand& room);
  void begin(Session& session, TurnNumber turn);
  Grant made(const Session& session, TurnNumber turn) const;

  DeviceState& state_;
  Paging paging_;
};

}  // namespace gpushare
