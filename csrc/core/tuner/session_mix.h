// The sessions that want a device, or did recently, and how fast each of them is alone.
//
// Invariants, which is_valid() checks: each session in the mix has a pace, known or not.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/model/types.h"
#include "core/tuner/solo_pace.h"

namespace gpushare {

class SessionMix {
 public:
  explicit SessionMix(Seconds quantum) : quantum_(quantum) {}

  // These want the device or have it.
  void follow(Seconds now, const std::vector<SessionNumber>& wanting);
  void forget(SessionNumber session) { known_.erase(session); }
  // The pace of a session that has wanted the device; else none.
  SoloPace* find(SessionNumber session);

  const std::set<SessionNumber>& sessions() const { return mix_; }
  int size() const { return static_cast<int>(mix_.size()); }
  bool is_any_known() const;
  bool are_all_known(Seconds since) const;  // and were seen alone since then
  std::string is_valid() const;             // empty, or the first broken invariant in words

 private:
  struct Known {
    SoloPace pace;
    Seconds wanted;  // when it last wanted the device, or had it
  };

  Seconds quantum_;
  std::map<SessionNumber, Known> known_;
  std::vector<SessionNumber> wanting_;
  std::set<SessionNumber> mix_;
};

}  // namespace gpushare
