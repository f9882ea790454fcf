#include "core/gangs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <ranges>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace gpushare {

// Lower goes first, within a queue.
struct GangSimulation::Policy {
  std::string_view name;
  bool queues;
  double (*score)(const GangProgress&, const GangRules&);
};

namespace {

// What is due in less is due now: sums of times are not exact.
constexpr Seconds kInstant = 1e-6;

double srsf(const GangProgress& gang, const GangRules&) { return gang.remaining(); }

double las(const GangProgress& gang, const GangRules& rules) {
  return rules.thresholds.empty() ? gang.attained() : 0;
}

double gittins(const GangProgress& gang, const GangRules& rules) {
  return -gittins_index(rules.known, gang.attained(), rules.quantum);
}

constexpr std::array<GangSimulation::Policy, 3> kPolicies{{
    {"gittins", true, gittins},
    {"las", true, las},
    {"srsf", false, srsf},
}};

void require(bool condition, const std::string& sentence) {
  if (!condition) throw std::invalid_argument(sentence);
}

constexpr std::int64_t kMostDevices = 1'000'000;  // so that no sum of them overflows

bool is_amount(double value) { return std::isfinite(value) && value >= 0; }

const GangSimulation::Policy* policy_of(std::string_view name) {
  const auto found = std::ranges::find(kPolicies, name, &GangSimulation::Policy::name);
  require(found != kPolicies.end(), "gangs know no policy '" + std::string(name) + "'");
  return &*found;
}

void check(const Gang& gang, int devices) {
  require(gang.devices > 0, "'" + gang.id + "' must have a device");
  require(gang.devices <= devices, "'" + gang.id + "' wants more devices than there are");
  require(std::isfinite(gang.duration) && gang.duration > 0,
          "'" + gang.id + "' must last longer than 0 seconds");
  require(is_amount(gang.arrival),
          "the arrival of '" + gang.id + "' must be finite seconds from 0 on");
  require(gang.skew >= 0 && gang.skew <= 1, "the skew of '" + gang.id + "' must be from 0 to 1");
}

void check(const GangRules& rules, std::string_view policy) {
  require(std::ranges::is_sorted(rules.thresholds, std::less_equal{}) &&
              std::ranges::all_of(rules.thresholds, [](Service s) { return s > 0; }),
          "thresholds must be above 0 and rise");
  require(is_amount(rules.knob), "the knob must be finite and not negative");
  require(is_amount(rules.tick), "the tick must be finite seconds and not negative");
  require(is_amount(rules.resume), "resuming must take finite seconds, and not below 0");
  require(std::isfinite(rules.quantum) && rules.quantum > 0,
          "the quantum must be finite device-seconds above 0");
  require(std::ranges::all_of(rules.known, [](Service s) { return s > 0; }),
          "known service must be above 0");
  require(policy != "gittins" || !rules.known.empty(), "'gittins' needs known service");
}

}  // namespace

double gittins_index(const std::vector<Service>& known, Service attained, Service quantum) {
  double ends = 0, expected = 0;
  for (const Service service : known) {
    const Service left = service - attained;
    if (left <= 0) continue;
    ends += left <= quantum;
    expected += std::min(left, quantum);
  }
  return expected > 0 ? ends / expected : 0;
}

GangSimulation::GangSimulation(const std::vector<Gang>& gangs, std::vector<int> hosts,
                               std::string_view policy, GangRules rules)
    : hosts_(std::move(hosts)),
      free_(hosts_),
      policy_(policy_of(policy)),
      rules_(std::move(rules)) {
  check(rules_, policy);
  require(std::ranges::all_of(hosts_, [](int devices) { return devices > 0; }),
          "a host must have a device");
  const std::int64_t devices = std::accumulate(hosts_.begin(), hosts_.end(), std::int64_t{0});
  require(devices > 0 && devices <= kMostDevices,
          "there must be a host, and at most " + std::to_string(kMostDevices) + " devices");
  std::set<std::string_view> ids;
  for (const Gang& gang : gangs) {
    check(gang, static_cast<int>(devices));
    require(ids.insert(gang.id).second, "two gangs are called '" + gang.id + "'");
    GangProgress& progress = gangs_.emplace_back();
    progress.gang = gang;
    progress.outcome.id = gang.id;
    progress.outcome.arrival = gang.arrival;
  }
  coming_.resize(gangs.size());
  std::iota(coming_.rbegin(), coming_.rend(), 0);
  std::ranges::stable_sort(coming_, std::greater{},
                           [&](std::size_t each) { return gangs[each].arrival; });
}

