// Time by weight to groups, within a group to its users, and within a user to notebooks. Clocks go
// with the time used; the lowest is served first, and a turn ends when its clock has passed that of
// one who waits.
#include "core/policies/fair.h"

#include <tuple>

#include "core/policies/policies.h"

namespace gpushare {

bool fair_before(const Candidate& a, const Candidate& b) {
  return std::tie(a.group_clock, a.user_clock, a.clock, a.order) <
         std::tie(b.group_clock, b.user_clock, b.clock, b.order);
}

Seconds fair_lead(const Candidate& holder, const Candidate& waiting, Seconds) {
  if (holder.user == waiting.user) return (waiting.clock - holder.clock) * holder.weight;
  if (holder.group == waiting.group)
    return (waiting.user_clock - holder.user_clock) * holder.user_weight /
           std::max(1, holder.user_turns);
  return (waiting.group_clock - holder.group_clock) * holder.group_weight /
         std::max(1, holder.group_turns);
}

constinit const Policy fair{
    .name = "fair",
    .sentence = "time by weight to groups, to their users, and to a user's notebooks",
    .before = fair_before,
    .ends = Ends::after_quantum,
    .lead = fair_lead,
    .expected = quantum_left,
    .boosts = true,
};

}  // namespace gpushare
