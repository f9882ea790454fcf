// Ranges of what goes into the core: a value outside raises std::invalid_argument with a sentence
// that says what would be right, and nothing has changed by then.
#pragma once

#include <cstdint>
#include <string>

#include "core/model/types.h"

namespace gpushare {

void require(bool condition, const char* sentence);  // raises std::invalid_argument
void require(bool condition, const std::string& sentence);
void check_time(Seconds time);
void check_weight(double weight);
void check_running_lanes(int lanes);
void check_iterations(std::int64_t iterations);
void check_paged_out(Bytes bytes);
void check_rules(const Rules& rules);

}  // namespace gpushare
