// Why a session is in its state, as values. The core makes no sentence and knows no name: viewers
// make the sentences, in the reader's language, with the names that the reader may see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpushare {

// One sentence, or a part of one, for each. Viewers have a table with all of them.
enum class Code {
  idle,
  needs_no_turn,  // a cell runs
  comes_back,     // its memory is read from disk
  did_not_fit,    // the last cell that asked for a turn; set where sessions are refused
  paused,

  // A rule throttles it: by what it says of `who`, a group or a user; then whom people may ask.
  throttled,                   // what comes after that says why
  throttled_for_class,         // until the class of the group ends
  throttled_for_class_until,   // until `until`
  throttled_for_reservation,   // of the group, until `until`
  throttled_too_many_waiting,  // `count` may wait, by `rule`
  throttled_used_up,           // until `until`: of this day they had `seconds`, by `rule`
  above_persistent,            // they would have `bytes`, and `rule` allows `whole`
  above_lane,
  above_class_part,  // each of the `count` students of the group `rule` has `whole`
  ask_contact,       // `who`
  ask_operator,

  runs,
  runs_beside,          // `other`, in one lane
  runs_until_measured,  // alone
  runs_with_whole_device,
  runs_with_whole_devices,  // a gang: `count` devices, `device` has their names
  asked_to_yield,
  yields_to_others,
  overdue,
  asked_to_page_out,
  asked_to_page_out_for,           // for `other`
  asked_to_page_out_for_programs,  // that are no sessions
  paged_out,                       // `bytes` of it
  paged_out_for,                   // `other`
  paged_out_for_programs,
  recovering,

  // Whatever it does, its iterations have less memory than they would take.
  squeezed,      // to `bytes` of `whole`, and is `percent` slower
  squeezed_for,  // so that `other` has room

  // It waits for a turn: for which session, and what is particular about that one.
  needs_whole_device,
  waits,
  waits_for,  // `other`
  other_is_overdue,
  other_has_whole_device,
  other_runs_until_measured,
  remaining_unknown,

  // It waits for memory, or for room to come back: what comes after that says why.
  waits_for_memory,
  waits_to_come_back,
  needs_bytes,       // `bytes`, where `free` are free
  used_by_programs,  // `bytes`
  is_next,
  fewer_at_once,
  has_no_lane,            // `other` runs, and has none
  comes_first,            // `other` has waited longer
  not_paged_out,          // `other` could not be
  not_paged_out_because,  // and says in `text` why
  not_paged_out_unanswered,

  // A gang waits until all of its `count` devices are free: what comes after that says why.
  waits_for_devices,
  other_gangs_first,
  device_recovering,
  throttled_on_device,  // `device`: what comes after that says by what
  device_too_full,
  device_held_by,  // `other`

  // `count` lanes at once.
  lanes_measured_alone,
  lanes_tried,
  lanes_unseen,
  lanes_gain,         // `percent`
  lanes_lost,         // `percent`
  lanes_gain_little,  // `percent`
  count               // of all before
};

inline constexpr auto kCodes = static_cast<std::size_t>(Code::count);

// The name of the code, as it is sent and documented.
const char* name(Code code);
// Raises std::invalid_argument where no code has this name.
Code code_named(std::string_view name);

// The fields of the sentence; those that it does not need are empty. `other` is the id of a
// session, which may have ended. `text` was said by a session. A rule gives the name of a user or a
// group, its own name, and a time of day, in Unix time.
struct Reason {
  Code code;
  std::string other = {};
  std::int64_t bytes = 0, free = 0;
  int count = 0;
  long percent = 0;
  std::string device = {}, text = {};
  std::int64_t whole = 0;
  std::string who = {}, rule = {};
  double seconds = 0, until = 0;

  bool operator==(const Reason&) const = default;
};

// Together, in this order, they make one sentence.
using Why = std::vector<Reason>;

}  // namespace gpushare
