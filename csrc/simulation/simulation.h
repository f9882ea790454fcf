// A host in virtual time: jobs that do what notebooks do, as fast as it decides.
//
// A job asks for its turn when a cell begins, computes iteration after iteration while it has it,
// gives it back at the first boundary after it was asked to, and reports as sessions do. Boundaries
// at which there is nothing to report are skipped; `steps` visits each of them, and the result is
// the same to the last bit.
//
// The result is deterministic in jobs, rules and conduct.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/host/host.h"
#include "core/model/types.h"
#include "simulation/pair_speeds.h"
#include "simulation/simulated_class.h"
#include "simulation/simulated_job.h"
#include "simulation/simulation_record.h"
#include "simulation/workload.h"

namespace gpushare {

class Simulation {
 public:
  // Raises std::invalid_argument for what cannot be simulated.
  Simulation(std::vector<Job> jobs, Bytes capacity, std::string_view policy, const Rules& rules,
             const Conduct& conduct, std::size_t devices = 1, const Shares& shares = {});

  // Runs up to this time, or until nothing is left to happen. May be called again with a later one.
  void run(Seconds until);

  // The time at which the last run() ended.
  Seconds now() const { return events_.now(); }
  std::int64_t iterations() const;
  std::vector<Outcome> outcomes() const;
  const SimulationRecord& record() const { return record_; }

 private:
  using Kind = EventQueue::Kind;
  using Event = EventQueue::Event;

  void happen(const Event& event);
  void settle();
  std::string is_valid() const;

  // Behaviour of jobs.
  void wakes(SimulatedJob& job);
  bool opens(SimulatedJob& job);
  void begins_cell(SimulatedJob& job);
  void requests(SimulatedJob& job);
  void gets_turn(SimulatedJob& job, LaneId lane);
  void begins_to_compute(SimulatedJob& job);
  void reaches_boundary(SimulatedJob& job);
  void parts(SimulatedJob& job);
  void reports(SimulatedJob& job);
  void ends_cell(SimulatedJob& job);
  void ends(SimulatedJob& job);
  void set_busy(const SimulatedJob& job, bool busy);
  void begins_to_page_out(const SimulatedJob& job);
  void pages_out(SimulatedJob& job);
  void leaves(SimulatedJob& job);

  // Decisions.
  void enact(const Decision& decision);
  void follow_class(bool has_changed);
  void set_speeds(std::size_t device);
  double speed_beside(const SimulatedJob& job);
  void follow_squeezes();
  void aim(const SimulatedJob& job);

  Conduct conduct_;
  SimulatedClass class_;
  std::vector<SimulatedJob> jobs_;
  std::unordered_map<std::string, std::size_t> numbers_;
  std::vector<std::string> names_;  // of the devices
  std::vector<double> speeds_;      // of the jobs that compute on each of them
  Host host_;
  EventQueue events_;
  SimulationRecord record_;
  PairSpeeds pair_speeds_;
};

}  // namespace gpushare
