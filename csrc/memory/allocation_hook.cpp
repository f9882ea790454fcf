#include "memory/allocation_hook.h"

#include <pthread.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <new>

#include "memory/got_patch.h"

namespace gpushare {
namespace {

constexpr const char* kLibrary = "libc10.so";
constexpr size_t kLeastPaged = size_t{64} << 10;  // what is smaller costs more calls than it frees

// The process's only one. Never destroyed: storages are freed until the very end of the process.
template <class T>
T& immortal() {
  alignas(T) static std::byte memory[sizeof(T)];
  static T* const object = new (memory) T;
  return *object;
}

int hooked_posix_memalign(void** block, size_t alignment, size_t bytes) {
  const int error = posix_memalign(block, alignment, bytes);
  if (error == 0) allocation_counter().add(*block, bytes);
  return error;
}

void hooked_free(void* block) {
  const size_t bytes = allocation_counter().remove(block);
  pager().before_free(block, bytes);
  free(block);  // last: the address may be another thread's at once
}

// A fork happens between two changes of counter and pager, so the child's are whole and unlocked.
// The pager is first, as it asks the counter for its blocks.
void before_fork() {
  pager().before_fork();
  allocation_counter().lock_all();
}

void after_fork_in_parent() {
  allocation_counter().unlock_all();
  pager().after_fork_in_parent();
}

void after_fork_in_child() {
  allocation_counter().unlock_all();
  pager().after_fork_in_child();
}

std::string install() {
  const std::array redirections{
      Redirection{"posix_memalign", reinterpret_cast<void*>(&posix_memalign),
                  reinterpret_cast<void*>(&hooked_posix_memalign)},
      Redirection{"free", reinterpret_cast<void*>(&free), reinterpret_cast<void*>(&hooked_free)},
  };
  std::string reason = redirect_imports(kLibrary, redirections);
  if (reason.empty()) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  }
  return reason;
}

}  // namespace

AllocationCounter& allocation_counter() { return immortal<AllocationCounter>(); }

Pager& pager() { return immortal<Pager>(); }

void list_blocks(std::vector<Range>& ranges) {
  allocation_counter().for_each_block(
      kLeastPaged, [&](std::byte* begin, size_t bytes) { ranges.push_back({begin, bytes}); });
}

std::string install_allocation_hook() {
  static std::mutex mutex;
  static bool installed = false;
  const std::lock_guard guard(mutex);
  if (installed) return {};
  std::string reason = install();
  installed = reason.empty();
  return reason;
}

}  // namespace gpushare