std::vector<GangOutcome> GangSimulation::outcomes() const {
  std::vector<GangOutcome> made;
  for (const GangProgress& gang : gangs_) made.push_back(gang.outcome);
  return made;
}

// --- time ----------------------------------------------------------------------------------------

void GangSimulation::run(Seconds until) {
  for (;;) {
    const Seconds next = next_event();
    if (next == kNever || next > until) break;
    advance(next);
    end();
    arrive();
    for (const std::size_t each : present_) demote(gangs_[each]);
    for (const std::size_t each : present_) promote(gangs_[each]);
    assign();
  }
  if (until != kNever) advance(std::max(now_, until));
}

Seconds GangSimulation::next_event() const {
  Seconds next = coming_.empty() ? kNever : gangs_[coming_.back()].gang.arrival;
  for (const std::size_t each : present_) next = std::min(next, now_ + next_of(gangs_[each]));
  return std::min(next, next_tick());
}

// Where nobody waits, no order changes anything.
Seconds GangSimulation::next_tick() const {
  const bool waits =
      std::ranges::any_of(present_, [&](std::size_t each) { return gangs_[each].holds.empty(); });
  if (!waits || rules_.tick == 0) return kNever;
  return (std::floor((now_ + kInstant) / rules_.tick) + 1) * rules_.tick;
}

// Seconds until time alone ends it or changes its queue.
Seconds GangSimulation::next_of(const GangProgress& gang) const {
  if (gang.holds.empty()) return can_starve(gang) ? rules_.knob * gang.run - gang.waited : kNever;
  const Seconds left = gang.gang.duration - gang.executed;
  if (!policy_->queues || gang.queue == rules_.thresholds.size()) return gang.resumes + left;
  const Seconds stays = rules_.thresholds[gang.queue] / gang.gang.devices - gang.run;
  return gang.resumes + std::min(left, stays);
}

void GangSimulation::advance(Seconds time) {
  const Seconds passed = time - std::exchange(now_, time);
  for (const std::size_t each : present_) {
    GangProgress& gang = gangs_[each];
    if (gang.holds.empty()) {
      gang.outcome.waited += passed;
      if (gang.run > 0) gang.waited += passed;
    } else {
      const Seconds resumed = std::min(gang.resumes, passed);
      gang.resumes -= resumed;
      gang.executed += passed - resumed;
      gang.run += passed - resumed;
    }
  }
}

// --- queues --------------------------------------------------------------------------------------

void GangSimulation::arrive() {
  for (; !coming_.empty() && gangs_[coming_.back()].gang.arrival <= now_; coming_.pop_back()) {
    present_.push_back(coming_.back());
    enter(gangs_[coming_.back()], 0);
  }
}

void GangSimulation::end() {
  std::erase_if(present_, [&](std::size_t each) {
    GangProgress& gang = gangs_[each];
    if (gang.gang.duration - gang.executed > kInstant) return false;
    stop(gang);
    gang.outcome.ended = now_;
    return true;
  });
}

void GangSimulation::demote(GangProgress& gang) {
  if (!policy_->queues) return;
  const auto below =
      std::ranges::upper_bound(rules_.thresholds, gang.attained() + kInstant * gang.gang.devices);
  const auto queue = static_cast<std::size_t>(below - rules_.thresholds.begin());
  if (queue > gang.queue) enter(gang, queue);
}

