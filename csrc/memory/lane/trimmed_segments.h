#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "memory/common/block_allocator.h"
#include "memory/lane/lane_layout.h"

namespace gpushare {

// Segments of PyTorch's allocator that were trimmed: of each, only some parts are alive, in the
// lane or promoted, and the pages between them may be in other segments. It has no lock of its own.
class TrimmedSegments {
 public:
  // Only these parts of the segment stay in the lane.
  void trim(const Run& segment, std::span<const Run> parts, BlockAllocator& blocks);
  bool has_part(const Run& block) const { return std::ranges::find(parts_, block) != parts_.end(); }
  // Forgets the segment that begins here, after a call of `end_part` with the first page of each of
  // its parts. False: it was not trimmed.
  template <class F>
  bool end(Page segment, F end_part) {
    const auto is_its = [&](const Part& part) { return part.segment == segment; };
    for (const Part& part : parts_) {
      if (is_its(part)) end_part(part.first);
    }
    return std::erase_if(parts_, is_its) > 0;
  }
  Page in_lane(const BlockAllocator& blocks) const;  // pages

  // Empty, or what is wrong. `promoted` blocks are not in the lane any more.
  std::string is_valid(const BlockAllocator& blocks, std::span<const Run> promoted) const;

 private:
  struct Part : Run {
    Page segment;  // its first page
  };

  std::vector<Part> parts_;
};

}  // namespace gpushare
