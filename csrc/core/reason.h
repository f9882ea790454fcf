// Why a session is as it is, as values. The core makes no sentence and knows no name: sentences are
// made where people read them, in their language, with the names that they may see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpushare {

// One sentence, or a part of one, for each. Viewers have a table with all of them.
enum class Code {
  idle,
  paused,
  throttled,  // by a rule: `text` says by which
  runs,
  runs_until_measured,  // alone
  runs_with_whole_device,
  runs_with_whole_devices,  // a gang: `count` devices, `device` has their names
  asked_to_yield,
  yields_to_others,
  overdue,
  asked_to_page_out,
  makes_room,               // for `other`
  makes_room_for_programs,  // that are no sessions
  paged_out,                // `bytes` of it
  paged_out_for,            // `other`
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
  throttled_on_device,  // on `device` it is throttled: `text`
  device_too_full,
  device_held_by,  // `other`

  // Of `count` lanes at once.
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

// What fills the sentence; fields that it does not need are empty. `other` is the id of a session,
// which may have ended. `text` was said by others than the core: by a rule, or by a session.
struct Reason {
  Code code;
  std::string other = {};
  std::int64_t bytes = 0, free = 0;
  int count = 0;
  long percent = 0;
  std::string device = {}, text = {};
  std::int64_t whole = 0;

  bool operator==(const Reason&) const = default;
};

// Together, in this order, they make one sentence.
using Why = std::vector<Reason>;

}  // namespace gpushare
