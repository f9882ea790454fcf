#include "core/simulation.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "core/fitting.h"

namespace gpushare {
namespace {

constexpr std::string_view kClassPolicy = "classroom";
constexpr double kAtEndOfTurn = 0.1;  // of the time between two reports, as in session.py

void require(bool condition, const std::string& sentence) {
  if (!condition) throw std::invalid_argument(sentence);
}

constexpr std::size_t kMostDevices = 10'000;  // each is a scheduler, which takes memory

bool is_time(Seconds value) { return std::isfinite(value) && value >= 0; }

void check(const Cell& cell, const std::string& id) {
  require(cell.iterations > 0, "a cell of '" + id + "' must have iterations");
  require(std::isfinite(cell.iteration) && cell.iteration > 0,
          "an iteration of '" + id + "' must last longer than 0 seconds");
  require(is_time(cell.think), "the pause before a cell of '" + id + "' must be finite");
}

void check(const Job& job, std::size_t devices) {
  require(is_time(job.arrival), "the arrival of '" + job.id + "' must be finite seconds from 0 on");
  require(job.stays >= 0, "what '" + job.id + "' stays must not be below 0 seconds");
  require(job.load > 0 && job.load <= 1, "the load of '" + job.id + "' must be above 0, at most 1");
  require(job.devices > 0 && job.devices <= devices,
          "'" + job.id + "' must have a device, and at most the " + std::to_string(devices) +
              " that there are");
  require(!job.cells.empty(), "'" + job.id + "' has no cells");
  for (const Cell& cell : job.cells) check(cell, job.id);
}

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

}  // namespace

Simulation::Simulation(std::vector<Job> jobs, Bytes capacity, std::string_view policy,
                       const Rules& rules, const Conduct& conduct, std::size_t devices,
                       Shares shares)
    : conduct_(conduct),
      shares_(std::move(shares)),
      policy_(policy),
      names_(numbered(devices)),
      host_(alike(names_, capacity), policy, rules) {
  require(is_time(conduct.report) && is_time(conduct.handover) && is_time(conduct.paging_rate),
          "times and rates of the conduct must be finite and not negative");
  require(conduct.contention >= 0 && conduct.contention < 1,
          "the part that contention costs must be below 1 and not negative");
  for (const std::string& name : names_) {
    devices_.push_back({name});
    host_.set_shares(now_, name, shares_.groups, shares_.users);
  }
  jobs_.resize(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    Running& running = jobs_[i];
    check(jobs[i], devices);
    running.job = std::move(jobs[i]);
    require(numbers_.emplace(running.job.id, i).second,
            "two jobs are called '" + running.job.id + "'");
    running.outcome.id = running.job.id;
    running.outcome.arrival = running.job.arrival;
    running.due.fill(kNever);
    schedule(Kind::wakes, i, running.job.arrival);
  }
}

// --- time ----------------------------------------------------------------------------------------

void Simulation::run(Seconds until) {
  for (;;) {
    const Event next = events_.empty() ? Event{} : *events_.begin();
    const Seconds own = host_.next_event(now_).value_or(kNever);
    if (std::min(own, next.time) > until || std::min(own, next.time) == kNever) break;
    if (own <= next.time)
      wake(own);
    else
      happen(next);
    settle();
  }
  if (until != kNever) now_ = std::max(now_, until);
}

void Simulation::wake(Seconds time) {
  now_ = std::max(now_, time);
  present_ = {now_, Kind{}, 0};  // before all events of this time
  enact(host_.assign(now_));
}

void Simulation::happen(const Event& event) {
  now_ = event.time;
  present_ = event;
  cancel(event.kind, event.job);
  switch (event.kind) {
    case Kind::paged:
      return is_out(event.job);
    case Kind::wakes:
      return wakes(event.job);
    case Kind::computes:
      return begins_to_compute(event.job);
    case Kind::boundary:
      return reaches_boundary(event.job);
    case Kind::leaves:
      return leaves(event.job);
  }
}

// This is done once per event, however many calls the host got.
void Simulation::settle() {
  follow_squeezes();
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const DeviceState& there = host_.devices().state(i);
    const bool was_used = devices_[i].free >= 0 || there.sessions.size() > 0;
    if (was_used && there.lanes.free() != devices_[i].free) remember_memory(i);
  }
  if (!conduct_.checks) return;
  if (const std::string broken = host_.is_valid(); !broken.empty()) throw std::logic_error(broken);
}

