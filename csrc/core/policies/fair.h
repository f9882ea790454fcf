// The order of fairness among a user's notebooks, which `pack` and `classroom` have too.
#pragma once

#include "core/policies/policy.h"

namespace gpushare {

bool fair_before(const Candidate& a, const Candidate& b);
Seconds fair_lead(const Candidate& holder, const Candidate& waiting, Seconds quantum);

}  // namespace gpushare
