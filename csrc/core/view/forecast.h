// Expected waits: when waiting sessions begin, if no other session comes (rehearsal.h).
//
// A wait is absent if a turn with an unknown end comes first. If several lanes run, waits for the
// other lanes are still known; but soon after that turn should end, it is unknown which session
// follows it. A wait is also absent during a probe, since the number of lanes after it is unknown,
// and if it is above a day, as after a loop of a billion declared iterations.
//
// A wait is an upper bound if a cell that has not declared its iterations may end before: then
// others begin sooner.
//
// A forecast is replaced only when its cost is small against the time since the last one, so a
// reader may get an older forecast.
#pragma once

#include <optional>
#include <unordered_map>

#include "core/device/device_state.h"
#include "core/model/types.h"
#include "core/view/rehearsal.h"

namespace gpushare {

class Forecast {
 public:
  struct Expected {
    Seconds wait;
    bool is_bound;
  };

  // Seconds from now until the turn that the session waits for; it must have a place.
  std::optional<Expected> wait(const DeviceState& state, const Session& session, Seconds now);
  // Something has happened: forecasts that were cheap to make are made again.
  void age();

 private:
  void make(const DeviceState& state, Seconds now);

  Seconds made_ = kNever, kept_ = -kNever;  // when, and until when it answers
  std::unordered_map<SessionNumber, Rehearsal::Begin> begins_;
};

}  // namespace gpushare
