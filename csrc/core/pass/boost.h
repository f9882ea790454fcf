// The rest of each cell's boost at one moment.
#pragma once

#include "core/device/device_state.h"
#include "core/model/types.h"

namespace gpushare {

class Boost {
 public:
  Boost(const DeviceState& state, Seconds now) : state_(state), now_(now) {}

  Seconds of(const Session& session);

 private:
  const DeviceState& state_;
  const Seconds now_;
  FairShares::ClocksBelow below_;
};

}  // namespace gpushare
