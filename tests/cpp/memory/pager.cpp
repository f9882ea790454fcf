// Memory that goes out and in again under threads, forks and frees, against a plain copy of it.
#include "memory/host/pager.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "child_process.h"

using namespace gpushare;

#ifdef __SANITIZE_THREAD__
// It does not know that the protection of a page comes between a write and a move or a copy.
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_suppressions() {
  return "race:write_all\nrace:replace_by_memory\nrace:HostPages::copy\n";
}
#endif

namespace {

constexpr size_t kKiB = 1 << 10;
constexpr size_t kMiB = 1 << 20;

const std::string& directory() {
  static const std::string path = std::filesystem::temp_directory_path();
  return path;
}

// Blocks of libc, as PyTorch takes them, and their expected content.
class Blocks {
 public:
  struct Block {
    std::byte* begin;
    std::vector<std::byte> copy;

    Range range() const { return {begin, copy.size()}; }
    bool is_intact() const { return std::memcmp(begin, copy.data(), copy.size()) == 0; }
    void write(size_t at, std::byte value) { begin[at] = copy[at] = value; }
  };

  explicit Blocks(Pager& pager) : pager_(pager) {}
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  ~Blocks() {
    while (!blocks_.empty()) remove(0);
  }

  Block& add(size_t bytes) {
    void* memory = nullptr;
    REQUIRE(posix_memalign(&memory, 64, bytes) == 0);
    const std::lock_guard guard(lock_);
    blocks_.push_back({static_cast<std::byte*>(memory), std::vector<std::byte>(bytes)});
    Block& block = blocks_.back();
    for (size_t i = 0; i < bytes; i += 8) {
      const uint64_t word = random_();
      std::memcpy(&block.copy[i], &word, std::min<size_t>(8, bytes - i));
    }
    std::memcpy(block.begin, block.copy.data(), bytes);
    return block;
  }

  void remove(size_t index) {
    std::unique_lock guard(lock_);
    const Range range = blocks_[index].range();
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(index));
    guard.unlock();
    pager_.before_free(range.begin, range.bytes);
    free(range.begin);
  }

  Pager::Source source() {
    return [this](std::vector<Range>& ranges) {
      const std::lock_guard guard(lock_);
      for (const Block& block : blocks_) ranges.push_back(block.range());
    };
  }

  bool are_intact() const {
    return std::ranges::all_of(blocks_, [](const Block& block) { return block.is_intact(); });
  }

  size_t size() const { return blocks_.size(); }
  Block& operator[](size_t index) { return blocks_[index]; }

 private:
  Pager& pager_;
  std::mutex lock_;
  std::vector<Block> blocks_;
  std::mt19937_64 random_{1};
};

struct PagedBlocks {
  Pager pager;
  Blocks blocks{pager};
};

// The result of a child process: true when it ends by itself and reports success.
bool in_a_child(const std::function<bool()>& holds) {
  return end_of(process([&] { _exit(holds() ? 0 : 1); })) == 0;
}

// The end of a child process that has SIGSEGV's default, and no core.
int signal_that_ends(const std::function<void()>& code) {
  const int status = end_of(process([&] {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(SIGSEGV, SIG_DFL);
    code();
  }));
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  return static_cast<size_t>(
      std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n'));
}

void fork_with(Pager& pager, const std::function<bool()>& child) {
  pager.before_fork();
  const bool holds = in_a_child([&] {
    pager.after_fork_in_child();
    return child();
  });
  pager.after_fork_in_parent();
  CHECK(holds);
}

}  // namespace

TEST_CASE_FIXTURE(PagedBlocks, "a block that goes out comes back at the same address") {
  auto& block = blocks.add(10 * kMiB + 5);
  std::byte* middle = block.begin + 5 * kMiB;
  REQUIRE(pager.page_out(blocks.source(), directory()) == "");
  CHECK(pager.bytes_out() > 10 * kMiB - 2 * 64 * kKiB);
  CHECK(pager.is_out(middle));
  CHECK(pager.is_valid() == "");
  REQUIRE(pager.page_in() == "");
  CHECK(pager.bytes_out() == 0);
  CHECK_FALSE(pager.is_out(middle));
  CHECK(blocks.are_intact());
  CHECK(pager.is_valid() == "");
}

