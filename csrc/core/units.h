// Numbers as people read them: "6.0 GB".
#pragma once

#include <string>

#include "core/types.h"

namespace gpushare {

std::string bytes_in_words(Bytes bytes);

}  // namespace gpushare
