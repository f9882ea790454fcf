// Equal time to all users, and within a user to notebooks by their weight. Clocks go with the time
// used; the lowest is served first, and a turn ends when its clock has passed that of one who
// waits.
#include "core/policies/fair.h"

#include <tuple>

#include "core/policies/policies.h"

namespace gpushare {

bool fair_before(const Candidate& a, const Candidate& b) {
  return std::tie(a.user_clock, a.clock, a.order) < std::tie(b.user_clock, b.clock, b.order);
}

Seconds fair_lead(const Candidate& holder, const Candidate& waiting, Seconds) {
  if (holder.user == waiting.user) return (waiting.clock - holder.clock) * holder.weight;
  return (waiting.user_clock - holder.user_clock) / std::max(1, holder.user_turns);
}

constinit const Policy fair{
    .name = "fair",
    .sentence = "equal time to each user, and to a user's notebooks by their weight",
    .before = fair_before,
    .ends = Ends::after_quantum,
    .lead = fair_lead,
    .expected = quantum_left,
};

}  // namespace gpushare