TEST_CASE_FIXTURE(
    PagedBlocks,
    "a touch of a block that is out gives its bytes, and bytes that are written there stay") {
  auto& block = blocks.add(9 * kMiB);
  REQUIRE(pager.page_out(blocks.source(), directory()) == "");
  std::thread([&] { block.write(6 * kMiB, std::byte{7}); }).join();
  block.write(3 * kMiB, std::byte{8});
  CHECK(block.is_intact());
  REQUIRE(pager.page_in() == "");
  CHECK(block.is_intact());
}

TEST_CASE_FIXTURE(PagedBlocks, "a system call reads a block that is out") {
  auto& block = blocks.add(kMiB);
  REQUIRE(pager.page_out(blocks.source(), directory()) == "");
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  CHECK(write(ends[1], block.begin + 64 * kKiB, 4096) == 4096);
  std::vector<std::byte> bytes(4096);
  CHECK(read(ends[0], bytes.data(), 4096) == 4096);
  CHECK(std::memcmp(bytes.data(), block.begin + 64 * kKiB, 4096) == 0);
  close(ends[0]);
  close(ends[1]);
  CHECK(pager.page_in() == "");
}

TEST_CASE_FIXTURE(PagedBlocks, "a block that is lent stays in, and the others go out") {
  for (int i = 0; i < 3; ++i) blocks.add(3 * kMiB);
  REQUIRE(pager.page_out(blocks.source(), directory(), {blocks[1].range()}) == "");
  CHECK(pager.is_out(blocks[0].begin + kMiB));
  CHECK_FALSE(pager.is_out(blocks[1].begin + kMiB));
  CHECK(pager.is_out(blocks[2].begin + kMiB));
  REQUIRE(pager.page_in() == "");
  CHECK(blocks.are_intact());
}

TEST_CASE_FIXTURE(PagedBlocks,
                  "a thread reads into a block that was lent while it was out, and no call fails") {
  for (int i = 0; i < 2; ++i) blocks.add(20 * kMiB);
  auto& block = blocks[0];
  const int zeros = open("/dev/zero", O_RDONLY);
  REQUIRE(zeros >= 0);
  REQUIRE(pager.page_out(blocks.source(), directory()) == "");
  std::atomic<bool> ends = false;
  std::atomic<int> reads = 0;
  int failed = 0;
  std::thread thread([&] {
    while (!ends) {
      if (read(zeros, block.begin, block.copy.size()) <= 0) ++failed;
      ++reads;
    }
  });
  while (reads == 0) std::this_thread::yield();
  for (int i = 0; i < 5; ++i) {
    CHECK(pager.page_in({block.range()}) == "");
    CHECK(pager.bytes_out() == 0);
    CHECK(pager.is_valid() == "");
    CHECK(pager.page_out(blocks.source(), directory(), {block.range()}) == "");
  }
  ends = true;
  thread.join();
  close(zeros);
  CHECK(failed == 0);
  CHECK(pager.page_in({block.range()}) == "");
  std::ranges::fill(block.copy, std::byte{0});
  CHECK(blocks.are_intact());
}

TEST_CASE_FIXTURE(PagedBlocks, "a lent block is ordinary memory again once it is freed") {
  const Range range = blocks.add(64 * kMiB).range();
  REQUIRE(pager.page_out(blocks.source(), directory()) == "");
  REQUIRE(pager.page_in({range}) == "");
  CHECK(blocks.are_intact());
  pager.before_free(range.begin, range.bytes);
  CHECK(pager.is_valid() == "");
  std::byte* page = range.begin + 8 * kMiB;
  page -= reinterpret_cast<uintptr_t>(page) % 4096;
  CHECK(*page == std::byte{0});  // and no byte of the file
}

