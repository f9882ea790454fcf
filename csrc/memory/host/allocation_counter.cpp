#include "memory/host/allocation_counter.h"

#include <sys/mman.h>

#include <mutex>

namespace gpushare {
namespace {

// Uses the initial-exec TLS model: malloc allocates dynamic TLS on first use, which would recurse.
[[gnu::tls_model("initial-exec")]] thread_local int64_t of_this_thread = 0;

constexpr size_t kFirstCapacity = 1024;  // blocks of one shard: six pages

// Fibonacci hashing: storages are aligned to 64 bytes, and the product's high bits depend on all.
uint64_t hash_of_block(uintptr_t address) { return (address >> 4) * 0x9E3779B97F4A7C15u; }

void* map(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

AllocationCounter::~AllocationCounter() {
  for (auto& shard : shards_) {
    if (shard.blocks != nullptr) munmap(shard.blocks, shard.capacity * sizeof(Block));
  }
}

AllocationCounter::Shard& AllocationCounter::shard_of(uintptr_t address) {
  return shards_[hash_of_block(address) >> 60];
}

// The position of `address`, or the free slot where it would go.
size_t AllocationCounter::Shard::slot_of(uintptr_t address) const {
  size_t slot = (hash_of_block(address) >> 20) & (capacity - 1);
  while (blocks[slot].address != 0 && blocks[slot].address != address) {
    slot = (slot + 1) & (capacity - 1);
  }
  return slot;
}

// Makes space for one more at a load of at most 5/8; false where the system has no memory.
bool AllocationCounter::Shard::make_room() {
  if (size * 8 < capacity * 5) return true;
  const Shard old{{}, blocks, capacity, size};
  const size_t larger = old.capacity == 0 ? kFirstCapacity : old.capacity * 2;
  auto* memory = static_cast<Block*>(map(larger * sizeof(Block)));
  if (memory == nullptr) return false;
  blocks = memory;
  capacity = larger;
  for (size_t i = 0; i < old.capacity; ++i) {
    if (old.blocks[i].address != 0) blocks[slot_of(old.blocks[i].address)] = old.blocks[i];
  }
  if (old.blocks != nullptr) munmap(old.blocks, old.capacity * sizeof(Block));
  return true;
}

// Moves later blocks of the run up, so that no search ends early: no tombstones.
void AllocationCounter::Shard::close_gap(size_t gap) {
  const size_t mask = capacity - 1;
  for (size_t next = (gap + 1) & mask; blocks[next].address != 0; next = (next + 1) & mask) {
    const size_t home = (hash_of_block(blocks[next].address) >> 20) & mask;
    if (((next - home) & mask) < ((next - gap) & mask)) continue;  // it would pass its home
    blocks[gap] = blocks[next];
    gap = next;
  }
  blocks[gap] = {};
}

bool AllocationCounter::insert(const Block& added, bool replace) {
  if (added.address == 0) return false;
  Shard& shard = shard_of(added.address);
  const std::lock_guard guard(shard.lock);
  if (!shard.make_room())
    return false;  // then the block stays uncounted, as one that was never seen
  Block& block = shard.blocks[shard.slot_of(added.address)];
  if (block.address == 0) {
    ++shard.size;
  } else if (!replace) {
    return false;
  }
  const int64_t change = static_cast<int64_t>(added.bytes) - static_cast<int64_t>(block.bytes);
  change_live(change);
  if (replace) of_this_thread += change;
  block = added;
  return true;
}

void AllocationCounter::add(const void* address, size_t bytes, uint32_t note) {
  insert({reinterpret_cast<uintptr_t>(address), bytes, note}, true);
}

bool AllocationCounter::adopt(const void* address, size_t bytes) {
  return insert({reinterpret_cast<uintptr_t>(address), bytes, 0}, false);
}

AllocationCounter::Counted AllocationCounter::remove(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address == 0) return {};
  Shard& shard = shard_of(address);
  const std::lock_guard guard(shard.lock);
  if (shard.size == 0) return {};
  const size_t slot = shard.slot_of(address);
  const Block block = shard.blocks[slot];
  if (block.address == 0) return {};
  change_live(-static_cast<int64_t>(block.bytes));
  of_this_thread -= static_cast<int64_t>(block.bytes);
  shard.close_gap(slot);
  --shard.size;
  return {block.bytes, block.note};
}

void AllocationCounter::change_live(int64_t bytes) {
  raise_peak(live_.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}

void AllocationCounter::raise_peak(int64_t live) {
  int64_t peak = peak_.load(std::memory_order_relaxed);
  while (live > peak && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
}

int64_t AllocationCounter::bytes_of_thread() { return of_this_thread; }

Usage AllocationCounter::usage() const { return {live_.load(), peak_.load()}; }

Usage AllocationCounter::take_peak() {
  const int64_t live = live_.load();
  const int64_t peak = peak_.exchange(live);
  raise_peak(live_.load());  // the bytes that other threads allocated in between
  return {live, peak};
}

void AllocationCounter::lock_all() {
  for (auto& shard : shards_) shard.lock.lock();
}

void AllocationCounter::unlock_all() {
  for (auto& shard : shards_) shard.lock.unlock();
}

}  // namespace gpushare
