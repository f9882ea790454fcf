// Gangs on the whole devices of several hosts, in virtual time: which job next, after Tiresias
// (NSDI 2019). A gang has all the devices that it asks for, or none.
//
// Two things make a gang old: how many devices it has, and for how long. Their product is its
// attained service, in device-seconds:
//
//     srsf     the least service left first; durations must be known, so it is the yardstick
//     las      the least attained service first (2D-LAS)
//     gittins  the highest Gittins index of the attained service first (2D-Gittins)
//
// Thresholds of attained service make queues of it. A gang that crosses one goes to the tail of the
// next queue, and with `las` a queue is served in the order in which gangs came into it. That is
// not the order in which they started: else a wide gang that has never run would stand behind
// each narrow one that started in a gap it could not use, for ever.
//
// The knob is against starving: who has waited `knob` times as long as it has run since it came
// into the first queue goes back there, to its *tail*, and is as young as who just arrived.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.h"

namespace gpushare {

using Service = double;  // device-seconds

struct Gang {
  std::string id;
  int devices = 1;
  Seconds duration = 1;  // with all its devices
  Seconds arrival = 0;
  double skew = 0;  // its largest tensor, as a part of its model
};

struct GangRules {
  std::vector<Service> thresholds;  // ascending; none: one queue
  double knob = 0;                  // 0: nobody goes back
  // The order is looked at whenever a gang comes, ends or changes its queue, and so often while one
  // waits; 0: only then.
  Seconds tick = 1;
  std::vector<Service> known;  // of former jobs, for `gittins`; infinite where one did not end
  Service quantum = 1;         // for `gittins`
  double consolidates = 0.5;   // gangs of more skew get as few hosts as can be
  Seconds resume = 0;          // with all devices, until who was stopped goes on
};

struct GangOutcome {
  std::string id;
  Seconds arrival = 0;
  std::optional<Seconds> started, ended;
  Seconds waited = 0;
  int preempted = 0, promoted = 0;
};

struct GangTurn {
  std::size_t gang = 0;
  Seconds began = 0, ended = 0;
  std::vector<int> devices;  // of each host
};

// What a gang is doing. `run` and `waited` count since it came into the first queue; it has
// `waited` only once it has run.
struct GangProgress {
  Gang gang;
  GangOutcome outcome;
  std::size_t queue = 0;
  std::uint64_t ticket = 0;  // counts those who came into a queue
  Seconds executed = 0;      // of its duration
  Seconds run = 0, waited = 0;
  Seconds granted = 0;
  Seconds resumes = 0;     // from now on, until it computes
  std::vector<int> holds;  // devices of each host; empty: none

  Service attained() const { return gang.devices * run; }
  Service remaining() const { return gang.devices * (gang.duration - executed); }
};

// Of ending within `quantum` more, over the service that this is expected to take. 0 where none of
// the known ones got further than `attained`.
double gittins_index(const std::vector<Service>& known, Service attained, Service quantum);

class GangSimulation {
 public:
  // `hosts` have so many devices each. Raises std::invalid_argument for what cannot be simulated.
  GangSimulation(const std::vector<Gang>& gangs, std::vector<int> hosts, std::string_view policy,
                 GangRules rules);

  // Up to this time, or until nothing is left to happen. May be called again with a later one.
  void run(Seconds until);

  Seconds now() const { return now_; }
  std::vector<GangOutcome> outcomes() const;
  // Those that are over, as they ended.
  const std::vector<GangTurn>& turns() const { return turns_; }
  // Empty, or what is wrong.
  std::string is_valid() const;

  struct Policy;

 private:
  Seconds next_event() const;
  Seconds next_tick() const;
  Seconds next_of(const GangProgress& gang) const;
  void advance(Seconds time);

  void arrive();
  void end();
  void demote(GangProgress& gang);
  void promote(GangProgress& gang);
  void enter(GangProgress& gang, std::size_t queue);
  bool can_starve(const GangProgress& gang) const;

  void assign();
  void sort();
  void place(GangProgress& gang);
  void stop(GangProgress& gang);

  std::vector<int> hosts_, free_;
  const Policy* policy_;
  GangRules rules_;
  std::vector<GangProgress> gangs_;
  std::vector<std::size_t> coming_;   // the next one last
  std::vector<std::size_t> present_;  // arrived, not ended
  std::vector<GangTurn> turns_;
  std::uint64_t tickets_ = 0;
  Seconds now_ = 0;
};

}  // namespace gpushare
