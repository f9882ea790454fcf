#include "memory/host/allocation_hook.h"

#include <malloc.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>

#include "memory/common/got_patch.h"
#include "memory/common/install_once.h"
#include "memory/host/host_pages.h"
#include "memory/host/touched_blocks.h"

namespace gpushare {
namespace {

constexpr const char* kHostLibrary = "libc10.so";
constexpr size_t kLeastPaged = size_t{64}
                               << 10;  // smaller blocks cost more calls than they free memory

std::atomic<bool> was_outside = false;  // an iteration was outside since memory was last given back

// The only one of the process. It is never destroyed: storages are freed until the very end of the
// process.
template <class T, class... Arguments>
T& immortal(Arguments&... arguments) {
  alignas(T) static std::byte memory[sizeof(T)];
  static T* const object = new (memory) T(arguments...);
  return *object;
}

AllocationCounter& allocation_counter() { return immortal<AllocationCounter>(); }

// The large ones of the counted blocks that were not made in the lane.
TouchedBlocks& touched_blocks() { return immortal<TouchedBlocks>(); }

int hooked_posix_memalign(void** block, size_t alignment, size_t bytes) {
  const Lane::Place place = lane().allocate(bytes, alignment);
  if (place.address != nullptr) {
    *block = place.address;
  } else if (const int error = posix_memalign(block, alignment, bytes); error != 0) {
    return error;
  } else if (place.note != 0) {
    lane().made(place.note, bytes);
  }
  allocation_counter().add(*block, bytes, place.note);
  if (place.address == nullptr) touched_blocks().add(*block, bytes);
  return 0;
}

void hooked_free(void* block) {
  // The books are changed first: another thread may get the address at once.
  const auto counted = allocation_counter().remove(block);
  touched_blocks().remove(block, counted.bytes);
  pager().before_free(block, counted.bytes);
  if (counted.note != 0) lane().ended(counted.note, counted.bytes);
  if (lane().owns(block)) {
    lane().free(block);
  } else {
    free(block);
  }
}

// A fork happens between two changes of the books, so those of the child are whole and unlocked.
// The pager comes first, since it asks the lane and the counter for their blocks while it is
// locked.
void before_fork() {
  pager().before_fork();
  lane().before_fork();
  allocation_counter().lock_all();
  touched_blocks().lock();
}

void after_fork_in_parent() {
  touched_blocks().unlock();
  allocation_counter().unlock_all();
  lane().after_fork_in_parent();
  pager().after_fork_in_parent();
}

void after_fork_in_child() {
  touched_blocks().unlock();
  allocation_counter().unlock_all();
  lane().after_fork_in_child();
  pager().after_fork_in_child();
}

double seconds_now() {
  using std::chrono::duration, std::chrono::steady_clock;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

std::string redirect_allocator() {
  const std::array redirections{
      Redirection{"posix_memalign", reinterpret_cast<void*>(&posix_memalign),
                  reinterpret_cast<void*>(&hooked_posix_memalign)},
      Redirection{"free", reinterpret_cast<void*>(&free), reinterpret_cast<void*>(&hooked_free)},
  };
  std::string reason = redirect_imports(kHostLibrary, redirections);
  if (reason.empty()) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  }
  return reason;
}

}  // namespace

Usage take_touched_peak() {
  const auto untouched = static_cast<int64_t>(touched_blocks().untouched_bytes(seconds_now()));
  const Usage usage = allocation_counter().take_peak();
  return {usage.live - untouched, std::max(usage.peak, usage.live) - untouched};
}

Usage touched_usage() {
  const auto untouched = static_cast<int64_t>(touched_blocks().last_untouched_bytes());
  const Usage usage = allocation_counter().usage();
  return {usage.live - untouched, usage.peak - untouched};
}

void adopt_block(const void* address, size_t bytes) {
  if (allocation_counter().adopt(address, bytes)) touched_blocks().add(address, bytes);
}

Pager& pager() { return immortal<Pager>(); }

// Blocks that are alive in the lane without being promoted are in memory that is not ours alone.
void list_blocks(std::vector<Range>& ranges) {
  const bool is_lane_empty = lane().survivor_bytes() == 0;
  allocation_counter().for_each_block(kLeastPaged, [&](std::byte* begin, size_t bytes) {
    if (is_lane_empty || !lane().owns(begin)) ranges.push_back({begin, bytes});
  });
}

void return_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

void note_iteration_outside() { was_outside = true; }

void return_memory_of_iterations() {
  if (was_outside.exchange(false)) return_free_memory();
}

Lane& lane() { return immortal<Lane>(immortal<HostPages>()); }

std::string install_allocation_hook() {
  static InstallOnce once;
  return once(redirect_allocator);
}

}  // namespace gpushare
