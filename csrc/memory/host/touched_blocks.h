#pragma once
#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

namespace gpushare {

// Measures how much of large blocks has never been touched, and so has no memory: a replay buffer
// of `torch.empty` has all of its addresses at once, and its memory bit by bit. A block counts in
// full until it has been looked at, and again once all of it has been touched.
//
// Looking at a block takes far less time than filling it. So it looks at new blocks at once, and at
// blocks that are not full again and again, for at most a 200th of the time. Thread-safe; across a
// fork, hold it with `lock` and `unlock`.
class TouchedBlocks {
 public:
  static constexpr size_t kLeast = size_t{32} << 20;  // libc maps such blocks afresh, always

  // Smaller blocks are ignored. `remove` wants the size that was added.
  void add(const void* address, size_t bytes) {
    if (bytes >= kLeast) insert(address, bytes);
  }
  void remove(const void* address, size_t bytes) {
    if (bytes >= kLeast) erase(address);
  }

  // Looks at new blocks first, and at all if it is time for that. `now` is in seconds.
  size_t untouched_bytes(double now);
  // The untouched bytes that the last look found.
  size_t last_untouched_bytes() const { return untouched_; }

  void lock() { lock_.lock(); }
  void unlock() { lock_.unlock(); }

 private:
  struct Block {
    const std::byte* begin;  // what lies before was touched
    const std::byte* end;
    const void* address;
    size_t untouched = 0;
    bool is_new = true;
  };

  void insert(const void* address, size_t bytes);
  void erase(const void* address);
  void look(double now);
  void look_at(Block& block);
  void sum_up();

  std::mutex lock_;
  std::vector<Block> blocks_;  // the blocks that are not full, as far as is known
  std::atomic<size_t> untouched_ = 0;
  std::atomic<bool> is_idle_ = true;  // there are none
  double next_look_ = 0;              // in seconds
};

// Bytes of whole pages that have memory now. Pages never touched, or swapped out, have none.
size_t resident_bytes(const std::byte* begin, size_t bytes);

}  // namespace gpushare
