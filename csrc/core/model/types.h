// The nouns of the core, and why each field is there. Everything that goes into the scheduler or
// comes out of it is one of these values; they own nothing but their strings.
//
// A device has `capacity` bytes. A session keeps `persistent` bytes on it for as long as it is
// open, and needs up to `ephemeral` bytes more inside one iteration. At an iteration boundary the
// ephemeral bytes are empty, so sessions use one piece of memory, a lane, in turn:
//
//     sum of persistent + sum over lanes of the largest ephemeral in it <= capacity     (safety)
//
// Two sessions may also use a lane at once, each from its own end (a co-lane): then it is as wide
// as the memory that was left when the second one came, and no narrower than its largest member.
//
// Time is an argument, in seconds of any clock that does not go back. The core has no I/O, no
// thread, no clock and no Python: what is simulated in virtual time is what users get.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/model/reason.h"

namespace gpushare {

using Bytes = std::int64_t;
using Seconds = double;
using LaneId = std::int64_t;          // counts from 1 and is never used again
using TurnNumber = std::uint64_t;     // made by the client, so that a repeated message is harmless
using SessionNumber = std::uint64_t;  // the order in which sessions opened

inline constexpr LaneId kNoLane = 0;
inline constexpr SessionNumber kNoSession = 0;
inline constexpr Seconds kNever = std::numeric_limits<Seconds>::infinity();

// Closer than this counts as now: times are sums of floating point numbers, and a next_event that
// lies a rounding error ahead would be asked for again and again.
inline constexpr Seconds kSoon = 1e-6;

// An iteration with a peak of `bytes` takes `slowdown` times as long as unsqueezed.
struct SqueezeOption {
  Bytes bytes = 0;
  double slowdown = 1.0;

  bool operator==(const SqueezeOption&) const = default;
};

struct Demand {
  Bytes persistent = 0;
  Bytes ephemeral = 0;
  // False until an iteration has been seen. The demand of such a session is unknown, so it runs
  // alone on its device, and its ephemeral bytes need no room in a lane.
  bool measured = true;
  // How far it can be squeezed: all of `ephemeral` first, at a slowdown of 1, then fewer and fewer
  // bytes, down to the floor. Empty: it cannot be.
  std::vector<SqueezeOption> options = {};

