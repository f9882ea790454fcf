#include "simulation/simulation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

#include "core/device/fitting.h"
#include "core/model/validation.h"

namespace gpushare {
namespace {

constexpr std::size_t kMostDevices = 10'000;  // each is a scheduler, which takes memory

std::vector<std::string> numbered(std::size_t devices) {
  require(devices > 0 && devices <= kMostDevices,
          "there must be a device, and at most " + std::to_string(kMostDevices));
  std::vector<std::string> names;
  for (std::size_t i = 0; i < devices; ++i) names.push_back(std::to_string(i));
  return names;
}

std::vector<DeviceSpec> alike(const std::vector<std::string>& names, Bytes capacity) {
  std::vector<DeviceSpec> devices;
  for (const std::string& name : names) devices.push_back({name, capacity});
  return devices;
}

double slowdown_of(const Host& host, const SimulatedJob& job) {
  if (job.job.demand.options.empty()) return 1;
  const DeviceState& state = host.devices().state(job.devices.front());
  return squeezed(state, state.sessions.of(job.job.id)).value_or(SqueezeOption{}).slowdown;
}

}  // namespace

Simulation::Simulation(std::vector<Job> jobs, Bytes capacity, std::string_view policy,
                       const Rules& rules, const Conduct& conduct, std::size_t devices,
                       const Shares& shares)
    : conduct_(conduct),
      class_(shares.class_of, policy),
      jobs_(jobs.size()),
      names_(numbered(devices)),
      speeds_(devices, 1.0),
      host_(alike(names_, capacity), policy, rules),
      events_(jobs.size()) {
  check(conduct);
  for (const std::string& name : names_) host_.set_shares(0, name, shares.groups, shares.users);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    check(jobs[i], devices);
    SimulatedJob& job = jobs_[i];
    job.number = i;
    job.job = std::move(jobs[i]);
    job.outcome.id = job.job.id;
    job.outcome.arrival = job.job.arrival;
    require(numbers_.emplace(job.job.id, i).second, "two jobs are called '" + job.job.id + "'");
    events_.schedule(Kind::wakes, i, job.job.arrival);
  }
}

// --- time ----------------------------------------------------------------------------------------

void Simulation::run(Seconds until) {
  for (;;) {
    const Seconds own = host_.next_event(now()).value_or(kNever), next = events_.next();
    if (std::min(own, next) > until || std::min(own, next) == kNever) break;
    if (own <= next) {
      events_.wake(own);
      enact(host_.assign(now()));
    } else {
      happen(events_.take());
    }
    settle();
  }
  if (until != kNever) events_.wait(until);
}

void Simulation::happen(const Event& event) {
  SimulatedJob& job = jobs_[event.job];
  switch (event.kind) {
    case Kind::paged:
      return pages_out(job);
    case Kind::wakes:
      return wakes(job);
    case Kind::computes:
      return begins_to_compute(job);
    case Kind::boundary:
      return reaches_boundary(job);
    case Kind::leaves:
      return leaves(job);
  }
}

// This is done once per event, however many calls the host got.
void Simulation::settle() {
  follow_squeezes();
  record_.follow(host_.devices(), now());
  if (!conduct_.checks) return;
  if (const std::string broken = is_valid(); !broken.empty()) throw std::logic_error(broken);
}

std::string Simulation::is_valid() const {
  for (const std::string& broken : {host_.is_valid(), events_.is_valid()})
    if (!broken.empty()) return broken;
  for (const SimulatedJob& job : jobs_)
    if (const std::string broken = job.is_valid(); !broken.empty()) return broken;
  return "";
}

// --- what jobs do --------------------------------------------------------------------------------

void Simulation::wakes(SimulatedJob& job) {
  const bool arrives = !job.open;
  if (arrives && !opens(job)) return;
  const Seconds think = job.present_cell().think;
  if (arrives && think > 0)
    events_.schedule(Kind::wakes, job.number, now() + think);
  else
    begins_cell(job);
}

