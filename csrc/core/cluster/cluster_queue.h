// Decides which gang has its turn on whole devices of one host or of several, and on which, after
// Tiresias (NSDI 2019). A gang has all the devices that it asks for, or none.
//
// Two things make a gang old: how many devices it has, and for how long. Their product is its
// attained service, in device-seconds:
//
//     srsf     the least service left first; durations must be known, so it is the yardstick
//     las      the least attained service first (2D-LAS)
//     gittins  the highest Gittins index of the attained service first (2D-Gittins)
//
// Thresholds divide attained service into queues. A gang that crosses a threshold goes to the tail
// of the next queue. With `las` a queue is served in the order in which gangs entered it, not in
// the order in which they started: otherwise a wide gang that has never run would wait forever
// behind each narrow one that started in a gap that the wide one could not use.
//
// The knob prevents starvation: a gang that has waited `knob` times as long as it has run since it
// came into the first queue goes back there, to its *tail*, and is as young as one that just
// arrived.
//
// A gang that is started keeps its devices for the least of a turn. So while the first gang that
// waits lacks devices, those that are free are kept for it, for `least` of each wait at most: no
// gang that was stopped is started behind it, since the gangs in front may end sooner. One that has
// not run yet is started at once.
//
// Events say what has happened; assign() decides. A gang that is asked to yield keeps its devices
// until it finishes, and no other gang is granted any of them before.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/cluster/device_pool.h"
#include "core/model/types.h"

namespace gpushare {

using Service = double;  // device-seconds

struct Gang {
  std::string id;
  int devices = 1;
  Seconds duration = 1;  // with all its devices
  Seconds arrival = 0;
  double skew = 0;     // its largest tensor, as a part of its model
  int hosts = 0;       // of at most this number of hosts, even if it waits for them; 0: of any
  bool stays = false;  // it cannot be stopped and resumed, so it keeps its devices until it ends
};

struct GangRules {
  std::vector<Service> thresholds;  // ascending; none: one queue
  double knob = 0;                  // 0: no gang goes back
  // The order is recomputed whenever a gang comes, ends or changes its queue, and at this interval
  // while a gang waits; 0: without an interval.
  Seconds tick = 1;
  std::vector<Service> known;  // of former jobs, for `gittins`; infinite where one did not end
  Service quantum = 1;         // for `gittins`
  double consolidates = 0.5;   // gangs of more skew get as few hosts as can be
  Seconds start = 0;           // time on its devices before a gang computes the first time
  Seconds resume = 0;          // the same of a gang that was stopped
  // served() tells what a gang has computed, and time alone makes no gang older: starting,
  // saving, and waiting for others on the same device are no service.
  bool told = false;
  Seconds least = 0;  // a turn computes for this time before the gang is asked to yield

  // These rules, for hosts that count each device as this number of parts.
  GangRules in_parts(int parts) const;
};

// The state of a gang. `run` and `waited` count since it came into the first queue; `waited` is 0
// until it has run.
struct GangProgress {
  Gang gang;
  std::size_t queue = 0;
  std::uint64_t ticket = 0;  // counts entries into queues
  Seconds executed = 0;      // of its duration
  Seconds run = 0, waited = 0;
  Seconds granted = 0;  // its turn; before its first one, when it came
  Seconds served = 0;   // it has computed in this turn
  Seconds resumes = 0;  // from now on, until it computes
  DeviceCounts holds;   // empty: none
  bool wants = false, asked = false, started = false;
  bool keeps_free = false;  // devices are kept for it, which a gang behind it could have
  Seconds kept_free = 0;    // the time for which they were, in this wait
  Seconds waited_in_all = 0;
  int promoted = 0;

