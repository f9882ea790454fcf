#include "bindings/other_threads.h"

#include <pthread.h>
#include <pybind11/pybind11.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>

#include "bindings/stacks.h"

namespace py = pybind11;

namespace gpushare {
namespace {

// A thread inside of PyTorch sleeps for a moment when it waits for a lock of another one.
constexpr int kQuietLooks = 3;
constexpr auto kBetweenLooks = std::chrono::milliseconds(1);

// Code in these folders of PyTorch waits for threads that compute without Python. Code in the
// folders of the second list waits for child processes instead.
constexpr std::array<std::string_view, 4> kAwaiting = {"/torch/autograd/", "/torch/distributed/",
                                                       "/torch/futures/", "/torch/jit/"};
constexpr std::array<std::string_view, 2> kLaunching = {"/torch/distributed/launcher/",
                                                        "/torch/distributed/elastic/"};
// Functions in which a thread waits for a lock of this thread, before it begins an iteration.
constexpr std::string_view kOurs = "/jupyter_gpushare/client/";
constexpr std::array<std::string_view, 2> kDoors = {"_begin_iteration", "_is_ours"};

std::string text(const py::object& code, const char* name) {
  return py::cast<std::string>(code.attr(name));
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool awaits_computation(const py::object& code) {
  const std::string file = text(code, "co_filename");
  const auto lies_in = [&](std::string_view folder) { return has(file, folder); };
  return std::ranges::any_of(kAwaiting, lies_in) && std::ranges::none_of(kLaunching, lies_in);
}

bool waits_at_door(const Stack& stack) {
  if (stack.code.empty()) return false;
  const auto& innermost = stack.code.front();
  return std::ranges::find(kDoors, text(innermost, "co_name")) != kDoors.end() &&
         has(text(innermost, "co_filename"), kOurs);
}

#ifdef __linux__
// The thread cannot end, because the caller has the GIL. The id of a thread's clock contains the
// thread's number.
bool sleeps(unsigned long thread) {
  clockid_t clock = 0;
  if (pthread_getcpuclockid(static_cast<pthread_t>(thread), &clock) != 0) return false;
  const int number = ~(clock >> 3);
  std::ifstream file("/proc/self/task/" + std::to_string(number) + "/stat");
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = line.rfind(')');
  return name_end != std::string::npos && line.compare(name_end, 4, ") S ") == 0;
}
#else
bool sleeps(unsigned long) { return false; }
#endif

enum class Seen { kAllWait, kOneRuns, kOneComputes };

Seen look() {
  const unsigned long here = PyThread_get_thread_ident();
  Seen seen = Seen::kAllWait;
  for (const Stack& stack : stacks()) {
    if (stack.thread == here) continue;
    if (!waits_at_door(stack) && std::ranges::any_of(stack.code, awaits_computation)) {
      return Seen::kOneComputes;
    }
    if (!sleeps(stack.thread)) seen = Seen::kOneRuns;
  }
  return seen;
}

}  // namespace

bool others_wait(int milliseconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  for (int quiet = 0;;) {
    const Seen seen = look();
    quiet = seen == Seen::kAllWait ? quiet + 1 : 0;
    if (quiet == kQuietLooks) return true;
    if (seen == Seen::kOneComputes) return false;
    if (seen == Seen::kOneRuns && std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

}  // namespace gpushare
