#include "core/device/paging.h"

#include <algorithm>
#include <utility>

namespace gpushare {

void Paging::begin_cell(Session& session) {
  if (!std::exchange(session.busy, true)) {
    session.before_cell = session.device_seconds + running_seconds(session, state_.now);
    session.position.reset();  // another cell
  }
  state_.residency.begin_cell(session.memory);
  call_back(session);
}

void Paging::end_cell(Session& session) {
  if (std::exchange(session.busy, false)) state_.residency.use(session.memory);
  if (session.memory.residence() == Residence::returning && !session.request)
    give_up_return(session);
}

// A session that runs, or may have begun by a handoff, keeps its place. One that has come to need
// its memory meanwhile waits to come back at once.
void Paging::page_out(Session& session, Bytes bytes) {
  state_.residency.leave(session.memory, bytes);
  if (session.turn || state_.is_promised(session)) return bring_in(session);
  if (state_.has_place(session)) state_.lanes.remove(session.number);
  if (session.request) state_.residency.note_eviction(session.memory);
  if (session.busy || session.request) call_back(session);
}

void Paging::call_back(Session& session) {
  state_.residency.let_stay(session.memory);
  if (session.memory.residence() != Residence::out) return;
  state_.residency.call_back(session.memory,
                             session.request ? Wait(*session.request) : state_.new_wait());
}

// Counts the wait to come back; a request made meanwhile goes on waiting.
void Paging::count_return(Session& session) {
  const Seconds until = session.request ? session.request->since : state_.now;
  session.waited_seconds += until - session.memory.back().since;
}

void Paging::give_up_return(Session& session) {
  count_return(session);
  state_.residency.give_up_return(session.memory);
}

void Paging::bring_in(Session& session) {
  if (session.memory.residence() == Residence::returning) count_return(session);
  state_.residency.come_in(session.memory, session.id);
  if (session.turn)
    session.turn->boundary = std::max(state_.now, state_.is_in_by(session).value_or(state_.now));
}

}  // namespace gpushare
