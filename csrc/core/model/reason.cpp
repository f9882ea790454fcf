#include "core/model/reason.h"

#include <algorithm>
#include <array>

#include "core/model/validation.h"

namespace gpushare {
namespace {

constexpr std::array<const char*, kCodes> kNames = {
    "idle",
    "needs_no_turn",
    "comes_back",
    "did_not_fit",
    "paused",
    "throttled",
    "throttled_for_class",
    "throttled_for_class_until",
    "throttled_for_reservation",
    "throttled_too_many_waiting",
    "throttled_used_up",
    "above_persistent",
    "above_lane",
    "above_class_part",
    "ask_contact",
    "ask_operator",
    "runs",
    "runs_beside",
    "runs_until_measured",
    "runs_with_whole_device",
    "runs_with_whole_devices",
    "asked_to_yield",
    "yields_to_others",
    "overdue",
    "asked_to_page_out",
    "asked_to_page_out_for",
    "asked_to_page_out_for_programs",
    "paged_out",
    "paged_out_for",
    "paged_out_for_programs",
    "recovering",
    "squeezed",
    "squeezed_for",
    "needs_whole_device",
    "waits",
    "waits_for",
    "other_is_overdue",
    "other_has_whole_device",
    "other_runs_until_measured",
    "remaining_unknown",
    "waits_for_memory",
    "waits_to_come_back",
    "needs_bytes",
    "used_by_programs",
    "is_next",
    "fewer_at_once",
    "has_no_lane",
    "comes_first",
    "not_paged_out",
    "not_paged_out_because",
    "not_paged_out_unanswered",
    "waits_for_devices",
    "other_gangs_first",
    "device_recovering",
    "throttled_on_device",
    "device_too_full",
    "device_held_by",
    "lanes_measured_alone",
    "lanes_tried",
    "lanes_unseen",
    "lanes_gain",
    "lanes_lost",
    "lanes_gain_little",
};
static_assert(kNames.back() != nullptr, "each code has a name");

}  // namespace

const char* name(Code code) { return kNames.at(static_cast<std::size_t>(code)); }

Code code_named(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  require(found != kNames.end(), "there is no reason '" + std::string(name) + "'");
  return static_cast<Code>(found - kNames.begin());
}

}  // namespace gpushare
