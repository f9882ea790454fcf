#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "memory/common/spin_lock.h"

namespace gpushare {

struct Usage {
  int64_t live;  // bytes
  int64_t peak;  // bytes; the largest `live` since the peak was last taken
};

// Counts the bytes of blocks exactly: those that are alive, and the most that were alive at one
// time. Blocks are known by address, in a table beside them, so a block that was never added may
// be removed. Thread-safe; it never calls malloc. Across a fork, hold it with `lock_all` and
// `unlock_all`.
class AllocationCounter {
 public:
  struct Counted {
    size_t bytes = 0;
    uint32_t note = 0;
  };

  AllocationCounter() = default;
  AllocationCounter(const AllocationCounter&) = delete;
  AllocationCounter& operator=(const AllocationCounter&) = delete;
  ~AllocationCounter();

  // A block lives at `address`; if one is known there, its end was missed and this one replaces it.
  // `remove` tells the note again.
  void add(const void* address, size_t bytes, uint32_t note = 0);
  // Like `add`, but leaves a block that is known at `address`, and returns false.
  bool adopt(const void* address, size_t bytes);
  // The block at `address` ends; call it before the memory can be used again. Returns what was
  // known of the block; zeros if nothing was.
  Counted remove(const void* address);

  // Calls visit(address, bytes) for each block of at least `least_bytes` bytes. No block can be
  // removed at that time, so the visit must be quick and leave the counter alone.
  template <class F>
  void for_each_block(size_t least_bytes, F visit);

  Usage usage() const;
  // The bytes that this thread has added less those that it has removed, of all counters; below 0
  // where it ends what others made, or what was adopted.
  static int64_t bytes_of_thread();
  // The usage so far; the next peak starts at what is alive now.
  Usage take_peak();

  void lock_all();
  void unlock_all();

 private:
  // Linear probing in a power of two of slots; a slot with address 0 is free.
  struct Block {
    uintptr_t address;
    size_t bytes;
    uint32_t note;
  };

  struct alignas(64) Shard {
    SpinLock lock;
    Block* blocks = nullptr;
    size_t capacity = 0;
    size_t size = 0;

    size_t slot_of(uintptr_t address) const;
    bool make_room();
    void close_gap(size_t gap);
  };

  static constexpr size_t kShards = 16;

  Shard& shard_of(uintptr_t address);
  bool insert(const Block& block, bool replace);
  void change_live(int64_t bytes);
  void raise_peak(int64_t live);

  std::array<Shard, kShards> shards_;
  alignas(64) std::atomic<int64_t> live_ = 0;
  std::atomic<int64_t> peak_ = 0;
};

template <class F>
void AllocationCounter::for_each_block(size_t least_bytes, F visit) {
  for (Shard& shard : shards_) {
    const std::lock_guard guard(shard.lock);
    for (const Block& block : std::span(shard.blocks, shard.capacity)) {
      if (block.address == 0 || block.bytes < least_bytes) continue;
      visit(reinterpret_cast<std::byte*>(block.address), block.bytes);
    }
  }
}

}  // namespace gpushare