  bool operator==(const Demand&) const = default;
};

struct Rules {
  Seconds quantum = 0.25;      // a turn lasts this long before a waiting session may have it
  Seconds half_life = 3600.0;  // used time counts half after this
  Seconds lease = 30.0;        // still running this long after a request to yield: overdue
  Seconds aging = 60.0;        // after this wait for memory, no more backfill before it
  Seconds boost = 0;           // the first seconds of a cell go first; 0: they do not
  int running_lanes = 0;       // lanes that may run at once; 0: as the policy says
  bool page_waiting = false;   // queued sessions are evicted for an aged one before them
  Seconds report = 0.5;        // a session in its turn reports at least this often
  bool squeeze = true;         // sessions may be squeezed
};

// The statements of a session when it opens. The fields from `turn` to `iterations` bring its
// history back after a lost broker: `holding` says that it still has turn `turn`, in which an
// iteration takes `squeezed_bytes` at most (one of its options; 0: it is not squeezed); `waiting`
// that it has asked for it; `paged_out_bytes` above 0, that its persistent memory is paged out.
// Sessions of one `group` share its part of the device; "" is a group like any other.
//
// Sessions of one trust domain have the same `domain`; "" is the user's own.
struct SessionSpec {
  std::string user;
  double weight = 1.0;
  int priority = 0;
  Demand demand;
  std::optional<std::int64_t> remaining_iterations;
  TurnNumber turn = 0;
  bool holding = false;
  bool waiting = false;
  bool paused = false;
  Seconds device_seconds = 0;
  Seconds waited_seconds = 0;
  std::int64_t iterations = 0;
  Bytes paged_out_bytes = 0;
  bool busy = true;  // a cell runs in it; a script is always busy
  std::string group, domain;
  bool alone = false;  // runs without others, whatever its memory is
  double bears = 1.0;  // the slowdown up to which it may be squeezed for others
  Bytes squeezed_bytes = 0;
  bool shares =
      false;  // can fill a lane from one end while another session fills it from the other
};

// A lane has the ends 0 and 1; a session that is alone in it has no end.
inline constexpr int kNoEnd = -1;

struct Grant {
  std::string session;
  TurnNumber turn = 0;
  LaneId lane = kNoLane;
  int end = kNoEnd;
};

// `successor` is absent if the next turn has to be decided again once this one has ended.
struct Yield {
  std::string session;
  TurnNumber turn = 0;
  std::optional<Grant> successor;
  bool until_cell_ends = false;  // the policy lets turns last until their cell ends
};

// The effects of one event. A grant holds until the session finishes it; a yield asks for that
// at the next boundary and is sent once per turn. A named successor has the turn next, whatever
// happens, unless it withdraws: the yielding session may pass the turn by a direct handoff.
//
// `page_outs` and `page_ins` are ids. Sessions in `page_outs` are asked to page out, and answer
// with paged_out or page_out_failed unless they become busy or ask for a turn before. A session
// that does not answer within the lease, plus the time that moving its bytes may take, is assumed
// to stay. Sessions in `page_ins` have their places again, and page in before anything else, even
// before a grant in the same decision; a session that no longer wants to page in answers paged_out
// again.
struct Decision {
  std::vector<Grant> grants;
  std::vector<Yield> yields;
  std::vector<std::string> page_outs;
  std::vector<std::string> page_ins;
};

enum class State { idle, waiting, running, overdue, paused, paged_out, throttled };

// One session as people see it. `position`, the queue position, counts from 1 over all sessions
// that wait for the device, or for room to come back to it; `expected_wait` is absent where it is
// unknown, and only a bound where a cell that runs before it may end at any boundary.
struct SessionState {
  std::string id, user;
  State state = State::idle;
  Demand demand;
  std::optional<LaneId> lane;
  TurnNumber turn = 0;  // the one that runs or waits, else the last
  std::optional<int> position;
  std::optional<Seconds> waiting;
  std::optional<Seconds> expected_wait;
  bool is_bound = false;  // it is expected to wait that long at most
  Why why;
  Seconds device_seconds = 0;
  Seconds waited_seconds = 0;
  std::int64_t iterations = 0;
  std::optional<std::int64_t> remaining_iterations;
  double weight = 1.0;
  int priority = 0;
  Bytes paged_out_bytes = 0;  // on disk instead of on the device
  bool busy = true;
  Bytes squeezed = 0;     // of an iteration; 0: it is not squeezed
  double slowdown = 1.0;  // for that
  // Time since the last known boundary, while it is asked to yield at the next one.
  std::optional<Seconds> in_iteration;
};

struct LaneState {
  LaneId id = kNoLane;
  Bytes bytes = 0;
  std::optional<std::string> holder;
  std::vector<std::string> members;
  std::optional<std::string> beside;  // the holder of the other end
  Bytes width = 0;                    // while it has ends; else 0
};

// A session that has a turn.
struct Holder {
  std::string id;
  bool overdue = false;
};

// The scheduler at one moment, sessions in the order in which they opened.
struct DeviceSnapshot {
  std::string policy;
  Bytes capacity = 0;
  Bytes persistent = 0;
  Bytes free = 0;                           // of what is not unmanaged
  Bytes unmanaged = 0;                      // of programs that are not sessions
  int running_lanes = 0;                    // the setting: 0 is "as the policy says"
  std::optional<Reason> concurrency_tuner;  // outcome or progress of its probes
  std::vector<LaneState> lanes;
  std::vector<SessionState> sessions;
};

// Calls throw the two errors below, and std::invalid_argument for bad values. A call that throws
// has changed nothing.

// The empty device of `capacity` does not hold this demand, squeezed as far as it can be if it can.
struct DemandTooLarge : std::overflow_error {
  DemandTooLarge(Bytes persistent_bytes, Bytes ephemeral_bytes, Bytes capacity_bytes, bool squeezes)
      : std::overflow_error("a demand is larger than the device"),
        persistent(persistent_bytes),
        ephemeral(ephemeral_bytes),
        capacity(capacity_bytes),
        is_squeezed(squeezes) {}

  Bytes persistent, ephemeral, capacity;
  bool is_squeezed;
};

// A session that is not open.
struct UnknownSession : std::out_of_range {
  using std::out_of_range::out_of_range;
};

}  // namespace gpushare