TEST_CASE("a block that was never touched has no memory to page out") {
  Pager pager;
  void* memory =
      mmap(nullptr, 96 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* begin = static_cast<std::byte*>(memory);
  begin[50 * kMiB] = std::byte{1};
  const auto source = [&](std::vector<Range>& ranges) { ranges.push_back({begin, 96 * kMiB}); };
  REQUIRE(pager.page_out(source, directory()) == "");
  CHECK(pager.is_out(begin + 50 * kMiB));
  CHECK(pager.bytes_out() <= 16 * kMiB);
  REQUIRE(pager.page_in() == "");
  CHECK(begin[50 * kMiB] == std::byte{1});
  CHECK(begin[90 * kMiB] == std::byte{0});
  munmap(memory, 96 * kMiB);
}

TEST_CASE_FIXTURE(PagedBlocks, "a second page-out takes the blocks that are not out yet") {
  blocks.add(kMiB);
  REQUIRE(pager.page_out(blocks.source(), directory()) == "");
  const size_t first = pager.bytes_out();
  blocks.add(2 * kMiB);
  REQUIRE(pager.page_out(blocks.source(), directory()) == "");
  CHECK(pager.bytes_out() > first + kMiB);
  CHECK(pager.is_valid() == "");
  REQUIRE(pager.page_in() == "");
  CHECK(blocks.are_intact());
}

TEST_CASE_FIXTURE(PagedBlocks, "a range that is named twice goes out once") {
  const Range range = blocks.add(kMiB).range();
  const auto twice = [&](std::vector<Range>& ranges) { ranges = {range, range}; };
  REQUIRE(pager.page_out(twice, directory()) == "");
  CHECK(pager.bytes_out() <= kMiB);
  CHECK(pager.is_valid() == "");
  REQUIRE(pager.page_in() == "");
  CHECK(blocks.are_intact());
}

TEST_CASE_FIXTURE(PagedBlocks, "a block that is freed while it is out is ordinary memory again") {
  blocks.add(5 * kMiB);
  blocks.add(100 * kKiB);
  blocks.add(5 * kMiB);
  REQUIRE(pager.page_out(blocks.source(), directory()) == "");
  const size_t all = pager.bytes_out();
  blocks.remove(1);
  blocks.remove(0);
  CHECK(pager.bytes_out() < all - 5 * kMiB);
  CHECK(pager.is_valid() == "");
  blocks.add(5 * kMiB);
  REQUIRE(pager.page_in() == "");
  CHECK(blocks.are_intact());
}

TEST_CASE_FIXTURE(PagedBlocks, "a page-out that is cancelled has everything back in") {
  blocks.add(20 * kMiB);
  const auto cancelled = [&](std::vector<Range>& ranges) {
    blocks.source()(ranges);
    pager.cancel();
  };
  CHECK(pager.page_out(cancelled, directory()) == "paging out was cancelled");
  CHECK(pager.bytes_out() == 0);
  CHECK(blocks.are_intact());
  CHECK(pager.is_valid() == "");
}

TEST_CASE_FIXTURE(PagedBlocks,
                  "where no file can be made nothing goes out, and the reason is reported") {
  blocks.add(kMiB);
  CHECK(pager.page_out(blocks.source(), "/nowhere") ==
        "no file can be made in /nowhere: No such file or directory");
  CHECK(pager.bytes_out() == 0);
  CHECK(pager.is_valid() == "");
}

TEST_CASE("where the file has no room nothing goes out, and the reason is reported") {
  CHECK(in_a_child([] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit small{kMiB, kMiB};
    setrlimit(RLIMIT_FSIZE, &small);
    Pager pager;
    Blocks blocks(pager);
    blocks.add(10 * kMiB);
    const std::string reason = pager.page_out(blocks.source(), directory());
    return reason == "10 MiB do not fit into " + directory() + ": File too large" &&
           pager.bytes_out() == 0 && blocks.are_intact();
  }));
}

TEST_CASE_FIXTURE(PagedBlocks,
                  "blocks that cannot be read are reported, and all others come back") {
  blocks.add(36 * kMiB);
  std::byte* bad = blocks[0].begin + (4096 - reinterpret_cast<uintptr_t>(blocks[0].begin) % 4096);
  REQUIRE(pager.page_out(blocks.source(), directory()) == "");
  const int empty = open(directory().c_str(), O_TMPFILE | O_RDWR, 0600);
  REQUIRE(empty >= 0);
  void* hole = mmap(bad, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, empty, 0);
  REQUIRE(hole == bad);  // reading it fails, as from a broken disk
  close(empty);

  CHECK(pager.page_in().ends_with(" MiB cannot be read back: Input/output error"));
  CHECK(pager.bytes_out() > 0);
  CHECK(pager.bytes_out() <= 16 * kMiB);
  CHECK(pager.is_valid() == "");
  const size_t after = static_cast<size_t>(bad - blocks[0].begin) + 4096;
  CHECK(std::memcmp(bad + 4096, &blocks[0].copy[after], blocks[0].copy.size() - after) == 0);
  blocks.remove(0);
  CHECK(pager.bytes_out() == 0);
}