void Simulation::remember_memory(std::size_t device) {
  const Scheduler& scheduler = host_.devices()[device].scheduler;
  devices_[device].free = scheduler.state().lanes.free();
  const DeviceSnapshot seen = scheduler.snapshot(now_);
  const Bytes used = seen.capacity - seen.free;
  memory_.push_back({now_, device, seen.persistent, used - seen.persistent});
}

void Simulation::schedule(Kind kind, std::size_t job, Seconds time) {
  Seconds& due = jobs_[job].due[static_cast<std::size_t>(kind)];
  if (due != kNever) events_.erase({due, kind, job});
  if (time != kNever) events_.insert({time, kind, job});
  due = time;
}

// --- what jobs do --------------------------------------------------------------------------------

void Simulation::wakes(std::size_t job) {
  const Running& running = jobs_[job];
  const bool arrives = !running.open;
  if (arrives && !opens(job)) return;
  const Seconds think = running.job.cells[running.cell].think;
  if (arrives && think > 0)
    schedule(Kind::wakes, job, now_ + think);
  else
    begins_cell(job);
}

bool Simulation::opens(std::size_t job) {
  Running& running = jobs_[job];
  const std::vector<std::string> devices =
      host_.devices().place(names_, running.job.demand, running.job.devices);
  running.devices.clear();
  for (const std::string& device : devices)
    running.devices.push_back(host_.devices().number_of(device));
  SessionSpec spec;
  spec.user = running.job.user;
  spec.group = running.job.group;
  spec.weight = running.job.weight;
  spec.priority = running.job.priority;
  spec.demand = running.job.demand;
  if (!spec.demand.measured) spec.demand.options.clear();
  spec.bears = running.job.bears;
  spec.remaining_iterations = declared(running);
  spec.busy = running.job.cells.front().think == 0;
  try {
    enact(host_.open(now_, running.job.id, devices, spec));
  } catch (const std::overflow_error&) {
    running.outcome.refused = true;
    return false;
  }
  running.open = true;
  if (attends(job) && attending_++ == 0) set_policies(kClassPolicy);
  if (attending_ > 0) throttle_others();
  return true;
}

void Simulation::begins_cell(std::size_t job) {
  Running& running = jobs_[job];
  cancel(Kind::paged, job);
  running.done = 0;
  set_busy(job, true);
  requests(job);
}

void Simulation::requests(std::size_t job) {
  Running& running = jobs_[job];
  running.wants = true;
  running.wanted = now_;
  enact(host_.request(now_, running.job.id, ++running.turn));
}

void Simulation::is_granted(std::size_t job, LaneId lane) {
  Running& running = jobs_[job];
  running.wants = false;
  running.holds = true;
  running.asked = false;
  running.lane = lane;
  running.granted = now_;
  running.outcome.waited += now_ - running.wanted;
  if (!running.outcome.started) running.outcome.started = now_;
  const Seconds begins = std::max(now_ + conduct_.handover, running.in_memory);
  if (begins > now_)
    schedule(Kind::computes, job, begins);
  else
    begins_to_compute(job);
}

void Simulation::begins_to_compute(std::size_t job) {
  Running& running = jobs_[job];
  running.computes = true;
  running.progress = static_cast<double>(running.done);
  running.since = now_;
  running.rate = 0;
  set_speeds(running.devices.front());
}

void Simulation::reaches_boundary(std::size_t job) {
  Running& running = jobs_[job];
  const std::int64_t reached = first_boundary(running, present_);
  running.unreported += reached - running.done;
  running.outcome.iterations += reached - running.done;
  running.done = reached;
  if (running.done == running.job.cells[running.cell].iterations) return ends_cell(job);
  const bool asked = running.asked;
  if (asked) parts(job);
  if (now_ >= due_report(running)) reports(job);
  if (asked)
    requests(job);
  else
    aim(job);
}

void Simulation::parts(std::size_t job) {
  Running& running = jobs_[job];
  running.holds = running.computes = false;
  cancel(Kind::boundary, job);
  running.outcome.device_seconds += turn_seconds(running);
  if (conduct_.remembers_turns)
    for (const std::size_t device : running.devices)
      turns_.push_back({job, device, running.lane, running.granted, now_});
  set_speeds(running.devices.front());
  enact(host_.finish(now_, running.job.id, running.turn));
}

