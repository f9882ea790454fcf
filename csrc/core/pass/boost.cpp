#include "core/pass/boost.h"

#include <algorithm>

namespace gpushare {

// Returns the rest of its cell's boost, limited so that at no level of shares it gets further ahead
// of the lowest clock of the others than the boost. So frequent or many cells gain nothing over
// time, and a long one is passed over for a bounded time only. A session that is further ahead
// waits for its share like all others, and goes first again once they have come near. With 0.5 s,
// thirty sessions that work beside eight long trainings saw progress after 0.12 s in 95 of 100
// cells instead of 2 s, in virtual time; 0.1 s and 2 s did as well for them, but the former ends
// few cells, and the latter makes the long ones wait longer.
Seconds Boost::of(const Session& session) {
  if (!session.share().active) return 0;
  const Seconds used = session.device_seconds + running_seconds(session, now_);
  const Seconds left = state_.rules.boost - (used - session.before_cell);
  if (left <= 0) return 0;
  const Seconds near = state_.rules.boost - state_.shares.ahead(session.shares, below_, now_);
  return std::max(0.0, std::min(left, near));
}

}  // namespace gpushare
