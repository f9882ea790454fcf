#include "memory/lane/lane_window.h"

#include <algorithm>

namespace gpushare {

void LaneWindow::show(Page lane_pages, std::optional<Side> side, BlockAllocator& blocks) {
  lane_pages_ = lane_pages;
  side_ = side;
  lay_out(blocks);
}

void LaneWindow::lay_out(BlockAllocator& blocks) {
  bury();
  for (const Run& run : spare_) blocks.take(run.first, run.count);
  const auto wanted = wanted_layout(blocks.pages());
  for (const auto& stretch : difference(mapped_, wanted)) {
    blocks.take(stretch.first, stretch.count);
    pages_.clear({stretch.first, stretch.count});
  }
  std::vector<Run> failed;
  for (const auto& stretch : difference(wanted, mapped_)) {
    if (pages_.map(stretch)) {
      blocks.add(stretch.first, stretch.count);
    } else {
      failed.push_back({stretch.first, stretch.count});
      pages_.clear(failed.back());
    }
  }
  mapped_ = outside(wanted, failed);
  is_stale_ = !failed.empty();
  spare_ = spare_addresses(blocks.pages());
  for (const Run& run : spare_) blocks.add(run.first, run.count);
}

std::vector<Stretch> LaneWindow::wanted_layout(Page window_pages) const {
  if (!side_) return layout(lane_pages_, window_pages, held());
  return layout_from(side_->end, lane_pages_, side_->chunk_pages, held());
}

// If the last free block were as small as the lane, it would be a good fit for short-lived
// blocks near the peak of an iteration: they would lie high, and with them what this process has of
// a co-lane. So twice the lane's addresses are available, and a block above the lane is refused.
std::vector<Run> LaneWindow::spare_addresses(Page window_pages) const {
  if (!side_) return {};
  return gaps({lane_pages_, std::min(lane_pages_, window_pages - lane_pages_)}, held());
}

// Gives the private pages of dead survivors back (demotes them: the lane may show there again).
void LaneWindow::bury() {
  std::erase_if(survivors_, [&](const Survivor& survivor) {
    if (!survivor.is_alive) pages_.clear(survivor);
    return !survivor.is_alive;
  });
}

Page LaneWindow::shown_below(Page top) const {
  Page pages = 0;
  for (const auto& stretch : mapped_) {
    if (stretch.first >= top) break;
    pages += std::min(stretch.end(), top) - stretch.first;
  }
  return pages;
}

// --- survivors

bool LaneWindow::replace(const Run& run, const MakeCopy& make_copy) {
  pages_.hold(run);
  const bool is_replaced = place_copy(run, make_copy);
  pages_.release(run);
  return is_replaced;
}

bool LaneWindow::place_copy(const Run& run, const MakeCopy& make_copy) {
  void* copy = make_copy(run);
  if (copy == nullptr) return false;
  if (pages_.place(copy, run)) return true;
  pages_.discard(copy, run.count);
  return false;
}

Page LaneWindow::hold(std::span<const Run> blocks, BlockAllocator& blocks_of_lane) {
  for (const Run& block : blocks) {
    survivors_.push_back({block, blocks_of_lane.size_of(block.first) > 0});
    blocks_of_lane.free(block.first);
  }
  std::ranges::sort(survivors_, {}, &Run::first);
  const std::vector<Run> runs = merged(blocks);
  mapped_ = outside(mapped_, runs);
  is_stale_ |= !blocks.empty();
  Page pages = 0;
  for (const Run& run : runs) {
    blocks_of_lane.take(run.first, run.count);
    pages += run.count;
  }
  return pages;
}

void LaneWindow::died(Page first) {
  const auto survivor = std::ranges::lower_bound(survivors_, first, {}, &Run::first);
  if (survivor == survivors_.end() || survivor->first != first) return;
  survivor->is_alive = false;
  is_stale_ = true;
}

Page LaneWindow::living_promoted() const {
  Page pages = 0;
  for (const Survivor& survivor : survivors_) pages += survivor.is_alive ? survivor.count : 0;
  return pages;
}

// --- forks

void LaneWindow::fence(BlockAllocator& blocks) {
  for (const auto& stretch : mapped_) {
    blocks.take(stretch.first, stretch.count);
    pages_.fence({stretch.first, stretch.count});
  }
  for (const Run& run : spare_) blocks.take(run.first, run.count);
  mapped_.clear();
  spare_.clear();
  lane_pages_ = 0;
}

// --- looking

std::string LaneWindow::is_valid(const BlockAllocator& blocks) const {
  std::string broken = mapping_is_right(blocks);
  if (broken.empty()) broken = stretches_are_right(blocks.pages());
  return broken.empty() ? survivors_are_right(blocks.pages()) : broken;
}

std::string LaneWindow::mapping_is_right(const BlockAllocator& blocks) const {
  Page pages = 0;
  for (const auto& stretch : mapped_) pages += stretch.count;
  for (const Run& run : spare_) pages += run.count;
  if (pages != blocks.available()) return "other pages are available than are mapped";
  if (!is_stale_ && mapped_ != wanted_layout(blocks.pages())) {
    return "the lane is not where it should be";
  }
  return {};
}

std::string LaneWindow::stretches_are_right(Page window_pages) const {
  std::vector<Run> shown;
  for (const auto& stretch : mapped_) {
    if (stretch.count == 0 || stretch.end() > window_pages) return "a stretch has no place";
    if (&stretch != mapped_.data() && (&stretch)[-1].end() > stretch.first) {
      return "two stretches are at one place";
    }
    shown.push_back({stretch.lane_first, stretch.count});
  }
  std::ranges::sort(shown, {}, &Run::first);
  for (size_t i = 0; i + 1 < shown.size(); ++i) {
    if (shown[i].end() > shown[i + 1].first) return "a page of the lane is mapped twice";
  }
  if (!shown.empty() && shown.back().end() > lane_pages_) return "a page past the lane is mapped";
  return {};
}

std::string LaneWindow::survivors_are_right(Page window_pages) const {
  const std::vector<Run> runs = held();
  for (size_t i = 0; i + 1 < runs.size(); ++i) {
    if (runs[i].end() > runs[i + 1].first) return "two survivors overlap";
  }
  if (!runs.empty() && runs.back().end() > window_pages) return "a survivor has no place";
  if (outside(mapped_, runs) != mapped_) return "the lane is mapped where a survivor is";
  return {};
}

}  // namespace gpushare
