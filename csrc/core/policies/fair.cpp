// A weighted fair share for a user's notebooks, as groups and users have theirs. Clocks go with the
// time used; the lowest is served first, and a turn ends when its clock has passed that of a
// waiting session.
#include "core/policies/fair.h"

#include <tuple>

#include "core/policies/policies.h"

namespace gpushare {

bool fair_before(const Candidate& a, const Candidate& b) {
  return std::tie(a.clock, a.order) < std::tie(b.clock, b.order);
}

Seconds fair_lead(const Candidate& holder, const Candidate& waiting, Seconds) {
  return (waiting.clock - holder.clock) * holder.weight;
}

constinit const Policy fair{
    .name = "fair",
    .sentence = "time by weight to groups, to their users, and to a user's notebooks",
    .before = fair_before,
    .ends = Ends::after_quantum,
    .lead = fair_lead,
    .boosts = true,
};

}  // namespace gpushare
