#include "core/model/units.h"

#include <cmath>
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
  if (bytes < 1000 || amount >= 100) return number("%.0f ", std::floor(amount + 0.5)) + unit;
  return number("%.1f ", std::floor(10 * amount + 0.5) / 10) + unit;
}

}  // namespace gpushare