void GangSimulation::promote(GangProgress& gang) {
  if (!can_starve(gang) || rules_.knob * gang.run - gang.waited > kInstant) return;
  gang.run = gang.waited = 0;
  ++gang.outcome.promoted;
  enter(gang, 0);
}

bool GangSimulation::can_starve(const GangProgress& gang) const {
  return rules_.knob > 0 && gang.holds.empty() && gang.queue > 0;
}

void GangSimulation::enter(GangProgress& gang, std::size_t queue) {
  gang.queue = queue;
  gang.ticket = ++tickets_;
}

// --- devices -------------------------------------------------------------------------------------

// From the first queue on, whoever still fits; who does not is skipped. All who have to stop do so
// before anybody starts.
void GangSimulation::assign() {
  sort();
  int left = std::accumulate(hosts_.begin(), hosts_.end(), 0);
  std::vector<std::size_t> starts;
  for (const std::size_t each : present_) {
    GangProgress& gang = gangs_[each];
    const bool fits = gang.gang.devices <= left;
    if (fits) left -= gang.gang.devices;
    if (fits && gang.holds.empty()) starts.push_back(each);
    if (fits || gang.holds.empty()) continue;
    stop(gang);
    ++gang.outcome.preempted;
  }
  for (const std::size_t each : starts) place(gangs_[each]);
}

// Each score is asked for once: an index looks at all that is known.
void GangSimulation::sort() {
  std::vector<std::tuple<std::size_t, double, std::uint64_t, std::size_t>> order;
  for (const std::size_t each : present_) {
    const GangProgress& gang = gangs_[each];
    order.emplace_back(gang.queue, policy_->score(gang, rules_), gang.ticket, each);
  }
  std::ranges::sort(order);
  std::ranges::copy(order | std::views::elements<3>, present_.begin());
}

// A skewed model sends few large messages and suffers from a network between its devices: it gets
// the smallest gap on one host that holds it, else the largest gaps. All others fill the smallest.
void GangSimulation::place(GangProgress& gang) {
  const int wanted = gang.gang.devices;
  const bool together = gang.gang.skew > rules_.consolidates;
  const bool one_host = std::ranges::max(free_) >= wanted;
  std::vector<std::size_t> order(hosts_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t host) {
    if (!together) return std::pair(false, free_[host]);
    return one_host ? std::pair(free_[host] < wanted, free_[host]) : std::pair(false, -free_[host]);
  });
  gang.holds.assign(hosts_.size(), 0);
  int missing = wanted;
  for (const std::size_t host : order) {
    const int taken = std::min(missing, free_[host]);
    gang.holds[host] = taken;
    free_[host] -= taken;
    missing -= taken;
  }
  gang.granted = now_;
  gang.resumes = gang.outcome.started ? rules_.resume : 0;
  if (!gang.outcome.started) gang.outcome.started = now_;
}

void GangSimulation::stop(GangProgress& gang) {
  for (std::size_t host = 0; host < hosts_.size(); ++host) free_[host] += gang.holds[host];
  const auto number = static_cast<std::size_t>(&gang - gangs_.data());
  turns_.push_back({number, gang.granted, now_, std::exchange(gang.holds, {})});
}

std::string GangSimulation::is_valid() const {
  std::vector<int> used(hosts_.size(), 0);
  for (const GangProgress& gang : gangs_) {
    if (gang.holds.empty()) continue;
    if (std::accumulate(gang.holds.begin(), gang.holds.end(), 0) != gang.gang.devices)
      return "'" + gang.gang.id + "' has a part of its devices";
    for (std::size_t host = 0; host < hosts_.size(); ++host) used[host] += gang.holds[host];
  }
  for (std::size_t host = 0; host < hosts_.size(); ++host)
    if (used[host] + free_[host] != hosts_[host] || free_[host] < 0)
      return "devices of host " + std::to_string(host) + " are counted wrong";
  return "";
}

}  // namespace gpushare
