#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "memory/common/block_allocator.h"
#include "memory/common/predictor.h"

namespace gpushare {

// Places low in a co-lane, kept from the first block of an iteration on for small blocks that begin
// near its peak and outlive most of what is alive then. Without its place such a block lies on top
// of all that, and what the process has of the lane stays that large until the block ends. Which
// blocks these are is learned as survivors are: by size and ordinal. It is bounded, never calls
// malloc, and is not thread-safe.
class LowPlaces {
 public:
  using Birth = Predictor::Birth;

  static constexpr size_t kMost = 16;  // places
  static constexpr Page kPart = 16;    // all of them are at most this part of the lane
  static constexpr Page kWorth = 4;    // the least fall of the top, in pages of the block

  // An iteration begins, in a lane of that number of pages.
  void begin(Page lane_pages);
  bool has_any() const { return size_ > 0; }
  // Its first block is about to be made: places become live blocks.
  void keep(BlockAllocator& blocks);
  // The first page of this block, which has its place from now on; kNoPage where it has none.
  Page take(const Birth& birth);
  // A block did not fit in the lane. Places cost room before their blocks begin, so if any were
  // kept, a lane of this size has none from the next iteration on.
  void did_not_fit() { is_tight_ = has_any(); }
  // Frees the places that no block has taken.
  void give_back(BlockAllocator& blocks);

  // A block has begun.
  void born(Page used, Page top) { look(used, top); }
  // A block of `count` pages has ended. Returns whether it should lie low: then `learn` it.
  bool died(Page count, Page used, Page top) {
    const Page before = top_;
    const uint32_t hollow = look(used, top);
    return before >= top + kWorth * count && hollow > 0 && is_in_the_way(before - top, hollow);
  }
  void learn(const Birth& birth, Page count);
  // The open iteration has shown a block that gets a place from the next one on.
  bool has_learned() const { return has_learned_; }

 private:
  struct Lesson {
    uint64_t bytes;
    uint32_t ordinal;
    Page count;
    Page place;       // kept and not taken; kNoPage: there is none
    uint32_t missed;  // iterations in a row without this block
  };

  std::span<Lesson> lessons() { return {lessons_.data(), size_}; }
  Lesson* lesson_of(const Birth& birth);
  // Returns for how many events what lay below the top had been hollow until this one.
  uint32_t look(Page used, Page top) {
    top_ = top;
    ++events_;
    return std::exchange(hollow_, used <= top / 2 ? hollow_ + 1 : 0);
  }
  bool is_in_the_way(Page fall, uint32_t hollow) const;
  void forget_missed();

  std::array<Lesson, kMost> lessons_{};
  size_t size_ = 0;
  Page kept_ = 0;  // pages of all places
  Page lane_pages_ = 0, top_ = 0;
  // Events of the last iteration and of this one, and how many of the latest ones in a row found at
  // most half of what lies below the top alive.
  uint32_t last_events_ = 0, events_ = 0, hollow_ = 0;
  Page too_small_ = 0;  // a lane of that size, or a smaller one, has no room for places
  bool has_kept_ = false, has_learned_ = false, is_tight_ = false;
};

}  // namespace gpushare
