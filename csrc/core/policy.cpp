#include "core/policy.h"

#include <algorithm>
#include <array>
#include <string>

#include "core/policies/policies.h"

namespace gpushare {
namespace {

const std::array kPolicies{fair, fifo, srtf, pack, las};

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
  return a.priority != b.priority ? a.priority > b.priority : policy.before(a, b);
}

Seconds ends_in(const Policy& policy, const Candidate& holder, const Candidate& waiting,
                Seconds quantum) {
  if (waiting.priority < holder.priority) return kNever;
  const Seconds shortest = shortest_turn_left(policy.ends, holder, quantum);
  if (waiting.priority > holder.priority) return shortest;
  return std::max(shortest, policy.lead(holder, waiting, quantum));
}

}  // namespace gpushare
