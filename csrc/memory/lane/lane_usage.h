#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "memory/common/block_allocator.h"

namespace gpushare {

struct LaneUsage {
  size_t footprint;              // bytes that the lane needed in the last iteration
  uint64_t overflows;            // blocks that did not fit, so far
  size_t overflow_bytes;         // the most bytes of such blocks at one time in the last iteration
  uint64_t expected_survivors;   // blocks that stayed out because they were to survive, so far
  uint64_t promoted_pages;       // so far
  uint64_t promoted_runs;        // of neighbouring pages, so far
  size_t living_promoted_bytes;  // promoted blocks that are alive now
};

// Counts what iterations need of a lane, and what they have outside because it did not fit. Sizes
// are in pages.
class LaneUsageCounter {
 public:
  // An iteration ends, after it has used the lane's pages up to this number.
  void end(Page footprint) {
    footprint_ = footprint + spilled_;
    last_overflow_ = most_overflow_;
    overflow_ = most_overflow_ = spilled_ = 0;
  }
  void did_not_fit() { ++totals_.overflows; }
  void was_expected_to_survive() { ++totals_.expected_survivors; }
  // Blocks of this iteration that did not fit begin, or end, outside of the lane.
  void overflow_began(size_t pages) {
    overflow_ += pages;
    most_overflow_ = std::max(most_overflow_, overflow_);
  }
  void overflow_ended(size_t pages) { overflow_ -= pages; }
  // Pages have left the lane to a file, in the middle of an iteration.
  void spilled(Page pages) { spilled_ += pages; }
  void promoted(Page pages, size_t runs) {
    totals_.promoted_pages += pages;
    totals_.promoted_runs += runs;
  }

  LaneUsage usage(size_t page_bytes, Page living_promoted) const {
    LaneUsage usage = totals_;
    usage.footprint = page_bytes * footprint_;
    usage.overflow_bytes = page_bytes * last_overflow_;
    usage.living_promoted_bytes = page_bytes * living_promoted;
    return usage;
  }

 private:
  Page footprint_ = 0;  // of the last iteration
  // Blocks that did not fit: now, at most at one time of this iteration, and of the last one.
  size_t overflow_ = 0, most_overflow_ = 0, last_overflow_ = 0;
  Page spilled_ = 0;  // of this iteration
  LaneUsage totals_ = {};
};

}  // namespace gpushare
