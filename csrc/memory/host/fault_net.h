#pragma once
#include <cstddef>
#include <string>

namespace gpushare {

// While pages move between memory and file they may be read, but not written. The net stands in
// front of the process's SIGSEGV handler: a thread that writes to pages that move waits until they
// have arrived, and its instruction runs again. Every other fault goes to the handler that was
// there before, or to the system's default, as if there were no net. It waits and does nothing
// else, so it is safe at any instruction of any thread.
//
// Other code may put a handler in front of the net, so it is installed again whenever pages are
// about to move. It is never taken away: a fault may be on its way. Returns an empty string, or
// the sentence that says why it is impossible.
[[nodiscard]] std::string install_fault_net();

// The pages [begin, begin + bytes) move as long as this lives. At most one moves at a time: a
// second one waits for its turn.
class MovingPages {
 public:
  MovingPages(const std::byte* begin, size_t bytes);
  MovingPages(const MovingPages&) = delete;
  MovingPages& operator=(const MovingPages&) = delete;
  ~MovingPages();
};

// A short sleep, for threads that wait for pages that move; safe in a signal handler.
void wait_a_little();

}  // namespace gpushare
