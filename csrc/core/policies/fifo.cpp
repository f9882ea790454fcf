// First come, first served, for a user's notebooks: ordered by the time since they came into the
// queue, times the weight. A turn lasts until its cell ends or another user's turn comes; then it
// goes on where it was, before those that came later.
#include "core/policies/policies.h"

namespace gpushare {
namespace {

bool fifo_before(const Candidate& a, const Candidate& b) {
  const double a_waits = a.queued * a.weight, b_waits = b.queued * b.weight;
  return a_waits != b_waits ? a_waits > b_waits : a.queue_order < b.queue_order;
}

Seconds fifo_lead(const Candidate&, const Candidate&, Seconds) { return kNever; }

}  // namespace

constinit const Policy fifo{
    .name = "fifo",
    .sentence =
        "users by share; a user's notebooks first come, first served, each until its cell ends",
    .before = fifo_before,
    .ends = Ends::never,
    .lead = fifo_lead,
};

}  // namespace gpushare
