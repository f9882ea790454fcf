#include "core/device/fitting.h"

#include <algorithm>

namespace gpushare {

Demand squeezable(const Rules& rules, Demand demand, bool alone) {
  if (!rules.squeeze || alone) demand.options.clear();
  return demand;
}

std::optional<SqueezeOption> squeezed(const DeviceState& state, const Session& session) {
  const Demand& demand = session.demand;
  if (demand.options.empty() || !state.has_place(session)) return std::nullopt;
  const Bytes has = state.lanes.table().demand_of(session.number).ephemeral;
  if (has >= unsqueezed(demand)) return std::nullopt;
  return SqueezeOption{has, choice(demand, has).slowdown};
}

Demand brought_room(const Session& session, Bytes squeezed_bytes) {
  const Demand& demand = session.demand;
  const bool is_squeezed = squeezed_bytes > 0 && option_of(demand, squeezed_bytes);
  return {demand.persistent, is_squeezed ? squeezed_bytes : unsqueezed(demand), demand.measured};
}

Demand least_room(const Session& session, Bytes left) {
  const Demand& demand = session.demand;
  const double slowdown = std::max(session.bears, choice(demand, left).slowdown);
  return {demand.persistent, least_of(demand, slowdown), demand.measured};
}

Demand floor_room(const Session& session) {
  return {session.demand.persistent, floor_of(session.demand), session.demand.measured};
}

// --- the room for newcomers ----------------------------------------------------------------------

Fitting::Fitting(const DeviceState& state) : state_(state), squeeze_(state.lanes.left()) {
  const std::set<SessionNumber> named = state.named_successors();
  for (const Session& session : state.sessions)
    if (state.has_place(session))
      squeeze_.add(session.demand, session.bears,
                   state.lanes.table().demand_of(session.number).ephemeral,
                   session.turn || named.contains(session.number));
}

// A newcomer that wants nothing yet slows no other.
bool Fitting::has_room(const Session& newcomer) const {
  const Demand& demand = newcomer.demand;
  if (!squeeze_.admits(demand, waits(newcomer))) return false;
  if (state_.lanes.fits(room_for(newcomer, squeeze_.left_with(demand)))) return true;
  const LaneTable& table = state_.lanes.table();
  return table.held() <= 1 && table.with_ends() == 0 && has_room_beside_those_that_run(newcomer);
}

// --- places --------------------------------------------------------------------------------------

void Placement::admit(const Session& session) {
  const Bytes left = state_.lanes.left() - session.demand.persistent;
  squeeze_to(left);
  state_.lanes.place(session.number, room_for(session, left), state_.limit());
}

void Placement::squeeze_to(Bytes left) {
  each_squeezable([&](const Session& session, bool keeps) {
    const Bytes may_have = choice(session.demand, left).bytes;
    if (!keeps && may_have < state_.lanes.table().demand_of(session.number).ephemeral)
      fit(session, left, keeps);
  });
}

void Placement::grow_back() {
  each_squeezable(
      [&](const Session& session, bool keeps) { fit(session, state_.lanes.left(), keeps); });
}

// A holder that has outgrown its place is left as it is until its turn ends.
void Placement::each_squeezable(const Visit& visit) const {
  if (!state_.sessions.can_squeeze()) return;
  const std::set<SessionNumber> named = state_.named_successors();
  for (const Session& session : state_.sessions) {
    if (session.demand.options.empty() || !state_.has_place(session)) continue;
    if (state_.has_outgrown(session)) continue;
    visit(session, session.turn || named.contains(session.number));
  }
}

// Gives it the largest of its options that is at most `left` and fits. If it `keeps` its memory,
// the option is no smaller than that memory, unless it needs less. If none fits, its place stays as
// it is.
void Placement::fit(const Session& session, Bytes left, bool keeps) {
  const Demand& demand = session.demand;
  const Bytes has = state_.lanes.table().demand_of(session.number).ephemeral;
  for (SqueezeOption option = choice(demand, left);; option = choice(demand, option.bytes - 1)) {
    if (keeps && option.bytes < std::min(has, unsqueezed(demand))) return;
    const Demand room{demand.persistent, option.bytes, demand.measured};
    if (state_.lanes.resize(session.number, room) || option.bytes <= floor_of(demand)) return;
  }
}

void Placement::fit_to_demand(const Session& session) {
  if (!state_.has_place(session)) return;
  const Bytes left =
      state_.lanes.left() + state_.lanes.table().demand_of(session.number).persistent;
  const bool may_have_begun =
      !session.demand.options.empty() && state_.named_successors().contains(session.number);
  fit(session, left - session.demand.persistent, session.turn || may_have_begun);
  if (!session.turn && state_.has_outgrown(session)) state_.lanes.remove(session.number);
}

}  // namespace gpushare
