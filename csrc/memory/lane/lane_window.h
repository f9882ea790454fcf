#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory/common/block_allocator.h"
#include "memory/lane/lane_layout.h"
#include "memory/lane/lane_pages.h"

namespace gpushare {

// The end of a lane that a process fills while another one fills the other end.
struct Side {
  int end;  // 0 or 1
  Page chunk_pages;
};

// Which addresses of the window show the lane, and which have private pages of survivors that were
// promoted. Pages that show the lane are available to the block allocator; all others are not. It
// has no lock of its own.
class LaneWindow {
 public:
  using MakeCopy = std::function<void*(const Run&)>;  // null: there is no memory

  explicit LaneWindow(LanePages& pages) : pages_(pages) {}
  LaneWindow(const LaneWindow&) = delete;
  LaneWindow& operator=(const LaneWindow&) = delete;

  // Shows this number of pages of the lane, from one end where it has a side. Nothing may be alive
  // in the lane. Pages that cannot be mapped stay out of use, and `is_stale` is true.
  void show(Page lane_pages, std::optional<Side> side, BlockAllocator& blocks);
  // Shows the same again: survivors may have died, or been promoted.
  void lay_out(BlockAllocator& blocks);
  bool is_stale() const { return is_stale_; }  // the lane has to be laid out again
  Page lane_pages() const { return lane_pages_; }
  // The pages of the lane at addresses below this page of the window.
  Page shown_below(Page top) const;

  // A copy replaces these pages of the window. False: there is no memory, and nothing has changed.
  // Other threads may allocate and free meanwhile; a write to these pages waits where possible.
  bool replace(const Run& run, const MakeCopy& make_copy);
  // Copies have replaced these blocks, so they are not part of the lane any more. Returns their
  // pages. A block that died while it was copied is kept as a dead survivor.
  Page hold(std::span<const Run> blocks, BlockAllocator& blocks_of_lane);
  // The block that began here has ended; it may have been promoted.
  void died(Page first);
  Page living_promoted() const;  // pages
  std::vector<Run> held() const { return {survivors_.begin(), survivors_.end()}; }

  // Called in the child after a fork: no page shows the lane any more.
  void fence(BlockAllocator& blocks);

  std::string is_valid(const BlockAllocator& blocks) const;  // empty, or what is wrong

 private:
  struct Survivor : Run {
    bool is_alive;
  };

  void bury();
  std::vector<Stretch> wanted_layout(Page window_pages) const;
  std::vector<Run> spare_addresses(Page window_pages) const;
  bool place_copy(const Run& run, const MakeCopy& make_copy);
  std::string mapping_is_right(const BlockAllocator& blocks) const;
  std::string stretches_are_right(Page window_pages) const;
  std::string survivors_are_right(Page window_pages) const;

  LanePages& pages_;
  Page lane_pages_ = 0;
  std::optional<Side> side_;
  std::vector<Stretch> mapped_;      // sorted
  std::vector<Survivor> survivors_;  // sorted
  std::vector<Run> spare_;           // available addresses without memory
  bool is_stale_ = false;
};

}  // namespace gpushare
