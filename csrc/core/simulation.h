// A host in virtual time: jobs that do what notebooks do, as fast as it decides.
//
// A job asks for its turn when a cell begins, computes iteration after iteration while it has it,
// gives it back at the first boundary after it was asked to, and reports as sessions do. Boundaries
// at which there is nothing to report are skipped; `steps` visits each of them, and the result is
// the same to the last bit.
//
// The same jobs, rules and conduct give the same result, always. Of events at one time, the host's
// own come first, then they go by their kind and by the order of jobs.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/host.h"
#include "core/types.h"

namespace gpushare {

// `think` seconds after the cell before it, or after the arrival, it begins.
struct Cell {
  std::int64_t iterations = 1;
  Seconds iteration = 1;  // of one, alone on the device
  Seconds think = 0;
};

struct Job {
  std::string id, user, group;
  Seconds arrival = 0;
  // Where it is not measured, the first report says that it is.
  Demand demand;
  std::vector<Cell> cells;
  double weight = 1.0;
  int priority = 0;
  bool declares = false;  // its remaining iterations
  double load = 1.0;  // the part of the device that it keeps busy; several at once have 1 in all
  Seconds stays = 0;  // open after its last cell
  std::size_t devices = 1;  // at once; its demand and its load are those on each of them
  double bears = 1.1;       // the slowdown up to which it may be squeezed for others
};

// The weights of groups and users. Names that are absent have a weight of 1. With `class_of` a
// group has them for itself, under the policy for classes, whenever a notebook of it is open and
// not yet done.
struct Shares {
  std::map<std::string, double> groups, users;
  std::string class_of;
};

// How sessions behave, beside what the scheduler's rules say.
struct Conduct {
  Seconds report = 0.5;         // interval in a turn; at its end after a tenth of it
  Seconds handover = 0;         // from a grant to the first computation
  double paging_rate = 0;       // bytes a second, out and in; 0: no session is paged out
  double contention = 0;        // part of the speed that each computing job costs the others
  bool steps = false;           // visit each boundary
  bool remembers_turns = true;  // else `turns` stays empty
  bool checks = false;          // the invariants, after each event; raises std::logic_error
};

struct Outcome {
  std::string id;
  Seconds arrival = 0;
  std::optional<Seconds> started, ended;  // first turn, end of the last cell
  Seconds waited = 0;                     // while a cell ran without a turn
  Seconds device_seconds = 0;             // of its turns, on each of its devices
  std::int64_t iterations = 0;
  Bytes paged = 0;       // out and in
  bool refused = false;  // its devices could never hold it
};

struct TurnTaken {
  std::size_t job = 0;
  std::size_t device = 0;
  LaneId lane = kNoLane;
  Seconds began = 0, ended = 0;
};

// It holds from `time` until the next one of the device.
struct MemoryUse {
  Seconds time = 0;
  std::size_t device = 0;
  Bytes persistent = 0, lanes = 0;
};

class Simulation {
 public:
  // Raises std::invalid_argument for what cannot be simulated.
  Simulation(std::vector<Job> jobs, Bytes capacity, std::string_view policy, const Rules& rules,
             const Conduct& conduct, std::size_t devices = 1, Shares shares = {});

  // Runs up to this time, or until nothing is left to happen. May be called again with a later one.
  void run(Seconds until);

  // Where the last run() has ended.
  Seconds now() const { return now_; }
  std::int64_t iterations() const;
  std::vector<Outcome> outcomes() const;
  const std::vector<TurnTaken>& turns() const { return turns_; }
  const std::vector<MemoryUse>& memory() const { return memory_; }

 private:
  // The order is that in which they happen at one time.
  enum class Kind { paged, wakes, computes, boundary, leaves };
  static constexpr std::size_t kKinds = 5;
  struct Event {
    Seconds time = kNever;
    Kind kind{};
    std::size_t job = 0;
    auto operator<=>(const Event&) const = default;
  };
  // What a job is doing. Progress counts iterations of its cell: it was `progress` at `since` and
  // grows by `rate` a second while the job computes.
  struct Running {
    Job job;
    Outcome outcome;
    std::vector<std::size_t> devices;
    std::size_t cell = 0;
    std::array<Seconds, kKinds> due;
    bool open = false, wants = false, holds = false, asked = false, computes = false;
    TurnNumber turn = 0;
    LaneId lane = kNoLane;
    Seconds wanted = 0, granted = 0;  // since when it waits for this turn, or has it
    Seconds in_memory = 0;            // when its page-in will be over
    std::int64_t done = 0;            // iterations of this cell, at the last boundary looked at
    double progress = 0, rate = 0;
    double slowdown = 1;  // while it is squeezed
    Seconds since = 0;
    std::int64_t unreported = 0;
    Seconds reported = -kNever;
  };
  struct Device {
    std::string name;
    Bytes free = -1;   // as it was remembered last
    double speed = 1;  // of the jobs that compute
  };

  // Time.
  void happen(const Event& event);
  void wake(Seconds time);
  void settle();
  void remember_memory(std::size_t device);
  void schedule(Kind kind, std::size_t job, Seconds time);
  void cancel(Kind kind, std::size_t job) { schedule(kind, job, kNever); }

  // What jobs do.
  void wakes(std::size_t job);
  bool opens(std::size_t job);
  void begins_cell(std::size_t job);
  void requests(std::size_t job);
  void is_granted(std::size_t job, LaneId lane);
  void begins_to_compute(std::size_t job);
  void reaches_boundary(std::size_t job);
  void parts(std::size_t job);
  Seconds due_report(const Running& running) const;
  void reports(std::size_t job);
  void ends_cell(std::size_t job);
  void ends(std::size_t job);
  void set_busy(std::size_t job, bool busy);
  void pages_out(std::size_t job);
  void is_out(std::size_t job);
  void leaves(std::size_t job);

  // The class.
  bool attends(std::size_t job) const;
  void set_policies(std::string_view policy);
  void throttle_others();

  void enact(const Decision& decision);
  void set_speeds(std::size_t device);
  void follow_squeezes();
  double slowdown_of(const Running& running) const;
  void aim(std::size_t job);
  std::int64_t first_boundary(const Running& running, const Event& after) const;
  Seconds boundary_time(const Running& running, std::int64_t iteration) const;
  std::int64_t left(const Running& running) const;
  Seconds turn_seconds(const Running& running) const;
  std::optional<std::int64_t> declared(const Running& running) const;
  Outcome outcome(const Running& running) const;

  Conduct conduct_;
  Shares shares_;
  std::string policy_;
  std::size_t attending_ = 0;  // of the class: open, and not done
  std::vector<Running> jobs_;
  std::unordered_map<std::string, std::size_t> numbers_;
  std::vector<Device> devices_;
  std::vector<std::string> names_;  // of the devices
  Host host_;
  std::set<Event> events_;
  std::vector<TurnTaken> turns_;
  std::vector<MemoryUse> memory_;
  Seconds now_ = 0;
  Event present_;  // what happens now; of the host's own clock, before all others
};

}  // namespace gpushare
