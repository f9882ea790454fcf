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
  if (amount < 1000) return number("%.0f B", amount);
  for (const char* format : {"%.1f KiB", "%.1f MiB", "%.1f GiB"}) {
    amount /= 1024;
    if (amount < 1000) return number(format, amount);
  }
  return number("%.1f TiB", amount / 1024);
}

}  // namespace gpushare
