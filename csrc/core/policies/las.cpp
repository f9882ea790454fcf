// Least attained service, for a user's notebooks: the one that has used the device least, by
// weight, comes first. Short work ends soon although its length is not declared.
#include "core/policies/policies.h"

namespace gpushare {
namespace {

Faded service(const Candidate& candidate) { return candidate.attained / candidate.weight; }

bool las_before(const Candidate& a, const Candidate& b) {
  const Faded a_has = service(a), b_has = service(b);
  return a_has != b_has ? a_has < b_has : a.order < b.order;
}

Seconds las_lead(const Candidate& holder, const Candidate& waiting, Seconds) {
  return (service(waiting) - service(holder)) * holder.weight;
}

}  // namespace

constinit const Policy las{
    .name = "las",
    .sentence =
        "users by share; of a user's notebooks the least attained service first: short work ends "
        "soon without being declared",
    .before = las_before,
    .ends = Ends::after_quantum,
    .lead = las_lead,
};

}  // namespace gpushare
