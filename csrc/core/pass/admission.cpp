#include "core/pass/admission.h"

#include <algorithm>

#include "core/device/fitting.h"

namespace gpushare {
namespace {

// Whether it wants its ephemeral memory beside that of others.
bool wants_lane(const Session& session) {
  const bool runs = session.busy || session.turn || session.request;
  return runs && session.demand.measured && !session.alone && !session.paused &&
         !is_throttled(session);
}

}  // namespace

SessionNumber Admission::next() const {
  if (state_.all_have_places()) return kNoSession;
  const Fitting fitting(state_);
  return first([&](const Session& session) {
    return fitting.has_room(session) && may_be_admitted(session);
  });
}

// The memory of a running session without a place is not counted, so no session is admitted beside
// it.
SessionNumber Admission::first(const std::function<bool(const Session&)>& has_room) const {
  std::optional<RunQueueEntry> best;
  for (const Session& session : state_.sessions) {
    if (!seeks_place(session)) continue;
    if (session.turn) return kNoSession;
    if (is_throttled(session)) continue;
    if (!reserves(session) && !has_room(session)) continue;
    const RunQueueEntry entry(state_, session, now_);
    if (!best || goes_before(entry, *best)) best = entry;
  }
  return best && has_room(*best->session) ? best->session->number : kNoSession;
}

std::optional<RunQueueEntry> Admission::first_aged() const {
  std::optional<RunQueueEntry> first;
  for (const Session& session : state_.sessions) {
    if (!seeks_place(session)) continue;
    if (session.turn) return std::nullopt;
    if (!has_aged(session)) continue;
    const RunQueueEntry entry(state_, session, now_);
    if (!first || before(*state_.policy, entry.view, first->view)) first = entry;
  }
  return first;
}

bool Admission::seeks_place(const Session& session) const {
  return session.admissible && session.memory.residence() != Residence::out &&
         !state_.has_place(session);
}

// --- which one comes first -----------------------------------------------------------------------

// Sessions that are past their aging come first, the oldest first, unless others are evicted for
// them; then sessions that wait, by policy; then sessions that are only open.
bool Admission::goes_before(const RunQueueEntry& a, const RunQueueEntry& b) const {
  const int a_ranks = rank(a), b_ranks = rank(b);
  if (a_ranks != b_ranks) return a_ranks < b_ranks;
  if (a_ranks == 0) return a.view.order < b.view.order;
  return a_ranks == 1 ? before(*state_.policy, a.view, b.view)
                      : a.session->number < b.session->number;
}

int Admission::rank(const RunQueueEntry& of) const {
  if (reserves(*of.session)) return 0;
  return waits(*of.session) ? 1 : 2;
}

// A session for which waiting sessions are evicted reserves only during the eviction: otherwise an
// evicted session would be back before the others are out, and be evicted again.
bool Admission::reserves(const Session& session) const {
  return has_aged(session) &&
         (!state_.evicts_waiting() || state_.residency.is_evicting_for(session.number));
}

bool Admission::has_aged(const Session& session) const {
  return waits(session) && now_ >= ages_at(state_, session) - kSoon;
}

// A session that was evicted for another one waits for memory since then.
Seconds Admission::ages_at(const DeviceState& state, const Session& session) {
  return std::max(wait_of(session)->since, session.memory.last_evicted()) + state.rules.aging;
}

// --- several lanes -------------------------------------------------------------------------------

// Held lanes do not merge, those with ends keep their width, and holders are not squeezed. If that
// would free the memory that a waiting session needs, the first such session waits for all holders,
// so that their turns end.
void Admission::mark(std::vector<RunQueueEntry>& waiting) const {
  if (state_.lanes.table().held() == 0 || state_.all_have_places()) return;
  const Fitting fitting(state_);
  RunQueueEntry* first = nullptr;
  for (RunQueueEntry& entry : waiting)
    if (needs_holders_to_end(entry, fitting) && (!first || goes_before(entry, *first)))
      first = &entry;
  if (!first) return;
  first->everywhere = true;
  first->drains = state_.lanes.table().with_ends() > 0 ||
                  !fitting.has_room_beside_those_that_run(*first->session);
}

bool Admission::needs_holders_to_end(const RunQueueEntry& waiting, const Fitting& fitting) const {
  const Session& session = *waiting.session;
  return waiting.lane == kNoLane && !fitting.has_room(session) &&
         fitting.has_room_when_idle(session) && may_be_admitted(session);
}

// If several lanes are wanted, a session is not admitted before its aging has passed if fewer lanes
// could run at once with it than without it: lanes in use do not merge for it. A session
// whose memory is on the device already, or that runs nothing, is counted as soon as it can be.
bool Admission::may_be_admitted(const Session& session) const {
  const bool is_new = is_out(session) || (session.iterations == 0 && session.device_seconds == 0);
  const bool runs = session.busy || session.request;
  const int wanted = state_.wanted();
  if (wanted == 1 || !is_new || !runs || has_aged(session)) return true;
  const int before = lanes_at_once(nullptr);
  const int enough = wanted == 0 ? before : std::min(before, wanted);
  return enough < 2 || lanes_at_once(&session) >= enough;
}

// The number of sessions with a running cell that fit at once, the newcomer included.
int Admission::lanes_at_once(const Session* newcomer) const {
  const Bytes room = state_.lanes.left() - (newcomer ? newcomer->demand.persistent : 0);
  Bytes left = room;
  std::vector<Bytes> sizes;
  for (const Session& session : state_.sessions)
    if ((state_.has_place(session) || &session == newcomer) && wants_lane(session))
      sizes.push_back(choice(session.demand, room).bytes);
  std::ranges::sort(sizes);
  const auto fits = [&](Bytes size) { return (left -= size) >= 0; };
  return static_cast<int>(std::ranges::find_if_not(sizes, fits) - sizes.begin());
}

}  // namespace gpushare
