// Shortest remaining time first, by weight, for a user's notebooks. If the remaining work is not
// declared, or is overrun, the service so far stands in for it: a session that has run long will
// probably run long. A turn is ended at once for a session that is shorter by more than one
// quantum, so that two equal ones do not switch forever.
#include "core/policies/policies.h"

namespace gpushare {
namespace {

Seconds length(const Candidate& candidate) {
  return candidate.remaining.value_or(candidate.attained.seconds()) / candidate.weight;
}

bool srtf_before(const Candidate& a, const Candidate& b) {
  const Seconds a_is = length(a), b_is = length(b);
  return a_is != b_is ? a_is < b_is : a.order < b.order;
}

// The remaining declared work only shrinks, until it is overrun and its service counts instead;
// service grows.
Seconds srtf_lead(const Candidate& holder, const Candidate& waiting, Seconds quantum) {
  const Seconds bound = length(waiting) + quantum;
  if (holder.remaining && length(holder) > bound) return 0;
  const Seconds declared = holder.remaining.value_or(0);
  const Seconds service = (holder.attained.seconds() + declared) / holder.weight;
  return declared + std::max(0.0, (bound - service) * holder.weight);
}

}  // namespace

constinit const Policy srtf{
    .name = "srtf",
    .sentence =
        "users by share; of a user's notebooks the shortest remaining time first, where the "
        "remaining iterations are declared",
    .before = srtf_before,
    .ends = Ends::at_once,
    .lead = srtf_lead,
    .by_remaining = true,
};

}  // namespace gpushare
