#include "memory/host/fault_net.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <system_error>

namespace gpushare {
namespace {

std::mutex one_at_a_time;

// The pages that move, as a sequence lock: `moves` is odd while some do, and changes before and
// after every change of the bounds. It also tells all threads how many moves there have been.
std::atomic<uint32_t> moves = 0;
std::atomic<uintptr_t> moving_begin = 0;
std::atomic<uintptr_t> moving_end = 0;
static_assert(std::atomic<uint32_t>::is_always_lock_free);

bool moves_now(uintptr_t address) {
  const uint32_t before = moves.load();
  const bool inside = address >= moving_begin.load() && address < moving_end.load();
  return before % 2 == 1 && inside && moves.load() == before;
}

// The last fault of this thread that got another try. The thread-local storage model is the one
// that needs no malloc at a thread's first use.
struct Fault {
  uintptr_t address;
  uint32_t moves;
};
[[gnu::tls_model("initial-exec")]] thread_local Fault last_try = {0, 0};

// True when the instruction that faulted shall run again: its page moved, and has arrived now. The
// move may be over before the handler begins, so every fault gets one more try per move.
bool is_of_a_move(uintptr_t address) {
  while (moves_now(address)) wait_a_little();
  const Fault fault{address, moves.load()};
  if (fault.address == last_try.address && fault.moves == last_try.moves) return false;
  last_try = fault;
  return true;
}

// The default ends the process when the instruction runs again, with a core that shows it; a
// signal that another process sent has no such instruction.
void take_default(const siginfo_t& info, bool ignores) {
  const bool was_sent = info.si_code <= 0;
  if (was_sent && ignores) return;
  signal(SIGSEGV, SIG_DFL);
  if (was_sent) raise(SIGSEGV);
}

void pass_on(const struct sigaction& previous, int number, siginfo_t* info, void* machine) {
  if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
    take_default(*info, previous.sa_handler == SIG_IGN);
  } else if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(number, info, machine);
  } else {
    previous.sa_handler(number);
  }
}

// A handler that came after the net knows it as its own predecessor and may call it. So the net
// goes in front of it as another entry with a predecessor of its own: no chain is a circle.
constexpr size_t kEntries = 4;
std::array<struct sigaction, kEntries> previous_of;
size_t used_entries = 0;  // changed by install_fault_net alone

template <size_t kEntry>
void on_fault(int number, siginfo_t* info, void* machine) {
  const int error = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (info->si_code != SEGV_ACCERR || !is_of_a_move(address)) {
    pass_on(previous_of[kEntry], number, info, machine);
  }
  errno = error;
}

using Handler = void (*)(int, siginfo_t*, void*);
constexpr std::array<Handler, kEntries> kHandlers{on_fault<0>, on_fault<1>, on_fault<2>,
                                                  on_fault<3>};

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 &&
         std::ranges::find(kHandlers, action.sa_sigaction) != kHandlers.end();
}

// The entry that already stands in front of this handler, else one that is not in use.
size_t entry_before(const struct sigaction& action) {
  for (size_t entry = 0; entry < used_entries; ++entry) {
    if (previous_of[entry].sa_handler == action.sa_handler) return entry;
  }
  return used_entries;
}

}  // namespace

std::string install_fault_net() {
  static std::mutex mutex;
  const std::lock_guard guard(mutex);
  struct sigaction current{};
  sigaction(SIGSEGV, nullptr, &current);
  if (is_ours(current)) return {};
  const size_t entry = entry_before(current);
  if (entry == kEntries) return "other code keeps replacing the handler of SIGSEGV";
  previous_of[entry] = current;
  if (entry == used_entries) ++used_entries;
  struct sigaction ours{};
  ours.sa_sigaction = kHandlers[entry];
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // a handler behind us may raise again
  if (sigaction(SIGSEGV, &ours, nullptr) == 0) return {};
  return "faults cannot be caught: " + std::generic_category().message(errno);
}

MovingPages::MovingPages(const std::byte* begin, size_t bytes) {
  one_at_a_time.lock();
  moving_begin.store(reinterpret_cast<uintptr_t>(begin));
  moving_end.store(reinterpret_cast<uintptr_t>(begin) + bytes);
  moves.fetch_add(1);
}

MovingPages::~MovingPages() {
  moves.fetch_add(1);
  one_at_a_time.unlock();
}

void wait_a_little() {
  constexpr timespec kPause{0, 50'000};
  nanosleep(&kPause, nullptr);
}

}  // namespace gpushare