  Service attained() const { return gang.devices * run; }
  Service remaining() const { return gang.devices * (gang.duration - executed); }
};

struct GangGrant {
  std::string gang;
  DeviceCounts devices;
};

struct GangDecision {
  std::vector<GangGrant> grants;
  std::vector<std::string> yields;  // once for each turn, and once more after `may_stop`
};

// The probability of ending within `quantum` more, over the service that this is expected to take.
// 0 where none of the known jobs got further than `attained`.
double gittins_index(const std::vector<Service>& known, Service attained, Service quantum);

// Its turn has not yet computed for the least time of a turn.
bool is_young(const GangProgress& gang, const GangRules& rules);

// Devices may be kept for it in this wait.
bool may_keep_free(const GangProgress& gang, const GangRules& rules);

class ClusterQueue {
 public:
  // `hosts` has the number of devices of each host, 0 of one that is lost. Raises
  // std::invalid_argument.
  ClusterQueue(DeviceCounts hosts, std::string_view policy, GangRules rules);

  // The gang wants its devices; harmless if it has them. Its earlier service counts. Raises
  // std::invalid_argument for a gang that the hosts could never hold, at their largest.
  void request(Seconds now, const Gang& gang);
  // The hosts have these devices from now on: fewer where others use some, none of a host that is
  // lost or to be emptied. New hosts come last. A gang whose devices are gone is asked to yield,
  // even if it stays. Raises std::invalid_argument.
  void set_hosts(Seconds now, const DeviceCounts& hosts);
  // The gang has attained this much more service, in this turn or in the one that has ended. Raises
  // std::invalid_argument if this queue is not told of service.
  void served(Seconds now, const std::string& id, Service more);
  // From now on the gang can be stopped and resumed, so it no longer stays. If it was asked to
  // yield before, it may be asked again.
  void may_stop(Seconds now, const std::string& id);
  // The program that started the gang gave it these devices, as many as it was granted. Raises
  // std::invalid_argument.
  void moved(Seconds now, const std::string& id, const DeviceCounts& holds);
  // A turn computes for this time from now on before the gang is asked to yield. Raises
  // std::invalid_argument.
  void set_least(Seconds least);
  // The service that former jobs took, for `gittins`; infinite for one that did not end. Raises
  // std::invalid_argument.
  void set_known(std::vector<Service> known);
  // Restores a gang from the progress() of an earlier queue. All gangs of that queue are restored
  // before any of them has an event. A gang whose hosts are not back yet waits for them, or is
  // asked to yield. Raises std::invalid_argument.
  void restore(Seconds now, const GangProgress& progress);
  // The gang no longer has its devices, or no longer wants them.
  void finish(Seconds now, const std::string& id);
  // As finish(), and the gang is forgotten.
  void close(Seconds now, const std::string& id);

  GangDecision assign(Seconds now);
  // When time alone changes something: a queue, or the order at a tick. kNever: it does not.
  Seconds next_event() const;
  void advance(Seconds now);

  const GangRules& rules() const { return rules_; }
  bool contains(const std::string& id) const { return numbers_.contains(id); }
  // Raises UnknownSession.
  const GangProgress& progress(const std::string& id) const;
  // The gangs that want devices, in the order of the last decision; those that came since are last.
  std::vector<std::string> waiting() const;
  std::string is_valid() const;  // empty, or what is wrong

  struct Policy;

 private:
  using Number = std::uint64_t;

  Number number_of(const std::string& id) const;
  Seconds next_tick() const;
  Seconds next_of(const GangProgress& gang) const;
  void demote(GangProgress& gang);
  void promote(GangProgress& gang);
  void enter(GangProgress& gang, std::size_t queue);
  bool can_starve(const GangProgress& gang) const;
  void sort();
  void place(GangProgress& gang, const DeviceCounts& devices);
  void stop(GangProgress& gang);

  DevicePool devices_;
  const Policy* policy_;
  GangRules rules_;
  std::map<Number, GangProgress> gangs_;
  std::unordered_map<std::string, Number> numbers_;
  std::vector<Number> present_;  // that have devices or want them, as they were sorted last
  Number last_number_ = 0;
  std::uint64_t tickets_ = 0;
  bool is_sorted_ = true;  // but for gangs that have come since
  Seconds now_ = 0;
};

}  // namespace gpushare
