// Short turns, and among equal users the one served longest ago is next: round robin. A user's
// notebooks share its turns by their weight.
#include <tuple>

#include "core/policies/fair.h"
#include "core/policies/policies.h"

namespace gpushare {
namespace {

bool classroom_before(const Candidate& a, const Candidate& b) {
  return std::tie(a.user_served, a.clock, a.order) < std::tie(b.user_served, b.clock, b.order);
}

}  // namespace

constinit const Policy classroom{
    .name = "classroom",
    .sentence = "users by share, in short turns; a user's notebooks share them by weight",
    .before = classroom_before,
    .ends = Ends::after_quantum,
    .lead = fair_lead,
    .turn = 0.2,
};

}  // namespace gpushare
