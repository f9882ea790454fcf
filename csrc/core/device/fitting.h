// The memory that sessions of a device have for iterations, by the rule of squeeze.h: which
// newcomer finds room, and how far the others are squeezed for it.
#pragma once

#include <functional>
#include <optional>
#include <set>

#include "core/device/device_state.h"
#include "core/device/squeeze.h"
#include "core/model/types.h"

namespace gpushare {

// A session on whole devices is alone in its turn, and is not squeezed.
Demand squeezable(const Rules& rules, Demand demand, bool alone);
// The memory that an iteration may take; absent: the session is not squeezed, or has no place.
std::optional<SqueezeOption> squeezed(const DeviceState& state, const Session& session);
// The memory of a session in a turn that it brings: the option of these bytes, or all that it needs
// where it has no such option or is not squeezed (0).
Demand brought_room(const Session& session, Bytes squeezed_bytes);
// The least memory that a session needs: beside a newcomer, if iterations had `left` bytes before;
// and as a newcomer itself.
Demand least_room(const Session& session, Bytes left);
Demand floor_room(const Session& session);

// The room for newcomers at one moment.
class Fitting {
 public:
  explicit Fitting(const DeviceState& state);

  bool has_room(const Session& newcomer) const;
  // Whether it has room as soon as no session runs.
  bool has_room_when_idle(const Session& newcomer) const {
    return squeeze_.admits(newcomer.demand, true);
  }
  // Whether those that run keep no more than it leaves them.
  bool has_room_beside_those_that_run(const Session& newcomer) const {
    return squeeze_.admits_beside_those_that_run(newcomer.demand);
  }

 private:
  const DeviceState& state_;
  Squeeze squeeze_;
};

// Gives sessions their places, and changes what they have there.
class Placement {
 public:
  explicit Placement(DeviceState& state) : state_(state) {}

  // Admits it to what the others leave once they are squeezed for it.
  void admit(const Session& session);
  // Sessions that do not run are squeezed at once.
  void squeeze_to(Bytes left);
  void grow_back();
  // A holder that has outgrown its place keeps it until its turn ends, which is asked for at once.
  void fit_to_demand(const Session& session);

 private:
  using Visit = std::function<void(const Session&, bool keeps)>;

  void each_squeezable(const Visit& visit) const;
  void fit(const Session& session, Bytes left, bool keeps);

  DeviceState& state_;
};

}  // namespace gpushare
