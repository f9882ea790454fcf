#include "core/device/session.h"

#include "core/device/squeeze.h"

namespace gpushare {

bool waits(const Session& session) {
  const Residence residence = session.memory.residence();
  if (residence == Residence::leaving) return false;
  return wants_turn(session) || (residence == Residence::returning && !is_throttled(session));
}

Demand room_for(const Session& session, Bytes left) {
  const Demand& demand = session.demand;
  return {demand.persistent, choice(demand, left).bytes, demand.measured};
}

bool trust(const Session& a, const Session& b) {
  return a.domain == b.domain && (!a.domain.empty() || a.user == b.user);
}

bool may_share(const Session& a, const Session& b) {
  const auto can = [](const Session& session) {
    return session.can_share && !session.alone && session.demand.measured;
  };
  return can(a) && can(b) && trust(a, b);
}

bool can_be_paged_out(const Session& session) {
  return session.memory.residence() == Residence::in && !session.memory.refused() &&
         !session.alone && !session.turn && session.demand.persistent > 0;
}

bool may_be_paged_out(const Session& session) {
  return can_be_paged_out(session) && !session.busy && !session.request;
}

std::optional<Seconds> iteration(const Session& session) {
  if (session.iterations == 0) return std::nullopt;
  return session.reported_seconds / static_cast<double>(session.iterations);
}

std::optional<Seconds> remaining(const Session& session, Seconds running) {
  if (!session.remaining_iterations || session.iterations == 0) return std::nullopt;
  const Seconds since = session.device_seconds + running - session.reported_seconds;
  const Seconds left =
      static_cast<double>(*session.remaining_iterations) * *iteration(session) - since;
  return left > 0 ? std::optional(left) : std::nullopt;
}

}  // namespace gpushare
