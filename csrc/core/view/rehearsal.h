// The future in virtual time, if no other session came: a copy of the state of a device goes
// through turns and passes from now on.
//
// A session that runs computes at its pace, gives its turn back at the first boundary after it was
// asked to yield, and requests the next one at once; it ends with the iterations that it has
// declared, if it has. So everything that affects turns affects the forecast: the policy, quanta,
// shares that are owed to others, priorities, lanes. The rehearsal assumes that no other session
// comes, and none that waits for memory.
//
// A turn has no known end if its session has no known pace, or if its iteration lasts longer than
// usual.
#pragma once

#include <unordered_map>
#include <vector>

#include "core/device/device_state.h"
#include "core/model/types.h"
#include "core/pass/pass.h"

namespace gpushare {

class Rehearsal {
 public:
  struct Begin {  // of a turn
    TurnNumber turn;
    Seconds at;
    bool is_bound;  // it begins sooner if a cell ends that has not declared its iterations
  };

  Rehearsal(const DeviceState& real, Seconds now);
  Rehearsal(const Rehearsal&) = delete;  // its pass refers to its state
  Rehearsal& operator=(const Rehearsal&) = delete;

  // Runs until all waiting sessions have begun, the future is unknown, or `most_work` is done: work
  // is counted in passes times sessions, which take about 0.1 us each.
  void run(std::size_t most_work);

  // When the sessions that waited for a turn and had a place begin, as far as that is known.
  const std::unordered_map<SessionNumber, Begin>& begins() const { return begins_; }
  std::size_t work() const { return work_; }

 private:
  bool is_unknown() const;
  bool step();
  SessionNumber next_to_finish() const;
  void finish(Session& session);
  void request(Session& session, TurnNumber turn);
  std::int64_t iterations(const Session& session) const;
  void enact(const Decision& decision);
  void begins(const Session& session, TurnNumber turn);
  Seconds ends(const Session& session) const;
  bool may_end(const Session& session);
  bool has_passed(Seconds time) const { return now_ > time + kSoon; }
  static Seconds boundary(const Session& session, double iterations);
  static Seconds latest(const Session& session, Seconds from);
  bool is_known(const Session& session) const;
  bool is_late(const Session& session) const;

  DeviceState state_;
  Pass pass_{state_};
  const Seconds present_;
  Seconds now_;
  std::vector<SessionNumber> running_;  // sessions with a known end of their turn
  std::unordered_map<SessionNumber, TurnNumber> waiting_;
  std::unordered_map<SessionNumber, Begin> begins_;
  std::size_t work_ = 0;
  std::unordered_map<SessionNumber, Seconds> may_end_;  // of cells that have not said when they end
  bool is_bound_ = false;  // all from now on begin sooner if one of these ends then
  Seconds longest_ = 0;  // iteration, by which a bound is later: boundaries shift with such an end
  Seconds unknown_ = kNever;  // from when on a turn should end whose end is unknown
};

}  // namespace gpushare
