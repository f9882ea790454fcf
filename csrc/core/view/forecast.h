// Expected waits: when waiting sessions begin, if no other session comes (rehearsal.h).
//
// A wait is absent where a turn with an unknown end comes first. Where several lanes run, others
// may follow in their lanes meanwhile; but soon after that turn should end it is unknown which
// session follows it. A wait is absent too during a probe, since the number of lanes after it is
// unknown; and one above a day, which a loop of a billion declared iterations would give.
//
// A wait is a bound where a cell that has not declared its iterations may end before: others begin
// sooner then.
//
// A forecast is replaced as soon as that costs little of the time since, so a reader may get the
// last one.
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
  // Something has happened: what was cheap to make is made again.
  void age();

 private:
  void make(const DeviceState& state, Seconds now);

  Seconds made_ = kNever, kept_ = -kNever;  // when, and until when it answers
  std::unordered_map<SessionNumber, Rehearsal::Begin> begins_;
};

}  // namespace gpushare
