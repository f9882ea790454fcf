// One session as the scheduler of its device knows it, and what follows from that alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/device/pace.h"
#include "core/device/residency.h"
#include "core/model/types.h"
#include "core/shares/fair_shares.h"

namespace gpushare {

struct Session {
  struct Request : Wait {
    TurnNumber number;
  };

  struct Successor {
    SessionNumber number = kNoSession;
    TurnNumber turn = 0;  // the turn that it waited for when it was named

    bool operator==(const Successor&) const = default;
  };

  struct Turn {
    TurnNumber number;
    Seconds since;
    std::optional<Seconds> asked;  // when it was asked to yield
    Successor successor;           // as named in the request to yield
    Seconds boundary = 0;          // when the last known iteration ended, or its begin
    bool preempted = false;        // its end was requested
  };

  SessionNumber number = kNoSession;
  std::string id, group, user, domain;
  FairShares::Path shares{};
  int priority = 0;
  bool paused = false;
  bool alone = false;            // runs without others, and cannot be paged out
  bool can_share = false;        // can use a lane beside another session
  bool admissible = true;        // false: its gang leaves the room to an earlier one
  std::optional<Why> throttled;  // by a rule, which says why
  bool busy = true;
  Demand demand;
  double bears = 1.0;
  Residency::Memory memory;        // its persistent one
  std::optional<Request> request;  // it waits; never together with a turn
  std::optional<Wait> position;    // in its user's queue; kept if its turn ends for others
  std::optional<Turn> turn;        // it runs
  TurnNumber last_turn = 0;
  // Length of the last turn that it ended unasked, until one lasts a quantum.
  Seconds yields_after = kNever;
  Pace pace;
  Seconds device_seconds = 0, waited_seconds = 0;  // of finished turns and waits
  Seconds before_cell = 0;                         // device seconds when its cell began
  Seconds boost = 0;  // how long it goes first, from the last pass or the begin of its turn
  std::int64_t iterations = 0;
  std::optional<std::int64_t> remaining_iterations;  // declared, less those done since
  Seconds reported_seconds = 0;                      // device seconds at the last report

  const Share& share() const { return shares.back()->share; }
};

inline Session::Successor successor_of(const Session& waiting) {
  return {waiting.number, waiting.request->number};
}

inline bool is_out(const Session& session) { return session.memory.is_out(); }
inline bool is_throttled(const Session& session) { return session.throttled.has_value(); }

inline bool wants_turn(const Session& session) {
  return session.request && !session.paused && !is_throttled(session);
}

// Whether it waits for a turn, or for room to come back. A paused session waits for no turn, though
// it has a request; a throttled session waits for neither. A session that was asked to page out
// must first answer whether it did.
bool waits(const Session& session);
inline const Wait* wait_of(const Session& session) {  // nullptr: it waits for nothing
  if (session.memory.residence() == Residence::returning) return &session.memory.back();
  return session.request ? &*session.request : nullptr;
}

// Bytes that it needs in the lanes if an iteration may take `left` bytes.
Demand room_for(const Session& session, Bytes left);
// Whether a direct handoff between them is allowed.
bool trust(const Session& a, const Session& b);
// Whether they may use one lane at once.
bool may_share(const Session& a, const Session& b);
// Whether it may be paged out while idle, and even while it waits for a turn.
bool may_be_paged_out(const Session& session);
bool can_be_paged_out(const Session& session);

// Seconds of the turn that it has; 0: none.
inline Seconds running_seconds(const Session& session, Seconds now) {
  return session.turn ? now - session.turn->since : 0;
}
// Mean duration of one so far.
std::optional<Seconds> iteration(const Session& session);
// Declared iterations times their mean duration so far, less the time since they were declared;
// absent once that is used up, so that an overrun session is not the shortest forever.
std::optional<Seconds> remaining(const Session& session, Seconds running);

}  // namespace gpushare
