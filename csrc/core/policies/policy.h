// A policy is an order of a user's notebooks, and how long a turn goes on while another of
// them waits.
//
// Users come before that, under every policy: the device is shared by weight among groups, and a
// group's part among its users, as the rulebook weighs both. So no user gains over others by the
// weights or remaining iterations that notebooks declare, nor by their number, their age, or the
// length of their cells. policy.cpp enforces this in one place, and a policy cannot undo it.
//
// A policy sees one or two Candidates, which are plain numbers of one moment, and answers. It has
// no state and no access to other sessions: the scheduler decides which actions are safe, and
// enacts them. To add one, write a file beside this one and a row in policies.h.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "core/model/types.h"
#include "core/shares/decayed.h"

namespace gpushare {

// A session that runs or waits, at one moment. All seconds include the running turn so far. Faded
// ones are compared with each other exactly; their difference is in seconds of that moment.
struct Candidate {
  int priority = 0;
  double weight = 1.0;
  const void* group = nullptr;  // only to be compared, as is its user
  double group_weight = 1.0;
  int group_turns = 0;         // running turns of the group: the rate of its clock
  Faded group_clock;           // fair clock of the group: seconds used / weight, faded
  const void* user = nullptr;  // one of this group
  double user_weight = 1.0;
  int user_turns = 0;
  Faded user_clock;               // the same within the group
  Seconds user_served = -kNever;  // when a turn of this user began last
  Faded clock;                    // the same as the other clocks, within the user
  Faded attained;                 // service so far, faded
  Seconds waiting = 0;            // since its request
  Seconds queued = 0;             // since it came into its user's queue: Session::position
  Seconds running = 0;            // since its grant
  Seconds yields_after = kNever;  // Session::yields_after
  // Work left, if it was declared and is not overrun; only where the policy goes by it.
  std::optional<Seconds> remaining;
  Seconds boost = 0;              // seconds for which its cell still goes first
  bool begun = true;              // its cell has had the device, or has it
  std::uint64_t order = 0;        // counts requests: decides where all else is equal
  std::uint64_t queue_order = 0;  // the same, of its entry into its user's queue
};

// When a running turn may be ended for another notebook of its user; for another user, after a
// quantum.
enum class Ends { never, after_quantum, at_once };

struct Policy {
  std::string_view name;
  std::string_view sentence;
  // Strict weak order, first served first, of candidates of equal priority whose users are equal.
  bool (*before)(const Candidate&, const Candidate&);
  Ends ends;
  // How long the holder may run on before another of its user should have its turn.
  Seconds (*lead)(const Candidate& holder, const Candidate& waiting, Seconds quantum);
  bool packs = false;         // as many lanes at once as are safe and gain, instead of one
  bool boosts = false;        // the first seconds of a cell go first
  bool by_remaining = false;  // uses the remaining work
  double turn = 1.0;          // quanta that a turn lasts
};

std::span<const Policy> policies();
// Case does not matter; viewers show the name in the table. Raises std::invalid_argument with the
// names that there are.
const Policy& policy_named(std::string_view name);

// Whether `a` is served before `b`: by priority, then by boost, then by what groups and users have
// used for their weight, then by the policy.
bool before(const Policy&, const Candidate&, const Candidate&);
// The waiting session as it would be after an endless turn of the holder: the clocks that this turn
// moves are beyond all others. How long the present iteration lasts is not known.
Candidate after_turn(Candidate waiting, const Candidate& holder);
// Seconds until the holder's turn should end for the waiting session: 0 is now, kNever is not by
// time alone. A session that computes nothing for a while ends its turns before a quantum. It waits
// for a turn of the holder no longer than its own turns last: otherwise it would lose its share.
Seconds ends_in(const Policy&, const Candidate& holder, const Candidate& waiting, Seconds quantum);

}  // namespace gpushare