TEST_CASE_FIXTURE(PagedBlocks,
                  "a child that was forked while all is out reads it, whatever its parent does") {
  blocks.add(9 * kMiB);
  REQUIRE(pager.page_out(blocks.source(), directory()) == "");
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  pager.before_fork();
  const pid_t child = process([&] {
    pager.after_fork_in_child();
    char byte;
    const bool told = read(ends[0], &byte, 1) == 1;
    const bool back = pager.page_in().empty() && pager.is_valid().empty();
    _exit(told && back && blocks.are_intact() ? 0 : 1);
  });
  pager.after_fork_in_parent();
  REQUIRE(pager.page_in() == "");
  std::memset(blocks[0].begin, 0, 9 * kMiB);
  CHECK(write(ends[1], "x", 1) == 1);
  CHECK(end_of(child) == 0);
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE_FIXTURE(
    PagedBlocks,
    "a fork waits for the piece that moves, and not for the whole page-out of a thread") {
  blocks.add(128 * kMiB);
  bool came_between = false;
  for (int i = 0; i < 20 && !came_between; ++i) {
    std::thread thread([&] { CHECK(pager.page_out(blocks.source(), directory()) == ""); });
    while (pager.bytes_out() == 0) std::this_thread::yield();
    pager.before_fork();
    came_between = pager.bytes_out() < 120 * kMiB;
    pager.after_fork_in_parent();
    thread.join();
    CHECK(pager.page_in() == "");
  }
  CHECK(came_between);
  CHECK(blocks.are_intact());
}

TEST_CASE("no write is lost, whenever pages move") {
  Pager pager;
  constexpr size_t kWords = 20 * kMiB / 8;
  std::unique_ptr<std::byte, decltype(&free)> memory(
      static_cast<std::byte*>(aligned_alloc(64, kWords * 8)), free);
  auto* words = reinterpret_cast<uint64_t*>(memory.get());
  std::memset(words, 0, kWords * 8);
  const auto source = [&](std::vector<Range>& ranges) {
    ranges.push_back({memory.get(), kWords * 8});
  };
  std::atomic<bool> ends = false;
  std::atomic<uint64_t> rounds[2] = {0, 0};
  const auto count = [&](size_t first) {
    while (!ends) {
      for (size_t i = first; i < kWords; i += 509 * 2) ++words[i];
      ++rounds[first];
    }
  };
  std::thread even(count, 0);
  std::thread odd(count, 1);
  for (int i = 0; i < 30; ++i) {
    CHECK(pager.page_out(source, directory()) == "");
    CHECK(pager.is_valid() == "");
    CHECK(pager.page_in() == "");
  }
  ends = true;
  even.join();
  odd.join();
  size_t wrong = 0;
  for (size_t i = 0; i < kWords; ++i) {
    const size_t first = i % 1018;
    wrong += words[i] != (first < 2 ? rounds[first].load() : 0);
  }
  CHECK(wrong == 0);
}

TEST_CASE("threads free and allocate while pages move") {
  Pager pager;
  Blocks mine(pager);
  mine.add(20 * kMiB);
  std::atomic<bool> ends = false;
  std::thread other([&] {
    Blocks theirs(pager);
    while (!ends) {
      while (theirs.size() < 8) theirs.add(200 * kKiB);
      theirs.remove(theirs.size() / 2);
    }
  });
  Blocks shared(pager);
  std::thread third([&] {
    while (!ends) {
      shared.add(300 * kKiB);
      shared.remove(0);
    }
  });
  const auto both = [&](std::vector<Range>& ranges) {
    mine.source()(ranges);
    shared.source()(ranges);
  };
  for (int i = 0; i < 20; ++i) {
    CHECK(pager.page_out(both, directory()) == "");
    CHECK(pager.is_valid() == "");
    CHECK(pager.page_in() == "");
  }
  ends = true;
  other.join();
  third.join();
  CHECK(mine.are_intact());
}

TEST_CASE_FIXTURE(PagedBlocks, "the number of mappings does not grow with every page-out") {
  blocks.add(40 * kMiB);
  for (int i = 0; i < 50; ++i) blocks.add(70 * kKiB);
  const size_t before = mappings();
  for (int i = 0; i < 5; ++i) {
    REQUIRE(pager.page_out(blocks.source(), directory()) == "");
    CHECK(mappings() < before + 2 * 51 + 30);
    REQUIRE(pager.page_in() == "");
    CHECK(mappings() < before + 2 * 51 + 30);
  }
}

TEST_CASE("a fault that is not ours ends the process as before") {
  CHECK(signal_that_ends([] {
          Pager pager;
          Blocks blocks(pager);
          blocks.add(kMiB);
          if (!pager.page_out(blocks.source(), directory()).empty()) _exit(1);
          void* locked = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          *static_cast<volatile char*>(locked) = 1;
        }) == SIGSEGV);
  CHECK(signal_that_ends([] {
          Pager pager;
          Blocks blocks(pager);
          blocks.add(kMiB);
          if (!pager.page_out(blocks.source(), directory()).empty()) _exit(1);
          raise(SIGSEGV);
        }) == SIGSEGV);
}

namespace {
struct sigaction before_later_handler;

void later_handler(int number) {  // as faulthandler does
  sigaction(SIGSEGV, &before_later_handler, nullptr);
  raise(number);
}

void add_later_handler() {
  struct sigaction later{};
  later.sa_handler = later_handler;
  later.sa_flags = SA_NODEFER;
  sigaction(SIGSEGV, &later, &before_later_handler);
}
}  // namespace

TEST_CASE("handlers before and after ours are called, and none in a circle") {
  CHECK(in_a_child([] {
    struct sigaction earlier{};
    earlier.sa_handler = [](int) { _exit(0); };
    sigaction(SIGSEGV, &earlier, nullptr);
    Pager pager;
    Blocks blocks(pager);
    blocks.add(9 * kMiB);
    for (int i = 0; i < 10; ++i) {
      if (!pager.page_out(blocks.source(), directory()).empty()) _exit(2);
      if (i > 0) sigaction(SIGSEGV, &before_later_handler, nullptr);
      add_later_handler();
      if (!pager.page_in().empty()) _exit(3);
    }
    void* locked = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *static_cast<volatile char*>(locked) = 1;
    return false;
  }));
}

TEST_CASE_FIXTURE(PagedBlocks, "no random path loses a byte") {
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return random() % n; };
  for (int i = 0; i < 1000; ++i) {
    CAPTURE(i);
    auto* block = blocks.size() > 0 ? &blocks[below(blocks.size())] : nullptr;
    switch (below(9)) {
      case 0:
      case 1:
        if (blocks.size() < 12) blocks.add(kKiB << below(14));  // in the heap, and mapped
        break;
      case 2:
        if (block != nullptr) blocks.remove(static_cast<size_t>(block - &blocks[0]));
        break;
      case 3:
      case 4:
        if (block != nullptr) block->write(below(block->copy.size()), std::byte(random()));
        break;
      case 5:
        if (block != nullptr) {
          std::thread([&] { block->write(below(block->copy.size()), std::byte{5}); }).join();
        }
        break;
      case 6:
        REQUIRE(pager.page_out(blocks.source(), directory()) == "");
        break;
      case 7:
        REQUIRE(pager.page_in() == "");
        break;
      case 8:
        if (block != nullptr && below(10) == 0) {
          fork_with(pager, [&] {
            block->write(0, std::byte{9});
            return block->is_intact() && pager.page_in().empty() && blocks.are_intact();
          });
        }
        break;
    }
    REQUIRE(pager.is_valid() == "");
    if (block != nullptr && i % 10 == 0) REQUIRE(blocks.are_intact());
  }
  REQUIRE(pager.page_in() == "");
  CHECK(blocks.are_intact());
}
