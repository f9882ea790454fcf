#include "core/policy.h"

#include <algorithm>
#include <array>
#include <string>

#include "core/policies/policies.h"

namespace gpushare {
namespace {

const std::array kPolicies{fair, fifo, srtf, pack, las, classroom};

Seconds shortest_turn_left(Ends ends, const Candidate& holder, Seconds quantum) {
  switch (ends) {
    case Ends::never:
      return kNever;
    case Ends::after_quantum:
      return std::max(0.0, quantum - holder.running);
    case Ends::at_once:
      return 0;
  }
  return kNever;
}

// A cell's first seconds on the device go before all others, and its first turn before those: so
// whoever presses Shift-Enter sees progress, however many do, after one iteration of each of the
// others who do. It takes nothing that is not counted: the clocks go on, and a cell is boosted only
// as far as they are near those of the others (Scheduler::boost_of).
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

}  // namespace

std::span<const Policy> policies() { return kPolicies; }

const Policy& policy_named(std::string_view name) {
  const auto policy = std::ranges::find(kPolicies, name, &Policy::name);
  if (policy == kPolicies.end())
    throw std::invalid_argument("there is no policy '" + std::string(name) + "'; choose one of " +
                                names());
  return *policy;
}

bool before(const Policy& policy, const Candidate& a, const Candidate& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  const int a_is = urgency(policy, a), b_is = urgency(policy, b);
  return a_is != b_is ? a_is > b_is : policy.before(a, b);
}

Seconds ends_in(const Policy& policy, const Candidate& holder, const Candidate& waiting,
                Seconds quantum) {
  if (waiting.priority < holder.priority) return kNever;
  const int waits = urgency(policy, waiting), runs = urgency(policy, holder);
  if (waits > runs) return 0;
  const Seconds shortest = shortest_turn_left(policy.ends, holder, quantum);
  if (waiting.priority > holder.priority) return shortest;
  const Seconds in_turn = std::max(shortest, policy.lead(holder, waiting, quantum));
  if (runs == 0) return in_turn;
  return waits > 0 ? std::min(in_turn, holder.boost) : std::max(in_turn, holder.boost);
}

}  // namespace gpushare
