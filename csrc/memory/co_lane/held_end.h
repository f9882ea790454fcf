#pragma once
#include <cstddef>
#include <string>

#include "memory/co_lane/ledger.h"

namespace gpushare {

// One end of a co-lane, held for a process that uses this part of the lane already and has not got
// the ledger yet: it is in the middle of an iteration. A descriptor holds the end, even on its way
// to that process, until no process has it any more. When that process opens the ledger with it,
// the end is its own.
class HeldEnd {
 public:
  HeldEnd() = default;
  HeldEnd(const HeldEnd&) = delete;
  HeldEnd& operator=(const HeldEnd&) = delete;
  ~HeldEnd() { release(); }

  // Holds this end of the ledger, with `bytes` of a lane of `lane_bytes`. Returns an empty string,
  // or the sentence that says why that is impossible.
  [[nodiscard]] std::string open(int ledger, int end, size_t bytes, size_t lane_bytes);
  // The one to be sent; it stays this object's.
  int descriptor() const { return ledger_.descriptor_; }
  // That process no longer uses the lane, or has ended: its end is free, unless a process has
  // opened it.
  void release();

 private:
  Ledger ledger_;
};

}  // namespace gpushare
