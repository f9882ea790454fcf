// Least attained service: who has used the device least, by weight, comes first. Short work is over
// soon although nobody has to say how long it takes.
#include "core/policies/policies.h"

namespace gpushare {
namespace {

Seconds service(const Candidate& candidate) { return candidate.attained / candidate.weight; }

bool before(const Candidate& a, const Candidate& b) {
  const Seconds a_has = service(a), b_has = service(b);
  return a_has != b_has ? a_has < b_has : a.order < b.order;
}

Seconds lead(const Candidate& holder, const Candidate& waiting, Seconds) {
  return (service(waiting) - service(holder)) * holder.weight;
}

}  // namespace

constinit const Policy las{
    .name = "las",
    .sentence = "least attained service first: short work ends soon without being declared",
    .before = before,
    .ends = Ends::after_quantum,
    .lead = lead,
    .expected = quantum_left,
};

}  // namespace gpushare
