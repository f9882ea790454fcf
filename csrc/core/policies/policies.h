// One file each; the table is in policy.cpp.
#pragma once

#include <algorithm>

#include "core/policy.h"

namespace gpushare {

extern const Policy fair, fifo, srtf, pack, las, classroom;

}  // namespace gpushare
