// The table of policies: each name stands for a file of this folder, in the order in which people
// read them. All other lists follow from it.
#pragma once

#include <algorithm>

#include "core/policies/policy.h"

namespace gpushare {

#define GPUSHARE_POLICIES fair, fifo, srtf, pack, las, classroom

extern const Policy GPUSHARE_POLICIES;

}  // namespace gpushare
