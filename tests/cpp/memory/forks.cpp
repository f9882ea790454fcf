// Forks while threads change all books of memory: no lock stays taken in the child.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "child_process.h"
#include "lane_block.h"
#include "memory/host/allocation_counter.h"
#include "memory/host/host_pages.h"
#include "memory/host/pager.h"
#include "memory/lane/lane.h"

using namespace gpushare;

namespace {

constexpr size_t kLaneBytes = 16 * kBlock;
constexpr size_t kPagedBytes = 32 * kBlock;

// All books of a process, held across a fork as the allocation hook holds them.
class Books {
 public:
  Books() : memory_(memfd_create("lane", MFD_CLOEXEC)) {
    REQUIRE(ftruncate(memory_, kLaneBytes) == 0);
    REQUIRE(lane.open(4 * kLaneBytes) == "");
    REQUIRE(lane.attach(memory_, kLaneBytes) == "");
    paged_.begin = static_cast<std::byte*>(
        mmap(nullptr, kPagedBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::memset(paged_.begin, 7, kPagedBytes);
  }
  Books(const Books&) = delete;
  Books& operator=(const Books&) = delete;
  ~Books() {
    munmap(paged_.begin, paged_.bytes);
    close(memory_);
  }

  bool page_out_and_in() {
    // The source asks the other books while the pager is locked.
    const auto source = [&](std::vector<Range>& ranges) {
      lane.survivor_bytes();
      counter.for_each_block(0, [](std::byte*, size_t) {});
      ranges.push_back(paged_);
    };
    return pager.page_out(source, std::filesystem::temp_directory_path()).empty() &&
           pager.page_in().empty();
  }

  bool compute() {
    lane.enter();
    void* first = lane.allocate(kBlock).address;
    void* second = lane.allocate(2 * kBlock).address;
    if (first != nullptr) lane.free(first);
    lane.promote();
    if (second != nullptr) lane.free(second);
    return true;
  }

  // Addresses of all shards.
  bool count() {
    for (uintptr_t at = 1; at < 200; ++at) counter.add(reinterpret_cast<void*>(at << 12), 10);
    size_t bytes = 0;
    for (uintptr_t at = 1; at < 200; ++at) {
      bytes += counter.remove(reinterpret_cast<void*>(at << 12)).bytes;
    }
    return bytes == 199 * 10;
  }

  bool are_right() {
    return page_out_and_in() && compute() && count() && paged_.begin[0] == std::byte{7} &&
           std::memcmp(paged_.begin, paged_.begin + 1, kPagedBytes - 1) == 0 &&
           lane.is_valid().empty() && pager.is_valid().empty() && lane.survivor_bytes() == 0;
  }

  bool fork_and_look() {
    pager.before_fork();
    lane.before_fork();
    counter.lock_all();
    const pid_t child = fork();
    counter.unlock_all();
    if (child == 0) {
      lane.after_fork_in_child();
      pager.after_fork_in_child();
      _exit(are_right() ? 0 : 1);
    }
    lane.after_fork_in_parent();
    pager.after_fork_in_parent();
    return end_of(child) == 0;
  }

 private:
  HostPages pages_;
  int memory_;
  Range paged_{nullptr, kPagedBytes};

 public:
  Lane lane{pages_};
  Pager pager;
  AllocationCounter counter;
};

}  // namespace

TEST_CASE("a fork while threads allocate, free and page out leaves no lock taken") {
  Books books;
  std::atomic<bool> is_over = false;
  std::atomic<int> wrong = 0;
  const auto repeat = [&](bool (Books::*work)()) {
    return std::thread([&, work] {
      while (!is_over) wrong += !(books.*work)();
    });
  };
  std::thread pages = repeat(&Books::page_out_and_in), computes = repeat(&Books::compute);
  std::thread counts = repeat(&Books::count);
  for (int i = 0; i < 100; ++i) CHECK(books.fork_and_look());
  is_over = true;
  for (std::thread* thread : {&pages, &computes, &counts}) thread->join();
  CHECK(wrong == 0);
  CHECK(books.are_right());
}
