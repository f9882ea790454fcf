#include "core/tuner/session_mix.h"

#include <algorithm>

namespace gpushare {
namespace {

constexpr double kGone = 8;  // quanta; a session that wants nothing for longer is not there

}  // namespace

// Between two turns a session wants nothing for a moment.
void SessionMix::follow(Seconds now, const std::vector<SessionNumber>& wanting) {
  for (const SessionNumber session : wanting_)
    if (const auto found = known_.find(session); found != known_.end()) found->second.wanted = now;
  wanting_ = wanting;
  for (const SessionNumber session : wanting)
    known_.try_emplace(session, Known{SoloPace(now), now}).first->second.wanted = now;
  mix_.clear();
  for (const auto& [session, known] : known_)
    if (known.wanted >= now - kGone * quantum_) mix_.insert(session);
}

SoloPace* SessionMix::find(SessionNumber session) {
  const auto found = known_.find(session);
  return found == known_.end() ? nullptr : &found->second.pace;
}

bool SessionMix::is_any_known() const {
  return std::ranges::any_of(
      mix_, [&](SessionNumber session) { return known_.at(session).pace.is_known(quantum_); });
}

bool SessionMix::are_all_known(Seconds since) const {
  return std::ranges::all_of(mix_, [&](SessionNumber session) {
    const SoloPace& pace = known_.at(session).pace;
    return pace.is_known(quantum_) && pace.seen() >= since;
  });
}

std::string SessionMix::is_valid() const {
  const bool is_right =
      std::ranges::all_of(mix_, [&](SessionNumber session) { return known_.contains(session); });
  return is_right ? "" : "nothing is known of a session in the mix";
}

}  // namespace gpushare
