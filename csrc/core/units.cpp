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
  const auto value = static_cast<double>(bytes);
  if (value < 1e3) return number("%.0f B", value);
  if (value < 1e6) return number("%.1f kB", value / 1e3);
  if (value < 1e9) return number("%.1f MB", value / 1e6);
  return number("%.1f GB", value / 1e9);
}

}  // namespace gpushare
