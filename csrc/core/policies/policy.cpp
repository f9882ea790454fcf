#include "core/policies/policy.h"

#include <algorithm>
#include <array>
#include <compare>
#include <limits>
#include <string>
#include <tuple>

#include "core/policies/policies.h"

namespace gpushare {
namespace {

const std::array kPolicies{GPUSHARE_POLICIES};

// Orders groups, then their users: the one that has used least for its weight is first.
std::partial_ordering by_users(const Candidate& a, const Candidate& b) {
  return std::tie(a.group_clock, a.user_clock) <=> std::tie(b.group_clock, b.user_clock);
}

// Seconds until the clock of the holder's user, or of its group, has passed that of the other's.
Seconds user_lead(const Candidate& holder, const Candidate& waiting) {
  if (holder.group == waiting.group)
    return (waiting.user_clock - holder.user_clock) * holder.user_weight /
           std::max(1, holder.user_turns);
  return (waiting.group_clock - holder.group_clock) * holder.group_weight /
         std::max(1, holder.group_turns);
}

Seconds shortest_turn_left(Ends ends, const Candidate& holder, const Candidate& waiting,
                           Seconds quantum) {
  switch (ends) {
    case Ends::never:
      return kNever;
    case Ends::after_quantum:
      return std::max(0.0, std::min(quantum, waiting.yields_after) - holder.running);
    case Ends::at_once:
      return 0;
  }
  return kNever;
}

// A cell's first seconds on the device go before all others, and its first turn before those. So
// each user that presses Shift-Enter sees progress after one iteration of each of the others,
// however many users do so. The boost is charged like any other time: the clocks go on, and a cell
// is boosted only while they are near those of the others.
int urgency(const Policy& policy, const Candidate& candidate) {
  if (!policy.boosts || candidate.boost <= 0) return 0;
  return candidate.begun ? 1 : 2;
}

std::string names() {
  std::string all;
  for (const Policy& policy : kPolicies)
    all += (all.empty() ? "" : ", ") + std::string(policy.name);
  return all;
}

// Names of policies are in ASCII.
char lower(char of) { return of >= 'A' && of <= 'Z' ? static_cast<char>(of - 'A' + 'a') : of; }

}  // namespace

std::span<const Policy> policies() { return kPolicies; }

const Policy& policy_named(std::string_view name) {
  const auto policy = std::ranges::find_if(kPolicies, [&](const Policy& each) {
    return std::ranges::equal(each.name, name, {}, {}, lower);
  });
  if (policy == kPolicies.end())
    throw std::invalid_argument("there is no policy '" + std::string(name) + "'; choose one of " +
                                names());
  return *policy;
}

bool before(const Policy& policy, const Candidate& a, const Candidate& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  const int a_is = urgency(policy, a), b_is = urgency(policy, b);
  if (a_is != b_is) return a_is > b_is;
  const auto users = by_users(a, b);
  return users != 0 ? users < 0 : policy.before(a, b);
}

Candidate after_turn(Candidate waiting, const Candidate& holder) {
  constexpr double kBeyond = std::numeric_limits<double>::infinity();
  if (waiting.group == holder.group) waiting.group_clock.units = kBeyond;
  if (waiting.user == holder.user) waiting.user_clock.units = kBeyond;
  return waiting;
}

Seconds ends_in(const Policy& policy, const Candidate& holder, const Candidate& waiting,
                Seconds quantum) {
  if (waiting.priority < holder.priority) return kNever;
  const int waits = urgency(policy, waiting), runs = urgency(policy, holder);
  if (waits > runs) return 0;
  const bool alike = holder.user == waiting.user;
  const Ends ends = alike ? policy.ends : Ends::after_quantum;
  const Seconds shortest = shortest_turn_left(ends, holder, waiting, quantum);
  if (waiting.priority > holder.priority) return shortest;
  const Seconds lead = alike ? policy.lead(holder, waiting, quantum) : user_lead(holder, waiting);
  const Seconds in_turn = std::max(shortest, lead);
  if (runs == 0) return in_turn;
  return waits > 0 ? std::min(in_turn, holder.boost) : std::max(in_turn, holder.boost);
}

}  // namespace gpushare
