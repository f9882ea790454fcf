#pragma once
#include <unistd.h>

#include <cstddef>

namespace gpushare {

inline const std::size_t kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

}  // namespace gpushare
