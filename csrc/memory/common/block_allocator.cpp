// The functions that allocate() and free() call are inline: it makes them a quarter faster.
#include "memory/common/block_allocator.h"

#include <sys/mman.h>

#include <bit>
#include <cstddef>

namespace gpushare {
namespace {

constexpr unsigned kLooks =
    8;  // blocks of a class that are inspected: this is best fit, nearly always

std::size_t borders_of(Page pages) { return std::size_t{pages} + 1; }

}  // namespace

BlockAllocator::BlockAllocator(Page pages) {
  heads_.fill(kNoPage);
  const std::size_t bytes = borders_of(pages) * sizeof(Border);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;
  madvise(memory, bytes, MADV_NOHUGEPAGE);  // otherwise one border that is touched may cost 2 MiB
  borders_ = static_cast<Border*>(memory);
  pages_ = pages;
  if (pages > 0) put(0, pages, Kind::unavailable);
}

BlockAllocator::~BlockAllocator() {
  if (is_usable()) munmap(borders_, borders_of(pages_) * sizeof(Border));
}

void BlockAllocator::add(Page first, Page count) {
  if (count == 0 || !contains(first, count)) return;
  const Page end = first + count;
  for (Page block = block_at(first); block < end; block = end_of(block)) {
    if (borders_[block].begins != Kind::unavailable) continue;
    const Page from = std::max(block, first), to = std::min(end_of(block), end);
    cut_out(block, from, to);
    available_ += to - from;
    block = merge(from, to - from, Kind::free);
  }
}

bool BlockAllocator::take(Page first, Page count) {
  if (count == 0) return contains(first, count);
  const Page block = free_block_around(first, count);
  if (block == kNoPage) return false;
  cut_out(block, first, first + count);
  available_ -= count;
  merge(first, count, Kind::unavailable);
  return true;
}

bool BlockAllocator::claim(Page first, Page count) {
  const Page block = count == 0 ? kNoPage : free_block_around(first, count);
  if (block == kNoPage) return false;
  cut_out(block, first, first + count);
  put(first, count, Kind::live);
  used_ += count;
  footprint_ = std::max(footprint_, first + count);
  return true;
}

Page BlockAllocator::allocate(Page count) {
  if (count == 0) return kNoPage;
  const Page block = find(count);
  if (block == kNoPage) return kNoPage;
  const Page rest = borders_[block].after - count;
  unlink(block);
  if (rest > 0) put(block + count, rest, Kind::free);
  put(block, count, Kind::live);
  used_ += count;
  footprint_ = std::max(footprint_, block + count);
  return block;
}

void BlockAllocator::free(Page first) {
  const Page count = size_of(first);
  if (count == 0) return;
  used_ -= count;
  merge(first, count, Kind::free);
}

void BlockAllocator::reset_footprint() { footprint_ = top(); }

// Free and unavailable pages alternate above the highest live block, and only an owner that takes
// pages away makes more than two such blocks.
Page BlockAllocator::top() const {
  Page top = used_ == 0 ? 0 : pages_;
  while (top > 0 && borders_[top].ends != Kind::live) top -= borders_[top].before;
  return top;
}

Page BlockAllocator::largest_free() const {
  Page largest = 0;
  for_each_block([&](Page, Page count, Kind kind) {
    if (kind == Kind::free) largest = std::max(largest, count);
  });
  return largest;
}

// The block that `page` lies in. It walks, so it is for rare calls only.
Page BlockAllocator::block_at(Page page) const {
  Page block = 0;
  while (block < pages_ && end_of(block) <= page) block = end_of(block);
  return block;
}

// The free block that contains all of these pages, or kNoPage.
Page BlockAllocator::free_block_around(Page first, Page count) const {
  if (!contains(first, count)) return kNoPage;
  const Page block = block_at(first);
  const bool has_all = borders_[block].begins == Kind::free && first + count <= end_of(block);
  return has_all ? block : kNoPage;
}

// The pages become a block, whose neighbours are of another kind or live.
inline void BlockAllocator::put(Page first, Page count, Kind kind) {
  Border& begin = borders_[first];
  Border& end = borders_[first + count];
  begin.after = end.before = count;
  begin.begins = end.ends = kind;
  if (kind == Kind::free) link(first);
}

// Nothing leads to the block any more, because something else is about to be put there.
inline void BlockAllocator::withdraw(Page block) {
  if (borders_[block].begins == Kind::free) unlink(block);
}

// The pages become a block, together with the neighbours that are of its kind.
Page BlockAllocator::merge(Page first, Page count, Kind kind) {
  if (const Page end = first + count; borders_[end].begins == kind) {
    withdraw(end);
    count += borders_[end].after;
  }
  if (borders_[first].ends == kind) {
    const Page before = borders_[first].before;
    borders_[first].begins = Kind::none;  // a live block may have begun there
    first -= before;
    count += before;
    withdraw(first);
  }
  put(first, count, kind);
  return first;
}

// The pages from `first` to `end` leave their block; the rest of it keeps its kind.
void BlockAllocator::cut_out(Page block, Page first, Page end) {
  const Kind kind = borders_[block].begins;
  const Page after = end_of(block);
  withdraw(block);
  if (first > block) put(block, first - block, kind);
  if (end < after) put(end, after - end, kind);
}

// The class is a floating-point number with four bits of mantissa.
inline unsigned BlockAllocator::class_of(Page length) {
  if (length < kSteps) return length;
  const unsigned exponent = std::bit_width(length / kSteps) - 1;
  return exponent * kSteps + (length >> exponent);
}

inline void BlockAllocator::link(Page block) {
  const unsigned size_class = class_of(borders_[block].after);
  Page& head = heads_[size_class];
  borders_[block].next = head;
  borders_[block].previous = kNoPage;
  if (head != kNoPage) borders_[head].previous = block;
  head = block;
  filled_[size_class / kRow] |= std::uint64_t{1} << size_class % kRow;
  filled_rows_ |= 1U << size_class / kRow;
}

inline void BlockAllocator::unlink(Page block) {
  const auto [before, length, next, previous, ends, begins] = borders_[block];
  if (next != kNoPage) borders_[next].previous = previous;
  if (previous != kNoPage) {
    borders_[previous].next = next;
    return;
  }
  const unsigned size_class = class_of(length);
  heads_[size_class] = next;
  if (next != kNoPage) return;
  std::uint64_t& row = filled_[size_class / kRow];
  row &= ~(std::uint64_t{1} << size_class % kRow);
  if (row == 0) filled_rows_ &= ~(1U << size_class / kRow);
}

// It tries the class of `count` itself first, in which some blocks are too small; then the next
// class that has any, in which all blocks are large enough; then the blocks that the first search
// left out.
inline Page BlockAllocator::find(Page count) const {
  const unsigned exact = class_of(count);
  if (const Page block = best_of(exact, count, kLooks); block != kNoPage) return block;
  const unsigned larger = filled_class(exact + 1);
  return larger < kClasses ? heads_[larger] : best_of(exact, count, pages_);
}

// The smallest block that is large enough, and of several the lowest: length and first page form
// one number, and the smallest number wins.
inline Page BlockAllocator::best_of(unsigned size_class, Page count, unsigned looks) const {
  std::uint64_t best = ~std::uint64_t{0};
  for (Page block = heads_[size_class]; block != kNoPage && looks > 0; --looks) {
    const Border& border = borders_[block];
    const std::uint64_t found = std::uint64_t{border.after} << 32 | block;
    if (border.after >= count) best = std::min(best, found);
    block = border.next;
  }
  return static_cast<Page>(best);
}

// The lowest class from `lowest` on that has a block, or kClasses.
inline unsigned BlockAllocator::filled_class(unsigned lowest) const {
  unsigned row = lowest / kRow;
  std::uint64_t classes = filled_[row] & ~std::uint64_t{0} << lowest % kRow;
  if (classes == 0) {
    const std::uint32_t rows = filled_rows_ & ~std::uint32_t{1} << row;
    if (rows == 0) return kClasses;
    row = static_cast<unsigned>(std::countr_zero(rows));
    classes = filled_[row];
  }
  return row * kRow + static_cast<unsigned>(std::countr_zero(classes));
}

std::string BlockAllocator::is_valid() const {
  for (const auto check : {&BlockAllocator::tiles_are_right, &BlockAllocator::totals_are_right,
                           &BlockAllocator::lists_are_right}) {
    if (std::string broken = (this->*check)(); !broken.empty()) return broken;
  }
  return "";
}

std::string BlockAllocator::tiles_are_right() const {
  for (Page block = 0; block < pages_; block = end_of(block)) {
    const auto& [before, after, next, previous, ends, begins] = borders_[block];
    if (begins == Kind::none) return "a page belongs to no block";
    if (after == 0 || after > pages_ - block) return "a block ends outside the range";
    const Border& end = borders_[block + after];
    if (end.ends != begins || end.before != after) return "the two borders of a block differ";
    if (ends == begins && begins != Kind::live) return "two neighbours were not merged";
  }
  return "";
}

std::string BlockAllocator::totals_are_right() const {
  Page used = 0, free = 0, end = 0;
  for_each_block([&](Page first, Page count, Kind kind) {
    if (kind == Kind::free) free += count;
    if (kind != Kind::live) return;
    used += count;
    end = first + count;
  });
  if (used != used_) return "the used pages are counted wrong";
  if (used + free != available_) return "the available pages are counted wrong";
  return footprint_ < end || footprint_ > pages_ ? "a live block lies above the footprint" : "";
}

std::string BlockAllocator::lists_are_right() const {
  Page free_blocks = 0, listed = 0;
  for_each_block([&](Page, Page, Kind kind) { free_blocks += kind == Kind::free; });
  for (unsigned size_class = 0; size_class < kClasses; ++size_class) {
    const bool filled = filled_[size_class / kRow] >> size_class % kRow & 1;
    if (filled != (heads_[size_class] != kNoPage)) return "the map and the lists differ";
    Page before = kNoPage;
    for (Page block = heads_[size_class]; block != kNoPage; block = borders_[block].next) {
      const Border& border = borders_[block];
      if (border.begins != Kind::free) return "a block in a list is not free";
      if (class_of(border.after) != size_class)
        return "a free block is in the list of another class";
      if (border.previous != before || ++listed > free_blocks) return "a list is linked wrong";
      before = block;
    }
  }
  for (unsigned row = 0; row < kRows; ++row) {
    if ((filled_rows_ >> row & 1) != (filled_[row] != 0)) return "the two levels of the map differ";
  }
  return listed == free_blocks ? "" : "a free block is in no list";
}

}  // namespace gpushare
