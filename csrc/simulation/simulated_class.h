// A group that has the devices for itself, under the policy for classes, while one of its notebooks
// is open and not yet done.
#pragma once

#include <string>
#include <string_view>

#include "simulation/workload.h"

namespace gpushare {

class SimulatedClass {
 public:
  // The group "" has no class. `policy` holds while no class is present.
  SimulatedClass(std::string_view group, std::string_view policy)
      : group_(group), policy_(policy) {}

  bool is_member(const Job& job) const { return !group_.empty() && job.group == group_; }
  // Whether the class begins, or ends, with this job.
  bool join(const Job& job) { return is_member(job) && there_++ == 0; }
  bool leave(const Job& job) { return is_member(job) && --there_ == 0; }

  std::string_view group() const { return group_; }
  bool is_on() const { return there_ > 0; }
  std::string_view policy() const { return is_on() ? "classroom" : std::string_view(policy_); }

 private:
  std::string group_, policy_;
  std::size_t there_ = 0;  // members that are open, and not done
};

}  // namespace gpushare
