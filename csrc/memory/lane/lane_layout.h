#pragma once
#include <span>
#include <vector>

#include "memory/common/block_allocator.h"

namespace gpushare {

// Adjacent pages.
struct Run {
  Page first;
  Page count;

  Page end() const { return first + count; }
  bool operator==(const Run&) const = default;
};

// Adjacent pages of the lane, and where they are in the window of addresses.
struct Stretch {
  Page first;  // in the window
  Page count;
  Page lane_first;

  Page end() const { return first + count; }
  bool operator==(const Stretch&) const = default;
};

// All spans here are sorted by `first`, and their elements do not overlap.

// The parts of `range` between the runs of `held`.
std::vector<Run> gaps(Run range, std::span<const Run> held);

// The parts of `stretches` outside the runs of `held`.
std::vector<Stretch> outside(std::span<const Stretch> stretches, std::span<const Run> held);

// The parts of `stretches` that are not at the same position in `others`.
std::vector<Stretch> difference(std::span<const Stretch> stretches,
                                std::span<const Stretch> others);

// The place of a lane of this number of pages in the window, in which survivors hold some runs.
// Each page of the lane is at the page of the same number. The pages whose position is taken are
// behind the lane's end, as far as the window reaches. So survivors take addresses from the lane,
// but no memory.
std::vector<Stretch> layout(Page lane_pages, Page window_pages, std::span<const Run> held);

// The same from one end, 0 or 1, of a lane that two processes use at once: from the second end its
// chunks are in the reverse order. Pages whose position is taken stay out of use, since what a
// process has of such a lane counts from its end. The lane consists of whole chunks.
std::vector<Stretch> layout_from(int end, Page lane_pages, Page chunk_pages,
                                 std::span<const Run> held);

// Runs without the borders between neighbours.
std::vector<Run> merged(std::span<const Run> runs);

}  // namespace gpushare
