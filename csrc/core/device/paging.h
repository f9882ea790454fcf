// Where the persistent memory of sessions is, as their cells, waits and turns want it, and as they
// say themselves. A session is out, without a place, until there is room for it again.
//
// Which sessions are asked to page out is decided elsewhere (eviction.h).
#pragma once

#include <optional>
#include <string>

#include "core/device/device_state.h"
#include "core/model/types.h"

namespace gpushare {

class Paging {
 public:
  explicit Paging(DeviceState& state) : state_(state) {}

  void begin_cell(Session& session);
  void end_cell(Session& session);
  // Its persistent memory is on disk, so it has no place any more.
  void page_out(Session& session, Bytes bytes);
  // It has come to need its memory: a request to page out is withdrawn, and if it is out, it waits
  // to come back. That wait counts from an earlier request, if there is one.
  void call_back(Session& session);
  void give_up_return(Session& session);
  void bring_in(Session& session);

 private:
  void count_return(Session& session);

  DeviceState& state_;
};

}  // namespace gpushare
