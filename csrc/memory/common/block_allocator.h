// Allocates blocks of whole pages inside a range of addresses, knowing only page numbers: two-level
// segregated fit (TLSF: Masmano, Ripoll, Crespo and Real, 2004). All book-keeping lies beside the
// range, because the content of a lane is trash after a context switch.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace gpushare {

using Page = std::uint32_t;  // index of a page in a range of addresses
inline constexpr Page kNoPage = ~Page{0};

// It is not thread-safe. It calls neither malloc nor, after its construction, the system.
class BlockAllocator {
 public:
  explicit BlockAllocator(
      Page pages);  // none of them is available yet; untouched pages cost nothing
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;
  ~BlockAllocator();

  // False where the system has no room for the book-keeping; then the range has no pages.
  bool is_usable() const { return borders_ != nullptr; }
  Page pages() const { return pages_; }

  // Makes those of these pages available that are not.
  void add(Page first, Page count);
  // The pages become unavailable; returns false, and changes nothing, unless all of them are free.
  bool take(Page first, Page count);
  // Exactly these pages become a live block; returns false, and changes nothing, unless all of
  // them are free.
  bool claim(Page first, Page count);

  // The first page of a new block; kNoPage only where no free block is large enough, or `count` 0.
  Page allocate(Page count);
  // Ends the block that begins at `first`, if one does.
  void free(Page first);
  // Pages of the live block that begins at `first`; 0 if none does.
  Page size_of(Page first) const {
    return first < pages_ && borders_[first].begins == Kind::live ? borders_[first].after : 0;
  }

  Page used() const { return used_; }            // pages in live blocks
  Page available() const { return available_; }  // used and free
  Page largest_free() const;  // pages of the largest free block; it walks, so it is for rare calls
  // One past the highest page that was in a live block since the last reset.
  Page footprint() const { return footprint_; }
  void reset_footprint();  // restarts at what is alive now
  // One past the highest page that is in a live block now. Its steps are the blocks above that one;
  // if all available pages adjoin, these are two at most.
  Page top() const;

  // visit(first, count) for each live block, by address; it must not change the allocator.
  template <class F>
  void for_each_live(F visit) const {
    for_each_block([&](Page first, Page count, auto kind) {
      if (kind == Kind::live) visit(first, count);
    });
  }

  std::string is_valid() const;  // empty, or the first broken invariant as a sentence

 private:
  enum class Kind : std::uint8_t { none, unavailable, free, live };

  // Blocks of these kinds tile the range, and no two neighbours are both free or both unavailable.
  // A border lies before each page, and one after the last. A border between two blocks knows both
  // (Knuth's boundary tags); one inside a block knows only that no live block begins there.
  struct Border {
    Page before, after;   // lengths of the block that ends and of the one that begins here
    Page next, previous;  // if a free block begins here: others of its class
    Kind ends, begins;    // kinds of the two
  };

  // Lengths fall into classes, 16 for each power of two; those below 16 have one of their own.
  static constexpr unsigned kSteps = 16;
  static constexpr unsigned kClasses = (32 - 3) * kSteps;
  static constexpr unsigned kRow = 64;  // classes in one row of the map
  static constexpr unsigned kRows = (kClasses + kRow - 1) / kRow;
  static unsigned class_of(Page length);

  template <class F>
  void for_each_block(F visit) const {  // visit(first, count, kind)
    for (Page first = 0; first < pages_; first = end_of(first)) {
      visit(first, borders_[first].after, borders_[first].begins);
    }
  }
  bool contains(Page first, Page count) const { return first <= pages_ && count <= pages_ - first; }
  Page block_at(Page page) const;
  Page free_block_around(Page first, Page count) const;
  Page end_of(Page block) const { return block + borders_[block].after; }

  void put(Page first, Page count, Kind kind);
  void withdraw(Page block);
  Page merge(Page first, Page count, Kind kind);
  void cut_out(Page block, Page first, Page end);

  void link(Page block);
  void unlink(Page block);
  Page find(Page count) const;
  Page best_of(unsigned size_class, Page count, unsigned looks) const;
  unsigned filled_class(unsigned lowest) const;

  std::string tiles_are_right() const;
  std::string totals_are_right() const;
  std::string lists_are_right() const;

  Page pages_ = 0;
  Border* borders_ = nullptr;
  Page used_ = 0, available_ = 0, footprint_ = 0;
  std::uint32_t filled_rows_ = 0;
  std::array<std::uint64_t, kRows> filled_ = {};  // a bit for each class that has a block
  std::array<Page, kClasses> heads_;              // the first block of each class, or kNoPage
};

}  // namespace gpushare
