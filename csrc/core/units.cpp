#include "core/units.h"

#include <cstdio>

namespace gpushare {
namespace {

std::string number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace

std::string bytes_in_words(Bytes bytes) {
  auto amount = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (amount < 1000) break;
    amount /= 1024;
    unit = larger;
  }
  const bool is_whole = bytes < 1000 || amount >= 100;
  return number(is_whole ? "%.0f " : "%.1f ", amount) + unit;
}

}  // namespace gpushare
