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

int hooked_posix_memalign(void** block, size_t alignment, size_t bytes) {
  const int error = posix_memalign(block, alignment, bytes);
  if (error == 0) allocation_counter().add(*block, bytes);
  return error;
}

void hooked_free(void* block) {
  allocation_counter().remove(block);  // first: the address may be another thread's at once
  free(block);
}

// A fork happens between two changes of the counter, so the child's is whole and unlocked.
void before_fork() { allocation_counter().lock_all(); }
void after_fork() { allocation_counter().unlock_all(); }

std::string install() {
  const std::array redirections{
      Redirection{"posix_memalign", reinterpret_cast<void*>(&posix_memalign),
                  reinterpret_cast<void*>(&hooked_posix_memalign)},
      Redirection{"free", reinterpret_cast<void*>(&free), reinterpret_cast<void*>(&hooked_free)},
  };
  std::string reason = redirect_imports(kLibrary, redirections);
  if (reason.empty()) pthread_atfork(before_fork, after_fork, after_fork);
  return reason;
}

}  // namespace

AllocationCounter& allocation_counter() {
  // Never destroyed: storages are freed until the very end of the process.
  alignas(AllocationCounter) static std::byte memory[sizeof(AllocationCounter)];
  static auto* counter = new (memory) AllocationCounter;
  return *counter;
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
