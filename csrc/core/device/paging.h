// Follows where the persistent memory of sessions is: where their cells and waits need it, and
// where they report it. A session that is paged out has no place until there is room for it again.
//
// eviction.h decides which sessions are asked to page out.
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
  // The session needs its memory: a request to page out is withdrawn, and if it is out, it waits to
  // be paged in. That wait counts from an earlier request, if there is one.
  void call_back(Session& session);
  void give_up_return(Session& session);
  void bring_in(Session& session);

 private:
  void count_return(Session& session);

  DeviceState& state_;
};

}  // namespace gpushare
