#include "memory/lane/lane_layout.h"

#include <algorithm>

namespace gpushare {
namespace {

// The part of `stretch` that lies in `range`, which overlaps it.
Stretch part(const Stretch& stretch, Page first, Page end) {
  return {first, end - first, stretch.lane_first + (first - stretch.first)};
}

bool is_same_place(const Stretch& a, const Stretch& b) {
  return a.lane_first - a.first == b.lane_first - b.first;  // modulo 2^32, which does no harm
}

template <class T>
auto first_ending_after(std::span<const T> sorted, Page page) {
  return std::partition_point(sorted.begin(), sorted.end(),
                              [&](const T& element) { return element.end() <= page; });
}

}  // namespace

std::vector<Run> gaps(Run range, std::span<const Run> held) {
  std::vector<Run> found;
  Page at = range.first;
  for (auto run = first_ending_after(held, at); run != held.end() && run->first < range.end();
       ++run) {
    if (run->first > at) found.push_back({at, run->first - at});
    at = run->end();
  }
  if (at < range.end()) found.push_back({at, range.end() - at});
  return found;
}

std::vector<Stretch> outside(std::span<const Stretch> stretches, std::span<const Run> held) {
  std::vector<Stretch> rest;
  for (const auto& stretch : stretches) {
    for (const Run& gap : gaps({stretch.first, stretch.count}, held)) {
      rest.push_back(part(stretch, gap.first, gap.end()));
    }
  }
  return rest;
}

std::vector<Stretch> difference(std::span<const Stretch> stretches,
                                std::span<const Stretch> others) {
  std::vector<Stretch> rest;
  for (const auto& stretch : stretches) {
    std::vector<Run> shared;
    for (auto other = first_ending_after(others, stretch.first);
         other != others.end() && other->first < stretch.end(); ++other) {
      if (is_same_place(stretch, *other)) shared.push_back({other->first, other->count});
    }
    const auto left = outside({&stretch, 1}, shared);
    rest.insert(rest.end(), left.begin(), left.end());
  }
  return rest;
}

std::vector<Stretch> layout(Page lane_pages, Page window_pages, std::span<const Run> held) {
  const Run home{0, lane_pages};
  const std::vector<Run> at_home = gaps(home, held);
  std::vector<Stretch> found;
  for (const Run& run : at_home) found.push_back({run.first, run.count, run.first});

  const std::vector<Run> displaced = gaps(home, at_home);
  auto next = displaced.begin();
  Page moved = 0;  // pages of `next` that have found a position
  for (Run gap : gaps({lane_pages, window_pages - lane_pages}, held)) {
    while (gap.count > 0 && next != displaced.end()) {
      const Page count = std::min(gap.count, next->count - moved);
      found.push_back({gap.first, count, next->first + moved});
      gap = {gap.first + count, gap.count - count};
      moved += count;
      if (moved == next->count) ++next, moved = 0;
    }
  }
  return found;
}

std::vector<Stretch> layout_from(int end, Page lane_pages, Page chunk_pages,
                                 std::span<const Run> held) {
  std::vector<Stretch> chunks;
  if (end == 0 && lane_pages > 0) chunks.push_back({0, lane_pages, 0});
  for (Page at = 0; end == 1 && at < lane_pages; at += chunk_pages) {
    chunks.push_back({at, chunk_pages, lane_pages - chunk_pages - at});
  }
  return outside(chunks, held);
}

std::vector<Run> merged(std::span<const Run> runs) {
  std::vector<Run> wider;
  for (const Run& run : runs) {
    if (!wider.empty() && wider.back().end() == run.first) {
      wider.back().count += run.count;
    } else {
      wider.push_back(run);
    }
  }
  return wider;
}

}  // namespace gpushare
