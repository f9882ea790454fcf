// Users in turn, and short turns: who was served longest ago is next. A user's notebooks share its
// turns by their weight, so that nobody gets more by opening more of them or by making them heavy.
#include <tuple>

#include "core/policies/fair.h"
#include "core/policies/policies.h"

namespace gpushare {
namespace {

bool before(const Candidate& a, const Candidate& b) {
  return std::tie(a.user_served, a.clock, a.order) < std::tie(b.user_served, b.clock, b.order);
}

Seconds lead(const Candidate& holder, const Candidate& waiting, Seconds quantum) {
  return holder.user == waiting.user ? fair_lead(holder, waiting, quantum) : 0;
}

}  // namespace

constinit const Policy classroom{
    .name = "classroom",
    .sentence = "each user in turn, for short turns; a user's notebooks share them by weight",
    .before = before,
    .ends = Ends::after_quantum,
    .lead = lead,
    .expected = quantum_left,
    .turn = 0.2,
};

}  // namespace gpushare
