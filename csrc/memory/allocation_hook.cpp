#include "memory/allocation_hook.h"

#include <pthread.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <new>

#include "memory/got_patch.h"
#include "memory/host_pages.h"

namespace gpushare {
namespace {

constexpr const char* kLibrary = "libc10.so";

int hooked_posix_memalign(void** block, size_t alignment, size_t bytes) {
  const Lane::Place place = lane().allocate(bytes, alignment);
  if (place.address != nullptr) {
    *block = place.address;
  } else if (const int error = posix_memalign(block, alignment, bytes); error != 0) {
    return error;
  }
  allocation_counter().add(*block, bytes, place.note);
  return 0;
}

void hooked_free(void* block) {
  // First the books: the address may be another thread's at once.
  if (const auto note = allocation_counter().remove(block)) lane().ended(note);
  if (lane().owns(block)) {
    lane().free(block);
  } else {
    free(block);
  }
}

// A fork happens between two changes of the books, so the child's are whole and unlocked. The lane
// comes first, since it takes memory while it is locked.
void before_fork() {
  lane().before_fork();
  allocation_counter().lock_all();
}

void after_fork_in_parent() {
  allocation_counter().unlock_all();
  lane().after_fork_in_parent();
}

void after_fork_in_child() {
  allocation_counter().unlock_all();
  lane().after_fork_in_child();
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

// Neither is ever destroyed: storages are freed until the very end of the process.
AllocationCounter& allocation_counter() {
  alignas(AllocationCounter) static std::byte memory[sizeof(AllocationCounter)];
  static auto* counter = new (memory) AllocationCounter;
  return *counter;
}

Lane& lane() {
  alignas(HostPages) static std::byte pages[sizeof(HostPages)];
  alignas(Lane) static std::byte memory[sizeof(Lane)];
  static auto* lane = new (memory) Lane(*new (pages) HostPages);
  return *lane;
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
