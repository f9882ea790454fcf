// Numbers as people read them: "6.0 GB", "42 s".
#pragma once

#include <string>

#include "core/types.h"

namespace gpushare {

std::string bytes_in_words(Bytes bytes);
std::string seconds_in_words(Seconds seconds);

}  // namespace gpushare
