// How long a session that waits for a turn waits at most, if others do only what they have done
// before: iterations last as long as the longest one of their session, and cells begin and end at
// any moment in all sessions that are open.
//
// No future is tried. At each level of shares the others are served before it for as long as their
// clocks are behind its own, and then end the turn that they have: after the quantum, at the end of
// an iteration. What other sessions of its user take moves the clock of the user, so that other
// users may go on for longer, and so on for groups. Within its user the policy's own order and lead
// say the same.
//
// A session that opens later is not foreseen, nor the first declaration of one that has not
// declared.
#pragma once

#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/device/device_state.h"
#include "core/policies/policy.h"

namespace gpushare {

class LongestWait {
 public:
  // A wait longer than the horizon may be of any length.
  LongestWait(const DeviceState& state, Seconds now, Seconds horizon);

  // The session must have a place and wait; kNever where the wait is unknown.
  Seconds of(const Session& session) const;

 private:
  using Node = FairShares::Node;
  struct Other {
    const Session* session;
    Candidate view;  // as if it had asked now, unless it waits or runs
    Seconds turn;    // that it has next: beside the quantum, its longest iteration
    Seconds has;     // what is left of the turn that it has or is promised
    bool asked;      // to yield the turn that it has
    bool may_begin;  // its next turn may be the first one of a cell
    bool may_boost;
  };
  using Others = std::vector<Other>;
  using Users = std::unordered_map<const Node*, Others>;
  // The two lowest clocks of nodes that wait or may begin to.
  struct Entries {
    const Node* of_first = nullptr;
    std::optional<Faded> first, second;

    void add(const Node* node, const Faded& entry);
  };
  struct Waiting {
    const Session* session;
    Candidate view;
    Seconds quantum, boost;  // that others have before it
    bool is_first;           // turn of its cell
  };
  // What the sessions below one share may do before the waiting one.
  struct Part {
    bool runs = false;                   // one of them may have a turn
    bool goes_first = false;             // whatever clocks say
    bool may_boost = false;              // one of those
    Seconds turn = 0, boosted_turn = 0;  // the longest of them
    Seconds asked = 0, has = 0;          // turns that end, and others that they have

    void add(const Part& other);
  };

  void add(const Session& session);
  Candidate view(const Session& session) const;
  static bool has_begun(const Session& session);
  Seconds iteration(const Session& session) const;
  Seconds pages_in(const Session& session) const;
  Seconds left_of_turn(const Session& session, Seconds longest) const;
  Faded entry(const Node& node, const Node* above) const;

  std::optional<Seconds> promised_in(const Session& session) const;
  std::optional<Seconds> of_first_turn(const Session& session) const;
  bool is_boosted(const Node& node, const Node* above, Seconds before) const;
  // How long the other sessions of its user, the other users of its group, and the other groups are
  // served first, if sessions below its own share were served `before`.
  Seconds by_sessions(const Waiting& waiting) const;
  Seconds by_users(const Waiting& waiting, Seconds before) const;
  Seconds by_groups(const Waiting& waiting, Seconds before) const;

  Seconds room(const Other& other, const Candidate& waiting) const;
  Candidate in_new_cell(const Other& other) const;
  static Seconds declared(const Session& session);
  bool may_go_before(Candidate other, Candidate waiting) const;
  Seconds room(const Node& node, const Node& own, const Node* above, Seconds before) const;
  static Part part_of(std::span<const Other> others, const Waiting& waiting);
  Seconds served(const Waiting& waiting, const Part& part, Seconds room) const;

  const DeviceState& state_;
  const Seconds now_, horizon_;
  const Node* const all_;  // above the groups
  const FairShares::ClocksBelow clocks_;
  std::unordered_map<const Node*, Entries> entries_;  // of the nodes below one
  std::unordered_map<const Node*, Users> groups_;
};

}  // namespace gpushare
