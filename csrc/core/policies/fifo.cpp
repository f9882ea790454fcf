// First come, first served: who has waited longest, times its weight. A turn lasts until its cell
// ends.
#include "core/policies/policies.h"

namespace gpushare {
namespace {

bool before(const Candidate& a, const Candidate& b) {
  const double a_waits = a.waiting * a.weight, b_waits = b.waiting * b.weight;
  return a_waits != b_waits ? a_waits > b_waits : a.order < b.order;
}

Seconds lead(const Candidate&, const Candidate&, Seconds) { return kNever; }

std::optional<Seconds> expected(const Candidate& candidate, Seconds) { return candidate.remaining; }

}  // namespace

constinit const Policy fifo{
    .name = "fifo",
    .sentence = "first come, first served; a turn lasts until its cell ends",
    .before = before,
    .ends = Ends::never,
    .lead = lead,
    .expected = expected,
};

}  // namespace gpushare
