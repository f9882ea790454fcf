#include "memory/lane/trimmed_segments.h"

namespace gpushare {

void TrimmedSegments::trim(const Run& segment, std::span<const Run> parts, BlockAllocator& blocks) {
  blocks.free(segment.first);
  for (const Run& part : parts) {
    blocks.claim(part.first, part.count);
    parts_.push_back({part, segment.first});
  }
}

Page TrimmedSegments::in_lane(const BlockAllocator& blocks) const {
  Page pages = 0;
  for (const Part& part : parts_) pages += blocks.size_of(part.first);
  return pages;
}

std::string TrimmedSegments::is_valid(const BlockAllocator& blocks,
                                      std::span<const Run> promoted) const {
  for (const Part& part : parts_) {
    const bool has_first = std::ranges::find(parts_, part.segment, &Part::first) != parts_.end();
    if (part.first < part.segment || !has_first) return "a part has no segment";
    const bool is_promoted = std::ranges::find(promoted, Run(part)) != promoted.end();
    if (is_promoted == (blocks.size_of(part.first) == part.count)) {
      return "a part is not just once alive";
    }
  }
  return {};
}

}  // namespace gpushare