// The time of the next report, as in session.py.
Seconds Simulation::due_report(const Running& running) const {
  if (running.holds && running.reported > -kNever)
    return std::max(running.granted, running.reported) + conduct_.report;
  return running.reported + kAtEndOfTurn * conduct_.report;
}

void Simulation::reports(std::size_t job) {
  Running& running = jobs_[job];
  Demand demand = running.job.demand;
  demand.measured = true;
  running.reported = now_;
  const std::int64_t iterations = std::exchange(running.unreported, 0);
  enact(host_.report(now_, running.job.id, iterations, demand, declared(running)));
}

void Simulation::ends_cell(std::size_t job) {
  Running& running = jobs_[job];
  parts(job);
  reports(job);
  if (++running.cell == running.job.cells.size()) return ends(job);
  running.done = 0;
  const Seconds think = running.job.cells[running.cell].think;
  if (think == 0) return begins_cell(job);
  schedule(Kind::wakes, job, now_ + think);
  set_busy(job, false);
}

void Simulation::ends(std::size_t job) {
  Running& running = jobs_[job];
  running.outcome.ended = now_;
  if (attends(job) && --attending_ == 0) {
    set_policies(policy_);
    throttle_others();
  }
  if (running.job.stays == 0) return leaves(job);
  schedule(Kind::leaves, job, now_ + running.job.stays);
  set_busy(job, false);
}

void Simulation::set_busy(std::size_t job, bool busy) {
  enact(host_.set_busy(now_, jobs_[job].job.id, busy));
}

void Simulation::pages_out(std::size_t job) {
  Running& running = jobs_[job];
  const auto bytes = static_cast<double>(running.job.demand.persistent);
  if (conduct_.paging_rate > 0)
    schedule(Kind::paged, job, now_ + bytes / conduct_.paging_rate);
  else
    enact(host_.page_out_failed(now_, running.job.id));
}

void Simulation::is_out(std::size_t job) {
  Running& running = jobs_[job];
  const Bytes bytes = running.job.demand.persistent;
  running.outcome.paged += bytes;
  enact(host_.paged_out(now_, running.job.id, bytes));
}

void Simulation::leaves(std::size_t job) {
  cancel(Kind::paged, job);
  jobs_[job].open = false;
  enact(host_.close(now_, jobs_[job].job.id));
}

// --- the class -----------------------------------------------------------------------------------

bool Simulation::attends(std::size_t job) const {
  return !shares_.class_of.empty() && jobs_[job].job.group == shares_.class_of;
}

void Simulation::set_policies(std::string_view policy) {
  for (const std::string& name : names_) enact(host_.set_policy(now_, name, policy));
}

// Throttles all other sessions while one of the class is open; else none.
void Simulation::throttle_others() {
  std::vector<std::map<std::string, std::string>> sentences(devices_.size());
  for (std::size_t job = 0; job < jobs_.size(); ++job)
    if (const Running& running = jobs_[job]; attending_ > 0 && running.open && !attends(job))
      for (const std::size_t device : running.devices)
        sentences[device].emplace(running.job.id, "a class has the device");
  for (std::size_t i = 0; i < devices_.size(); ++i)
    enact(host_.throttle(now_, names_[i], sentences[i]));
}

// --- what the scheduler decides ------------------------------------------------------------------

void Simulation::enact(const Decision& decision) {
  for (const std::string& id : decision.page_ins) {
    Running& running = jobs_[numbers_.at(id)];
    const Bytes bytes = running.job.demand.persistent;
    running.outcome.paged += bytes;
    running.in_memory = now_ + static_cast<double>(bytes) / conduct_.paging_rate;
  }
  for (const Grant& grant : decision.grants) is_granted(numbers_.at(grant.session), grant.lane);
  for (const Yield& yield : decision.yields) {
    const std::size_t job = numbers_.at(yield.session);
    jobs_[job].asked = true;
    aim(job);
  }
  for (const std::string& id : decision.page_outs) pages_out(numbers_.at(id));
}

