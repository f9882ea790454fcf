#include "core/cluster/cluster_queue.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <ranges>
#include <tuple>
#include <utility>

#include "core/cluster/cluster_pass.h"
#include "core/model/validation.h"

namespace gpushare {

// Lower goes first, within a queue.
struct ClusterQueue::Policy {
  std::string_view name;
  bool queues;
  double (*score)(const GangProgress&, const GangRules&);
};

namespace {

double srsf(const GangProgress& gang, const GangRules&) { return gang.remaining(); }

double las(const GangProgress& gang, const GangRules& rules) {
  return rules.thresholds.empty() ? gang.attained() : 0;
}

double gittins(const GangProgress& gang, const GangRules& rules) {
  return -gittins_index(rules.known, gang.attained(), rules.quantum);
}

constexpr std::array<ClusterQueue::Policy, 3> kPolicies{{
    {"gittins", true, gittins},
    {"las", true, las},
    {"srsf", false, srsf},
}};

bool is_amount(double value) { return std::isfinite(value) && value >= 0; }

const ClusterQueue::Policy* policy_of(std::string_view name) {
  const auto found = std::ranges::find(kPolicies, name, &ClusterQueue::Policy::name);
  require(found != kPolicies.end(), "gangs know no policy '" + std::string(name) + "'");
  return &*found;
}

bool are_all_of(const Gang& gang, const DeviceCounts& devices) {
  return std::ranges::all_of(devices, [](int each) { return each >= 0; }) &&
         std::accumulate(devices.begin(), devices.end(), std::int64_t{0}) == gang.devices;
}

void check(const Gang& gang) {
  require(gang.devices > 0, "'" + gang.id + "' must have a device");
  require(gang.hosts >= 0, "'" + gang.id + "' must want no number of hosts below 0");
  require(std::isfinite(gang.duration) && gang.duration > 0,
          "'" + gang.id + "' must last longer than 0 seconds");
  require(gang.skew >= 0 && gang.skew <= 1, "the skew of '" + gang.id + "' must be from 0 to 1");
}

void check(const Gang& gang, const DevicePool& pool) {
  check(gang);
  require(pool.has_held({gang.devices}), "'" + gang.id + "' wants more devices than there are");
  require(pool.has_held({gang.devices, gang.hosts}),
          "'" + gang.id + "' wants more devices than " + std::to_string(gang.hosts) +
              (gang.hosts == 1 ? " host has" : " hosts have"));
}

void check(const GangProgress& progress, std::size_t hosts) {
  const auto& [gang, holds] = std::tie(progress.gang, progress.holds);
  check(gang);
  require(holds.empty() || (holds.size() <= hosts && are_all_of(gang, holds)),
          "'" + gang.id + "' must have all its devices, or none");
  require(!progress.wants || holds.empty(), "'" + gang.id + "' must not wait and run at once");
  const auto amounts = {progress.executed, progress.run,     progress.waited,
                        progress.served,   progress.resumes, progress.waited_in_all,
                        progress.kept_free};
  require(std::ranges::all_of(amounts, is_amount) && std::isfinite(progress.granted),
          "times of '" + gang.id + "' must be finite seconds and not negative");
}

void check_least(Seconds least) {
  require(is_amount(least), "the least of a turn must be finite seconds and not negative");
}

void check_known(const std::vector<Service>& known) {
  require(std::ranges::all_of(known, [](Service s) { return s > 0; }),
          "known service must be above 0");
}

void check(const GangRules& rules) {
  require(std::ranges::is_sorted(rules.thresholds, std::less_equal{}) &&
              std::ranges::all_of(rules.thresholds, [](Service s) { return s > 0; }),
          "thresholds must be above 0 and rise");
  require(is_amount(rules.knob), "the knob must be finite and not negative");
  require(is_amount(rules.tick), "the tick must be finite seconds and not negative");
  require(is_amount(rules.start), "starting must take finite seconds, and not below 0");
  require(is_amount(rules.resume), "resuming must take finite seconds, and not below 0");
  check_least(rules.least);
  require(std::isfinite(rules.quantum) && rules.quantum > 0,
          "the quantum must be finite device-seconds above 0");
  check_known(rules.known);
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

bool is_young(const GangProgress& gang, const GangRules& rules) {
  return rules.least - gang.served > kSoon;
}

bool may_keep_free(const GangProgress& gang, const GangRules& rules) {
  return rules.least - gang.kept_free > kSoon;
}

GangRules GangRules::in_parts(int parts) const {
  require(parts > 0, "a device has one part or more");
  GangRules rules = *this;
  for (Service& threshold : rules.thresholds) threshold *= parts;
  for (Service& service : rules.known) service *= parts;
  rules.quantum *= parts;
  return rules;
}

ClusterQueue::ClusterQueue(DeviceCounts hosts, std::string_view policy, GangRules rules)
    : devices_(std::move(hosts)), policy_(policy_of(policy)), rules_(std::move(rules)) {
  check(rules_);
}

// --- events --------------------------------------------------------------------------------------

void ClusterQueue::request(Seconds now, const Gang& gang) {
  check(gang, devices_);
  advance(now);
  const auto [known, is_new] = numbers_.try_emplace(gang.id, last_number_ + 1);
  GangProgress& progress = gangs_[known->second];
  if (is_new) {
    last_number_ = known->second;
    progress.gang = gang;
    enter(progress, 0);
  }
  if (progress.wants || !progress.holds.empty()) return;
  progress.gang = gang;
  progress.wants = true;
  present_.push_back(known->second);
}

void ClusterQueue::set_hosts(Seconds now, const DeviceCounts& hosts) {
  devices_.set_hosts(hosts);
  advance(now);
  for (auto& [number, gang] : gangs_)
    if (!gang.holds.empty()) gang.holds.resize(hosts.size(), 0);
}

void ClusterQueue::served(Seconds now, const std::string& id, Service more) {
  const Number number = number_of(id);
  require(rules_.told, "service is told only where the rules say so");
  require(is_amount(more), "the service of '" + id + "' must be finite and not negative");
  advance(now);
  GangProgress& gang = gangs_.at(number);
  const Seconds computed = more / gang.gang.devices;
  gang.executed += computed;
  gang.run += computed;
  if (!gang.holds.empty()) gang.served += computed;
}

void ClusterQueue::may_stop(Seconds now, const std::string& id) {
  const Number number = number_of(id);
  advance(now);
  GangProgress& gang = gangs_.at(number);
  if (std::exchange(gang.gang.stays, false)) gang.asked = false;  // it could not obey before
}

void ClusterQueue::moved(Seconds now, const std::string& id, const DeviceCounts& holds) {
  GangProgress& gang = gangs_.at(number_of(id));
  require(!gang.holds.empty() && holds.size() == gang.holds.size() && are_all_of(gang.gang, holds),
          "'" + id + "' must have as many devices as it was granted, on hosts that there are");
  advance(now);
  stop(gang);
  devices_.take(gang.holds = holds);
}

void ClusterQueue::set_least(Seconds least) {
  check_least(least);
  rules_.least = least;
}

void ClusterQueue::set_known(std::vector<Service> known) {
  check_known(known);
  rules_.known = std::move(known);
}

void ClusterQueue::restore(Seconds now, const GangProgress& progress) {
  check(progress, devices_.hosts().size());
  require(!contains(progress.gang.id), "'" + progress.gang.id + "' is there already");
  advance(now);
  const Number number = numbers_[progress.gang.id] = ++last_number_;
  GangProgress& gang = gangs_[number] = progress;
  gang.queue = std::min(gang.queue, rules_.thresholds.size());  // there may be fewer by now
  tickets_ = std::max(tickets_, gang.ticket);
  is_sorted_ = false;
  if (gang.wants || !gang.holds.empty()) present_.push_back(number);
  if (gang.holds.empty()) return;
  gang.holds.resize(devices_.hosts().size(), 0);
  devices_.take(gang.holds);
}

void ClusterQueue::finish(Seconds now, const std::string& id) {
  const Number number = number_of(id);
  advance(now);
  GangProgress& gang = gangs_.at(number);
  if (!gang.holds.empty()) stop(gang);
  gang.wants = gang.keeps_free = false;
  gang.kept_free = 0;
  std::erase(present_, number);
}

void ClusterQueue::close(Seconds now, const std::string& id) {
  finish(now, id);
  gangs_.erase(number_of(id));
  numbers_.erase(id);
}

ClusterQueue::Number ClusterQueue::number_of(const std::string& id) const {
  const auto number = numbers_.find(id);
  if (number == numbers_.end()) throw UnknownSession("no gang '" + id + "' is known");
  return number->second;
}

const GangProgress& ClusterQueue::progress(const std::string& id) const {
  return gangs_.at(number_of(id));
}

std::vector<std::string> ClusterQueue::waiting() const {
  std::vector<std::string> ids;
  for (const Number each : present_)
    if (const GangProgress& gang = gangs_.at(each); gang.wants) ids.push_back(gang.gang.id);
  return ids;
}

// --- time ----------------------------------------------------------------------------------------

Seconds ClusterQueue::next_event() const {
  Seconds next = next_tick();
  for (const Number each : present_) next = std::min(next, now_ + next_of(gangs_.at(each)));
  return next;
}

// The order has no effect where no gang waits.
Seconds ClusterQueue::next_tick() const {
  const bool waits =
      std::ranges::any_of(present_, [&](Number each) { return gangs_.at(each).wants; });
  if (!waits || rules_.tick == 0) return kNever;
  return (std::floor((now_ + kSoon) / rules_.tick) + 1) * rules_.tick;
}

// Seconds until time alone changes its queue, or whether it may be asked to yield.
Seconds ClusterQueue::next_of(const GangProgress& gang) const {
  if (gang.wants)
    return std::min(can_starve(gang) ? rules_.knob * gang.run - gang.waited : kNever,
                    gang.keeps_free ? rules_.least - gang.kept_free : kNever);
  if (rules_.told) return kNever;
  const Seconds young = is_young(gang, rules_) ? gang.resumes + rules_.least - gang.served : kNever;
  if (!policy_->queues || gang.queue == rules_.thresholds.size()) return young;
  return std::min(young,
                  gang.resumes + rules_.thresholds[gang.queue] / gang.gang.devices - gang.run);
}

void ClusterQueue::advance(Seconds now) {
  now = std::max(now, now_);
  const Seconds passed = now - std::exchange(now_, now);
  if (passed == 0) return;  // many events have one time
  for (const Number each : present_) {
    GangProgress& gang = gangs_.at(each);
    if (gang.wants) {
      gang.waited_in_all += passed;
      if (gang.run > 0) gang.waited += passed;
      if (gang.keeps_free) gang.kept_free += passed;
    } else if (!rules_.told) {
      const Seconds resumed = std::min(gang.resumes, passed);
      gang.resumes -= resumed;
      gang.executed += passed - resumed;
      gang.run += passed - resumed;
      gang.served += passed - resumed;
    }
  }
}

// --- queues --------------------------------------------------------------------------------------

void ClusterQueue::demote(GangProgress& gang) {
  if (!policy_->queues) return;
  const auto below =
      std::ranges::upper_bound(rules_.thresholds, gang.attained() + kSoon * gang.gang.devices);
  const auto queue = static_cast<std::size_t>(below - rules_.thresholds.begin());
  if (queue > gang.queue) enter(gang, queue);
}

void ClusterQueue::promote(GangProgress& gang) {
  if (!can_starve(gang) || rules_.knob * gang.run - gang.waited > kSoon) return;
  gang.run = gang.waited = 0;
  ++gang.promoted;
  enter(gang, 0);
}

bool ClusterQueue::can_starve(const GangProgress& gang) const {
  return rules_.knob > 0 && gang.wants && gang.queue > 0;
}

void ClusterQueue::enter(GangProgress& gang, std::size_t queue) {
  gang.queue = queue;
  gang.ticket = ++tickets_;
}

// --- devices -------------------------------------------------------------------------------------

GangDecision ClusterQueue::assign(Seconds now) {
  advance(now);
  if (!is_sorted_) sort();  // gangs that change their queue do so in this order
  for (const Number each : present_) demote(gangs_.at(each));
  for (const Number each : present_) promote(gangs_.at(each));
  sort();
  std::vector<const GangProgress*> order;
  for (const Number each : present_) order.push_back(&gangs_.at(each));
  const ClusterPass pass(devices_, rules_, std::move(order));
  GangDecision decision;
  for (const auto& [index, devices] : pass.starts()) {
    GangProgress& gang = gangs_.at(present_[index]);
    place(gang, devices);
    decision.grants.push_back({gang.gang.id, devices});
  }
  for (const std::size_t index : pass.yields()) {
    GangProgress& gang = gangs_.at(present_[index]);
    gang.asked = true;
    decision.yields.push_back(gang.gang.id);
  }
  for (std::size_t each = 0; each < present_.size(); ++each)
    gangs_.at(present_[each]).keeps_free = pass.kept_for() == each;
  return decision;
}

// Each score is computed once: an index reads all known service.
void ClusterQueue::sort() {
  std::vector<std::tuple<std::size_t, double, std::uint64_t, Number>> order;
  for (const Number each : present_) {
    const GangProgress& gang = gangs_.at(each);
    order.emplace_back(gang.queue, policy_->score(gang, rules_), gang.ticket, each);
  }
  std::ranges::sort(order);
  std::ranges::copy(order | std::views::elements<3>, present_.begin());
  is_sorted_ = true;
}

void ClusterQueue::place(GangProgress& gang, const DeviceCounts& devices) {
  devices_.take(devices);
  gang.holds = devices;
  gang.wants = gang.asked = false;
  gang.granted = now_;
  gang.served = gang.kept_free = 0;
  gang.resumes = std::exchange(gang.started, true) ? rules_.resume : rules_.start;
}

void ClusterQueue::stop(GangProgress& gang) {
  devices_.give_back(gang.holds);
  gang.holds.clear();
}

std::string ClusterQueue::is_valid() const {
  std::vector<DeviceCounts> holds;
  for (const auto& [number, gang] : gangs_) {
    if (gang.wants && !gang.holds.empty()) return "'" + gang.gang.id + "' waits and runs at once";
    if (gang.holds.empty()) continue;
    if (sum(gang.holds) != gang.gang.devices)
      return "'" + gang.gang.id + "' has a part of its devices";
    holds.push_back(gang.holds);
  }
  return devices_.is_valid(holds);
}

}  // namespace gpushare
