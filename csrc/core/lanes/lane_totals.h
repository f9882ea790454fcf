// Running totals over the sizes of lanes: of those that are held, and of the idle ones.
//
// Invariant, which LaneTable::is_valid() checks: they equal those of its lanes.
#pragma once

#include <algorithm>
#include <set>

#include "core/model/types.h"

namespace gpushare {

class LaneTotals {
 public:
  void add(Bytes size, bool is_held) { of(is_held).add(size); }
  void remove(Bytes size, bool is_held) { of(is_held).remove(size); }

  int held() const { return static_cast<int>(held_.sizes.size()); }  // lanes
  Bytes bytes() const { return held_.bytes + idle_.bytes; }
  Bytes largest() const { return std::max(held_.largest(), idle_.largest()); }
  // The bytes of all lanes, and one more idle lane of `extra` bytes, once all lanes that may merge
  // have merged: held lanes stay apart, and idle ones all go to the largest.
  Bytes merged(Bytes extra) const;

  bool operator==(const LaneTotals&) const = default;

 private:
  struct Sizes {
    std::multiset<Bytes> sizes;
    Bytes bytes = 0;

    void add(Bytes size);
    void remove(Bytes size);
    Bytes largest() const { return sizes.empty() ? 0 : *sizes.rbegin(); }
    bool operator==(const Sizes&) const = default;
  };

  Sizes& of(bool is_held) { return is_held ? held_ : idle_; }

  Sizes held_, idle_;
};

}  // namespace gpushare
