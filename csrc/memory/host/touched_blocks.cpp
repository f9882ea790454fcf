#include "memory/host/touched_blocks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

#include "memory/host/page.h"

namespace gpushare {
namespace {

constexpr double kLeastPause = 0.1;    // seconds between two looks
constexpr double kPausePerLook = 200;  // times what the last one took
constexpr size_t kPagesAtOnce = 4096;

size_t page_offset(const std::byte* address) {
  return reinterpret_cast<uintptr_t>(address) % kPage;
}

// Takes at most kPagesAtOnce pages. A page that cannot be asked for counts as resident.
size_t resident_pages(const std::byte* first, size_t pages) {
  std::array<unsigned char, kPagesAtOnce> states;
  void* const address = const_cast<std::byte*>(first);
  if (mincore(address, pages * kPage, states.data()) != 0) return pages;
  return static_cast<size_t>(std::count_if(states.begin(), states.begin() + pages,
                                           [](unsigned char state) { return (state & 1) != 0; }));
}

}  // namespace

size_t resident_bytes(const std::byte* begin, size_t bytes) {
  size_t resident = 0;
  for (size_t left = bytes / kPage; left > 0;) {
    const size_t pages = std::min(left, kPagesAtOnce);
    resident += resident_pages(begin, pages) * kPage;
    begin += pages * kPage;
    left -= pages;
  }
  return resident;
}

// The first and last bytes of a block, which share their pages with libc, count as touched.
void TouchedBlocks::insert(const void* address, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(address);
  const std::byte* end = begin + bytes;
  begin += (kPage - page_offset(begin)) % kPage;
  end -= page_offset(end);
  const std::lock_guard guard(lock_);
  blocks_.push_back({begin, end, address});
  is_idle_ = false;
}

void TouchedBlocks::erase(const void* address) {
  const std::lock_guard guard(lock_);
  const auto block = std::ranges::find(blocks_, address, &Block::address);
  if (block == blocks_.end()) return;
  untouched_ -= block->untouched;
  blocks_.erase(block);
  is_idle_ = blocks_.empty();
}

size_t TouchedBlocks::untouched_bytes(double now) {
  if (is_idle_) return 0;
  const std::lock_guard guard(lock_);
  if (now >= next_look_) look(now);
  for (Block& block : blocks_) {
    if (block.is_new) look_at(block);
  }
  sum_up();
  return untouched_;
}

void TouchedBlocks::sum_up() {
  std::erase_if(blocks_, [](const Block& block) { return block.untouched == 0; });
  size_t untouched = 0;
  for (const Block& block : blocks_) untouched += block.untouched;
  untouched_ = untouched;
  is_idle_ = blocks_.empty();
}

void TouchedBlocks::look(double now) {
  using Clock = std::chrono::steady_clock;
  const auto since = Clock::now();
  for (Block& block : blocks_) look_at(block);
  const double took = std::chrono::duration<double>(Clock::now() - since).count();
  next_look_ = now + std::max(kLeastPause, kPausePerLook * took);
}

// Buffers fill from the front, mostly: a full part at the front need not be looked at again.
void TouchedBlocks::look_at(Block& block) {
  block.is_new = false;
  block.untouched = 0;
  bool is_front = true;
  for (const std::byte *part = block.begin, *next; part < block.end; part = next) {
    next = std::min(block.end, part + kPagesAtOnce * kPage);
    const auto bytes = static_cast<size_t>(next - part);
    const size_t untouched = bytes - resident_bytes(part, bytes);
    is_front = is_front && untouched == 0;
    if (is_front) block.begin = next;
    block.untouched += untouched;
  }
}

}  // namespace gpushare
