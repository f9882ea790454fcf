#include "core/cluster/gangs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "core/model/validation.h"

namespace gpushare {

GangSimulation::GangSimulation(const std::vector<Gang>& gangs, std::vector<int> hosts,
                               std::string_view policy, GangRules rules)
    : queue_(std::move(hosts), policy, std::move(rules)), gangs_(gangs) {
  require(!queue_.rules().told, "in virtual time a gang's service is not told");
  for (const Gang& gang : gangs_) {
    queue_.check(gang);
    require(std::isfinite(gang.arrival) && gang.arrival >= 0,
            "the arrival of '" + gang.id + "' must be finite seconds from 0 on");
    require(numbers_.emplace(gang.id, outcomes_.size()).second,
            "two gangs are called '" + gang.id + "'");
    GangOutcome& outcome = outcomes_.emplace_back();
    outcome.id = gang.id;
    outcome.arrival = gang.arrival;
  }
  coming_.resize(gangs_.size());
  std::iota(coming_.rbegin(), coming_.rend(), 0);
  std::ranges::stable_sort(coming_, std::greater{},
                           [&](std::size_t each) { return gangs_[each].arrival; });
}

void GangSimulation::run(Seconds until) {
  for (;;) {
    const Seconds next = next_event();
    if (next == kNever || next > until) break;
    queue_.advance(now_ = next);
    end();
    arrive();
    assign();
  }
  if (until != kNever) queue_.advance(now_ = std::max(now_, until));
}

// Time passes in any case: far from its zero, what is to come may be closer than its numbers are.
Seconds GangSimulation::next_event() const {
  Seconds next = queue_.next_event();
  for (const std::size_t each : running_) {
    const GangProgress& progress = queue_.progress(gangs_[each].id);
    next = std::min(next, now_ + progress.resumes + gangs_[each].duration - progress.executed);
  }
  next = std::max(next, std::nextafter(now_, kNever));
  return coming_.empty() ? next : std::min(next, gangs_[coming_.back()].arrival);
}

void GangSimulation::end() {
  for (const std::size_t each : std::vector(running_)) {
    const Gang& gang = gangs_[each];
    if (gang.duration - queue_.progress(gang.id).executed > kSoon) continue;
    end_turn(each);
    follow(outcomes_[each]);
    outcomes_[each].ended = now_;
    queue_.close(now_, gang.id);
  }
}

void GangSimulation::arrive() {
  for (; !coming_.empty() && gangs_[coming_.back()].arrival <= now_; coming_.pop_back())
    queue_.request(now_, gangs_[coming_.back()]);
}

// All gangs that have to stop do so before another one starts.
void GangSimulation::assign() {
  GangDecision decision = queue_.assign(now_);
  for (; !decision.yields.empty(); decision = queue_.assign(now_)) {
    for (const GangGrant& grant : decision.grants) begin_turn(grant);
    for (const std::string& id : decision.yields) yield(numbers_.at(id));
  }
  for (const GangGrant& grant : decision.grants) begin_turn(grant);
}

void GangSimulation::begin_turn(const GangGrant& grant) {
  const std::size_t number = numbers_.at(grant.gang);
  running_.push_back(number);
  if (!outcomes_[number].started) outcomes_[number].started = now_;
}

void GangSimulation::yield(std::size_t number) {
  ++outcomes_[number].preempted;
  end_turn(number);
  queue_.finish(now_, gangs_[number].id);
  queue_.request(now_, gangs_[number]);
}

void GangSimulation::end_turn(std::size_t number) {
  const GangProgress& progress = queue_.progress(gangs_[number].id);
  turns_.push_back({number, progress.granted, now_, progress.holds});
  std::erase(running_, number);
}

std::vector<GangOutcome> GangSimulation::outcomes() const {
  std::vector<GangOutcome> made = outcomes_;
  for (GangOutcome& outcome : made)
    if (queue_.contains(outcome.id)) follow(outcome);
  return made;
}

void GangSimulation::follow(GangOutcome& outcome) const {
  const GangProgress& progress = queue_.progress(outcome.id);
  outcome.waited = progress.waited_in_all;
  outcome.promoted = progress.promoted;
}

}  // namespace gpushare