bool Simulation::opens(SimulatedJob& job) {
  const auto devices = host_.devices().place(names_, job.job.demand, job.job.devices);
  job.devices.clear();
  for (const std::string& device : devices)
    job.devices.push_back(host_.devices().number_of(device));
  try {
    enact(host_.open(now(), job.job.id, devices, job.spec()));
  } catch (const DemandTooLarge&) {
    job.outcome.refused = true;
    return false;
  }
  job.open = true;
  const bool begins = class_.join(job.job);
  if (class_.is_on()) follow_class(begins);
  return true;
}

void Simulation::begins_cell(SimulatedJob& job) {
  events_.cancel(Kind::paged, job.number);
  job.done = 0;
  set_busy(job, true);
  requests(job);
}

void Simulation::requests(SimulatedJob& job) {
  job.begin_wait(now());
  enact(host_.request(now(), job.job.id, job.turn));
}

void Simulation::gets_turn(SimulatedJob& job, LaneId lane) {
  job.begin_turn(now(), lane);
  const Seconds begins = std::max(now() + conduct_.handover, job.in_memory);
  if (begins > now())
    events_.schedule(Kind::computes, job.number, begins);
  else
    begins_to_compute(job);
}

void Simulation::begins_to_compute(SimulatedJob& job) {
  job.begin_to_compute(now());
  set_speeds(job.devices.front());
}

void Simulation::reaches_boundary(SimulatedJob& job) {
  job.reach(job.first_boundary(events_.present()));
  if (job.done == job.present_cell().iterations) return ends_cell(job);
  const bool asked = job.asked;
  if (asked) parts(job);
  if (now() >= job.due_report(conduct_)) reports(job);
  asked ? requests(job) : aim(job);
}

void Simulation::parts(SimulatedJob& job) {
  events_.cancel(Kind::boundary, job.number);
  job.end_turn(now());
  if (conduct_.remembers_turns)
    for (const std::size_t device : job.devices)
      record_.add({job.number, device, job.lane, job.granted, now()});
  set_speeds(job.devices.front());
  enact(host_.finish(now(), job.job.id, job.turn));
}

void Simulation::reports(SimulatedJob& job) {
  Demand demand = job.job.demand;
  demand.measured = true;
  job.reported = now();
  const std::int64_t iterations = std::exchange(job.unreported, 0);
  enact(host_.report(now(), job.job.id, iterations, demand, job.declared()));
}

void Simulation::ends_cell(SimulatedJob& job) {
  parts(job);
  reports(job);
  if (++job.cell == job.job.cells.size()) return ends(job);
  job.done = 0;
  const Seconds think = job.present_cell().think;
  if (think == 0) return begins_cell(job);
  events_.schedule(Kind::wakes, job.number, now() + think);
  set_busy(job, false);
}

void Simulation::ends(SimulatedJob& job) {
  job.outcome.ended = now();
  if (class_.leave(job.job)) follow_class(true);
  if (job.job.stays == 0) return leaves(job);
  events_.schedule(Kind::leaves, job.number, now() + job.job.stays);
  set_busy(job, false);
}

void Simulation::set_busy(const SimulatedJob& job, bool busy) {
  enact(host_.set_busy(now(), job.job.id, busy));
}

void Simulation::begins_to_page_out(const SimulatedJob& job) {
  const auto bytes = static_cast<double>(job.job.demand.persistent);
  if (conduct_.paging_rate > 0)
    events_.schedule(Kind::paged, job.number, now() + bytes / conduct_.paging_rate);
  else
    enact(host_.page_out_failed(now(), job.job.id));
}

void Simulation::pages_out(SimulatedJob& job) {
  const Bytes bytes = job.job.demand.persistent;
  job.outcome.paged += bytes;
  enact(host_.paged_out(now(), job.job.id, bytes));
}

void Simulation::leaves(SimulatedJob& job) {
  events_.cancel(Kind::paged, job.number);
  job.open = false;
  enact(host_.close(now(), job.job.id));
}

// --- what is decided -----------------------------------------------------------------------------

void Simulation::enact(const Decision& decision) {
  const auto of = [&](const std::string& id) -> SimulatedJob& { return jobs_[numbers_.at(id)]; };
  for (const std::string& id : decision.page_ins) {
    const Bytes bytes = of(id).job.demand.persistent;
    of(id).outcome.paged += bytes;
    of(id).in_memory = now() + static_cast<double>(bytes) / conduct_.paging_rate;
  }
  for (const Grant& grant : decision.grants) gets_turn(of(grant.session), grant.lane);
  for (const Yield& yield : decision.yields) {
    of(yield.session).asked = true;
    aim(of(yield.session));
  }
  for (const std::string& id : decision.page_outs) begins_to_page_out(of(id));
}

