#include "memory/block_allocator.h"

#include <sys/mman.h>

#include <bit>
#include <cstddef>
#include <tuple>

namespace gpushare {
namespace {

constexpr unsigned kLooks = 8;  // blocks of a class that are looked at: best fit, nearly always

std::size_t bytes_of(Page pages, std::size_t tag) { return (std::size_t{pages} + 2) * tag; }

}  // namespace

BlockAllocator::BlockAllocator(Page pages) {
  heads_.fill(kNoPage);
  void* memory = mmap(nullptr, bytes_of(pages, sizeof(Tag)), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;
  tags_ = static_cast<Tag*>(memory) + 1;
  pages_ = pages;
  if (pages > 0) put(0, pages, Kind::unavailable);
}

BlockAllocator::~BlockAllocator() {
  if (is_usable()) munmap(tags_ - 1, bytes_of(pages_, sizeof(Tag)));
}

void BlockAllocator::add(Page first, Page count) {
  if (count == 0 || !contains(first, count)) return;
  const Page end = first + count;
  for (Page block = block_at(first); block < end; block = end_of(block)) {
    if (tags_[block].begins != Kind::unavailable) continue;
    const Page from = std::max(block, first), to = std::min(end_of(block), end);
    cut_out(block, from, to);
    available_ += to - from;
    block = merge(from, to - from, Kind::free);
  }
}

bool BlockAllocator::take(Page first, Page count) {
  if (!contains(first, count)) return false;
  if (count == 0) return true;
  const Page block = block_at(first), end = first + count;
  if (tags_[block].begins != Kind::free || end_of(block) < end) return false;
  cut_out(block, first, end);
  available_ -= count;
  merge(first, count, Kind::unavailable);
  return true;
}

Page BlockAllocator::allocate(Page count) {
  if (count == 0 || count > available_ - used_) return kNoPage;
  const Page block = find(count);
  if (block == kNoPage) return kNoPage;
  const Page rest = tags_[block].length - count;
  remove(block);
  if (rest > 0) put(block + count, rest, Kind::free);
  put(block, count, Kind::live);
  used_ += count;
  footprint_ = std::max(footprint_, block + count);
  return block;
}

void BlockAllocator::free(Page first) {
  const Page count = size_of(first);
  if (count == 0) return;
  remove(first);
  used_ -= count;
  merge(first, count, Kind::free);
}

void BlockAllocator::reset_footprint() {
  footprint_ = pages_;
  while (footprint_ > 0 && tags_[footprint_ - 1].ends != Kind::live) {
    footprint_ -= tags_[footprint_ - 1].length;
  }
}

bool BlockAllocator::is_one_block() const {
  bool neighbours = false;
  Kind before = Kind::none;
  for_each_block([&](Page, const Tag& tag) {
    neighbours |= tag.begins == Kind::free && before == Kind::free;
    before = tag.begins;
  });
  return used_ == 0 && !neighbours;
}

// The block that `page` lies in: a walk, so for rare calls alone.
Page BlockAllocator::block_at(Page page) const {
  Page block = 0;
  while (block < pages_ && end_of(block) <= page) block = end_of(block);
  return block;
}

// The pages become a block, whose neighbours are of another kind or live.
void BlockAllocator::put(Page first, Page count, Kind kind) {
  Tag& begin = tags_[first];
  Tag& last = tags_[first + count - 1];
  begin.length = last.length = count;
  begin.begins = last.ends = kind;
  if (kind == Kind::free) link(first);
}

// The pages become those of no block; what follows makes others of them.
void BlockAllocator::remove(Page block) {
  Tag& begin = tags_[block];
  if (begin.begins == Kind::free) unlink(block);
  tags_[end_of(block) - 1].ends = Kind::none;
  begin.begins = Kind::none;
}

// The pages, which are those of no block, become one together with their neighbours of that kind.
Page BlockAllocator::merge(Page first, Page count, Kind kind) {
  if (const Page after = first + count; tags_[after].begins == kind) {
    count += tags_[after].length;
    remove(after);
  }
  if (const Tag& before = tags_[std::ptrdiff_t{first} - 1]; before.ends == kind) {
    first -= before.length;
    count += before.length;
    remove(first);
  }
  put(first, count, kind);
  return first;
}

// The pages from `first` to `end` leave their block; what is left of it stays what it was.
void BlockAllocator::cut_out(Page block, Page first, Page end) {
  const Kind kind = tags_[block].begins;
  const Page after = end_of(block);
  remove(block);
  if (first > block) put(block, first - block, kind);
  if (end < after) put(end, after - end, kind);
}

// As a floating-point number with four bits of mantissa.
unsigned BlockAllocator::class_of(Page length) {
  if (length < kSteps) return length;
  const unsigned exponent = std::bit_width(length / kSteps) - 1;
  return exponent * kSteps + (length >> exponent);
}

void BlockAllocator::link(Page block) {
  const unsigned size_class = class_of(tags_[block].length);
  Page& head = heads_[size_class];
  tags_[block].next = head;
  tags_[block].previous = kNoPage;
  if (head != kNoPage) tags_[head].previous = block;
  head = block;
  filled_[size_class / kRow] |= std::uint64_t{1} << size_class % kRow;
  filled_rows_ |= 1U << size_class / kRow;
}

void BlockAllocator::unlink(Page block) {
  const auto [length, next, previous, begins, ends] = tags_[block];
  if (next != kNoPage) tags_[next].previous = previous;
  if (previous != kNoPage) {
    tags_[previous].next = next;
    return;
  }
  const unsigned size_class = class_of(length);
  heads_[size_class] = next;
  if (next != kNoPage) return;
  std::uint64_t& row = filled_[size_class / kRow];
  row &= ~(std::uint64_t{1} << size_class % kRow);
  if (row == 0) filled_rows_ &= ~(1U << size_class / kRow);
}

// First the class of `count` itself, some of whose blocks are too small; then the next class that
// has any, whose blocks are all large enough.
Page BlockAllocator::find(Page count) const {
  const unsigned exact = class_of(count);
  if (const Page block = best_of(exact, count, kLooks); block != kNoPage) return block;
  const unsigned larger = filled_class(exact + 1);
  return larger < kClasses ? best_of(larger, count, kLooks) : best_of(exact, count, pages_);
}

// The smallest block that is large enough, and of several the lowest.
Page BlockAllocator::best_of(unsigned size_class, Page count, unsigned looks) const {
  Page best = kNoPage, best_length = kNoPage;
  for (Page block = heads_[size_class]; block != kNoPage && looks-- > 0;
       block = tags_[block].next) {
    const Page length = tags_[block].length;
    if (length < count || std::tie(length, block) >= std::tie(best_length, best)) continue;
    best = block;
    best_length = length;
  }
  return best;
}

// The lowest class from `lowest` on that has a block, or kClasses.
unsigned BlockAllocator::filled_class(unsigned lowest) const {
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
  Kind before = Kind::none;
  for (Page block = 0; block < pages_; block = end_of(block)) {
    const Tag& tag = tags_[block];
    if (tag.begins == Kind::none) return "a page belongs to no block";
    if (tag.length == 0 || tag.length > pages_ - block) return "a block ends outside the range";
    const Tag& last = tags_[end_of(block) - 1];
    if (last.ends != tag.begins || last.length != tag.length) return "a block's two tags differ";
    if (tag.begins == before && before != Kind::live) return "two neighbours were not merged";
    before = tag.begins;
  }
  return "";
}

std::string BlockAllocator::totals_are_right() const {
  Page used = 0, free = 0, end = 0;
  for_each_block([&](Page first, const Tag& tag) {
    if (tag.begins == Kind::free) free += tag.length;
    if (tag.begins != Kind::live) return;
    used += tag.length;
    end = first + tag.length;
  });
  if (used != used_) return "the used pages are counted wrong";
  if (used + free != available_) return "the available pages are counted wrong";
  return footprint_ < end || footprint_ > pages_ ? "a live block lies above the footprint" : "";
}

std::string BlockAllocator::lists_are_right() const {
  Page free_blocks = 0, listed = 0;
  for_each_block([&](Page, const Tag& tag) { free_blocks += tag.begins == Kind::free; });
  for (unsigned size_class = 0; size_class < kClasses; ++size_class) {
    const bool filled = filled_[size_class / kRow] >> size_class % kRow & 1;
    if (filled != (heads_[size_class] != kNoPage)) return "the map and the lists differ";
    Page before = kNoPage;
    for (Page block = heads_[size_class]; block != kNoPage; block = tags_[block].next) {
      const Tag& tag = tags_[block];
      if (tag.begins != Kind::free) return "a block in a list is not free";
      if (class_of(tag.length) != size_class) return "a free block is in the list of another class";
      if (tag.previous != before || ++listed > free_blocks) return "a list is linked wrong";
      before = block;
    }
  }
  for (unsigned row = 0; row < kRows; ++row) {
    if ((filled_rows_ >> row & 1) != (filled_[row] != 0)) return "the two levels of the map differ";
  }
  return listed == free_blocks ? "" : "a free block is in no list";
}

}  // namespace gpushare
