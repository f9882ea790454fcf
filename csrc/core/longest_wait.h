// How long one that waits for a turn waits at most, if others do only what they have done before:
// iterations last as long as the longest one of their session, and cells begin and end at any
// moment in all sessions that are open.
//
// No future is tried. At each level of shares the others are served before it for as long as their
// clocks are behind its own, and then end the turn that they have: after the quantum, at the end of
// an iteration. What other sessions of its user take moves the clock of the user, so that other
// users may go on for longer, and so on for groups. Within its user the policy's own order and lead
// say the same.
//
// A session that opens later is not foreseen, nor what a later cell will declare.
#pragma once

#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/scheduler.h"

namespace gpushare {

class LongestWait {
 public:
  // What takes longer than the horizon may take any time.
  LongestWait(const Scheduler& scheduler, Seconds now, Seconds horizon);

  // Of one that has a place and waits; kNever where nobody can know.
  Seconds of(SessionNumber number) const;

 private:
  using Session = Scheduler::Session;
  struct Other {
    const Session* session;
    Candidate view;  // as if it had asked now, unless it waits or runs
    Seconds turn;    // until its end, if others wait: the quantum, and its longest iteration
    Seconds has;     // of that, what is left of the turn that it has or is promised
    bool asked;      // to yield the turn that it has
    bool may_boost;
  };
  using Others = std::vector<Other>;
  using Users = std::unordered_map<const Share*, Others>;
  // What those below one share may do before one of a priority.
  struct Part {
    bool runs = false;                   // one of them may have a turn
    bool goes_first = false;             // whatever clocks say
    bool may_boost = false;              // one of those
    Seconds turn = 0, boosted_turn = 0;  // the longest of them
    Seconds asked = 0, has = 0;          // turns that end, and others that they have

    void add(const Part& other);
  };

  void add(SessionNumber number, const Session& session);
  Candidate view(const Session& session) const;
  bool may_boost(const Session& session) const;
  Seconds turn(SessionNumber number, const Session& session) const;
  Seconds pages_in(const Session& session) const;
  Seconds left_of_turn(SessionNumber number, const Session& session, Seconds turn) const;
  Faded entry(const Share& share, const Share* above) const;
  std::optional<Seconds> promised_in(SessionNumber number) const;
  // Of all others below its user, and beside its user and its group; `before`: of those before.
  Seconds by_sessions(const Session& waiting) const;
  Seconds by_users(const Session& waiting, Seconds before) const;
  Seconds by_groups(const Session& waiting, Seconds before) const;
  Seconds room(const Other& other, const Candidate& waiting) const;
  Seconds room(const Share& share, const Share& own, const Share* above, Seconds before) const;
  bool may_go_before(Candidate other, Candidate waiting) const;
  static Seconds declared(const Session& session);
  static Part part_of(std::span<const Other> others, int priority);
  Seconds served(const Part& part, Seconds room) const;

  const Scheduler& it_;
  const Seconds now_, horizon_;
  Scheduler::ClocksBelow clocks_;
  std::unordered_map<const Share*, Users> groups_;
};

}  // namespace gpushare