// Throttles all other sessions while the class is on; else none.
void Simulation::follow_class(bool has_changed) {
  if (has_changed)
    for (const std::string& name : names_) enact(host_.set_policy(now(), name, class_.policy()));
  const Why why{{.code = Code::throttled_for_class, .who = std::string(class_.group())}};
  std::vector<std::map<std::string, Why>> throttled(names_.size());
  for (const SimulatedJob& job : jobs_)
    if (class_.is_on() && job.open && !class_.is_member(job.job))
      for (const std::size_t device : job.devices) throttled[device].emplace(job.job.id, why);
  for (std::size_t i = 0; i < names_.size(); ++i)
    enact(host_.throttle(now(), names_[i], throttled[i]));
}

// Jobs that compute at the same time share the device: together they get no more than all of it,
// and less where they contend. Two in one lane wait for its memory, and take less of the device
// then. A gang has its devices alone, so it counts on the first of them.
void Simulation::set_speeds(std::size_t device) {
  const auto is_there = [&](const SimulatedJob& job) {
    return job.computes && job.devices.front() == device;
  };
  double load = 0;
  int others = -1;
  for (const SimulatedJob& job : jobs_)
    if (is_there(job)) {
      load += job.job.load * speed_beside(job);
      ++others;
    }
  const double speed = std::pow(1 - conduct_.contention, std::max(0, others)) / std::max(1.0, load);
  const bool changed = std::exchange(speeds_[device], speed) != speed;
  for (SimulatedJob& job : jobs_) {
    if (!is_there(job)) continue;
    const double slowdown = slowdown_of(host_, job);
    const bool slowed = std::exchange(job.slowdown, slowdown) != slowdown;
    const double beside = speed_beside(job);
    const bool has_partner_changed = std::exchange(job.beside, beside) != beside;
    if (!changed && !slowed && !has_partner_changed && job.rate > 0) continue;
    job.set_rate(now(), speed * beside);
    aim(job);
  }
}

// A fraction of its speed alone.
double Simulation::speed_beside(const SimulatedJob& job) {
  if (job.job.curve.empty()) return 1;
  const DeviceState& state = host_.devices().state(job.devices.front());
  for (const SimulatedJob& other : jobs_) {
    const bool is_partner = other.computes && &other != &job && other.lane == job.lane &&
                            other.devices.front() == job.devices.front();
    if (is_partner) return pair_speeds_.of(job, other, state.lanes.table().bytes_of(job.lane));
  }
  return 1;
}

// A session that is squeezed may have more memory, and be faster, from the next event on.
void Simulation::follow_squeezes() {
  for (const SimulatedJob& job : jobs_)
    if (job.computes && slowdown_of(host_, job) != job.slowdown) set_speeds(job.devices.front());
}

// The next boundary at which there is something to say, or the very next one.
void Simulation::aim(const SimulatedJob& job) {
  if (!job.computes) return;
  std::int64_t next = job.first_boundary(events_.present());
  if (next == job.done) ++next;
  const Seconds report = job.due_report(conduct_);
  if (!conduct_.steps && !job.asked && report > now())
    next = std::max(next, job.first_boundary({report, Kind{}, 0}));
  const std::int64_t last = job.present_cell().iterations;
  events_.schedule(Kind::boundary, job.number, job.boundary_time(std::min(next, last)));
}

// --- what can be seen ----------------------------------------------------------------------------

std::int64_t Simulation::iterations() const {
  std::int64_t all = 0;
  for (const SimulatedJob& job : jobs_) all += job.outcome_at(now()).iterations;
  return all;
}

std::vector<Outcome> Simulation::outcomes() const {
  std::vector<Outcome> outcomes;
  for (const SimulatedJob& job : jobs_) outcomes.push_back(job.outcome_at(now()));
  return outcomes;
}

}  // namespace gpushare