// Jobs that compute at the same time share the device: together they get no more than all of it,
// and less where they contend. A gang has its devices alone, so it counts on the first of them.
void Simulation::set_speeds(std::size_t device) {
  double load = 0;
  int others = -1;
  for (const Running& running : jobs_)
    if (running.computes && running.devices.front() == device) {
      load += running.job.load;
      ++others;
    }
  const double speed = std::pow(1 - conduct_.contention, std::max(0, others)) / std::max(1.0, load);
  const bool changed = std::exchange(devices_[device].speed, speed) != speed;
  for (std::size_t job = 0; job < jobs_.size(); ++job) {
    Running& running = jobs_[job];
    if (!running.computes || running.devices.front() != device) continue;
    const double slowdown = slowdown_of(running);
    const bool slowed = std::exchange(running.slowdown, slowdown) != slowdown;
    if (!changed && !slowed && running.rate > 0) continue;
    running.progress += (now_ - running.since) * running.rate;
    running.since = now_;
    running.rate = speed / (running.job.cells[running.cell].iteration * slowdown);
    aim(job);
  }
}

// A session that is squeezed may have more memory, and be faster, from the next event on.
void Simulation::follow_squeezes() {
  for (const Running& running : jobs_)
    if (running.computes && !running.job.demand.options.empty() &&
        slowdown_of(running) != running.slowdown)
      set_speeds(running.devices.front());
}

double Simulation::slowdown_of(const Running& running) const {
  if (running.job.demand.options.empty()) return 1;
  const DeviceState& state = host_.devices()[running.devices.front()].scheduler.state();
  return squeezed(state, state.sessions.of(running.job.id)).value_or(SqueezeOption{}).slowdown;
}

// The next boundary at which there is something to say, or the very next one.
void Simulation::aim(std::size_t job) {
  const Running& running = jobs_[job];
  if (!running.computes) return;
  std::int64_t next = first_boundary(running, present_);
  if (next == running.done) ++next;
  const std::int64_t last = running.job.cells[running.cell].iterations;
  if (!conduct_.steps && !running.asked && due_report(running) > now_)
    next = std::max(next, first_boundary(running, {due_report(running), Kind{}, 0}));
  schedule(Kind::boundary, job, boundary_time(running, std::min(next, last)));
}

// The first boundary at this event or after it. Found by its time as boundary_time() has it, so
// that a rounding error does not make another one of it.
std::int64_t Simulation::first_boundary(const Running& running, const Event& after) const {
  const auto job = static_cast<std::size_t>(&running - jobs_.data());
  const auto is_over = [&](std::int64_t iteration) {
    return Event{boundary_time(running, iteration), Kind::boundary, job} < after;
  };
  const double progress = running.progress + (after.time - running.since) * running.rate;
  const std::int64_t last = running.job.cells[running.cell].iterations;
  const double bounded = std::clamp(std::floor(progress), 0.0, static_cast<double>(last));
  std::int64_t next = std::max(running.done, static_cast<std::int64_t>(bounded));
  while (next > running.done && !is_over(next - 1)) --next;
  while (next < last && is_over(next)) ++next;
  return next;
}

Seconds Simulation::boundary_time(const Running& running, std::int64_t iteration) const {
  return running.since + (static_cast<double>(iteration) - running.progress) / running.rate;
}

std::int64_t Simulation::left(const Running& running) const {
  std::int64_t left = -running.done;
  for (std::size_t cell = running.cell; cell < running.job.cells.size(); ++cell)
    left += running.job.cells[cell].iterations;
  return left;
}

std::optional<std::int64_t> Simulation::declared(const Running& running) const {
  return running.job.declares ? std::optional(left(running)) : std::nullopt;
}

// Seconds of its turn, summed over its devices.
Seconds Simulation::turn_seconds(const Running& running) const {
  return (now_ - running.granted) * static_cast<double>(running.devices.size());
}

std::int64_t Simulation::iterations() const {
  std::int64_t all = 0;
  for (const Running& running : jobs_) all += outcome(running).iterations;
  return all;
}

std::vector<Outcome> Simulation::outcomes() const {
  std::vector<Outcome> outcomes;
  for (const Running& running : jobs_) outcomes.push_back(outcome(running));
  return outcomes;
}

// The outcome includes what has begun and is not over yet.
Outcome Simulation::outcome(const Running& running) const {
  Outcome outcome = running.outcome;
  if (running.wants) outcome.waited += now_ - running.wanted;
  if (running.holds) outcome.device_seconds += turn_seconds(running);
  if (!running.computes) return outcome;
  const std::int64_t next = first_boundary(running, {now_, Kind::leaves, 0});
  outcome.iterations += std::max<std::int64_t>(0, next - 1 - running.done);
  return outcome;
}

}  // namespace gpushare
