// Numbers as people read them, for what the core refuses: "6.0 GiB". format.py has the same rule.
#pragma once

#include <string>

#include "core/model/types.h"

namespace gpushare {

std::string bytes_in_words(Bytes bytes);

}  // namespace gpushare
