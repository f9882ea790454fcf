// Two lanes on one memory, each filled from its own end, in two processes or in two threads.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "child_process.h"
#include "claims/chunk.h"
#include "lane_block.h"
#include "memory/host/host_pages.h"
#include "memory/lane/lane.h"

using namespace gpushare;

namespace {

const std::string kDirectory = std::filesystem::temp_directory_path();

// Shared by both processes: the lane's memory, its ledger, and their observations.
struct Shared {
  struct Seen {
    std::atomic<int> wrong, iterations, is_ready, is_over;
    std::atomic<uint64_t> waits, spills, overflows;
  };

  explicit Shared(size_t chunks)
      : bytes(chunks * kBlock), memory(memfd_create("lane", MFD_CLOEXEC)), ledger(Ledger::make()) {
    REQUIRE(ftruncate(memory, static_cast<off_t>(bytes)) == 0);
    void* page =
        mmap(nullptr, sizeof(Seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(page != MAP_FAILED);
    seen = static_cast<Seen*>(page);
  }
  ~Shared() {
    munmap(seen, sizeof(Seen));
    close(memory);
    close(ledger);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  size_t bytes;
  int memory, ledger;
  Seen* seen;
};

// One end of the lane.
struct Member {
  Member(
      const Shared& shared, int end, const std::string& directory = kDirectory,
      bool (*may_wait)() = [] { return true; })
      : last(uint64_t{1} << (40 + end)) {
    is_attached =
        lane.open(4 * shared.bytes).empty() &&
        lane.attach(shared.memory, shared.bytes, {shared.ledger, end, directory, may_wait}).empty();
  }

  Block allocate(size_t bytes) { return block_in(lane, bytes, last += bytes); }
  bool free(const Block& block) {
    const bool is_whole = block.is_whole();
    lane.free(block.address);
    return is_whole;
  }
  // This number of blocks of a chunk each is alive at a time, then none.
  void iterate(size_t chunks) {
    lane.enter();
    std::vector<Block> blocks(chunks);
    for (Block& block : blocks) block = allocate(kBlock);
    for (; !blocks.empty(); blocks.pop_back()) CHECK(free(blocks.back()));
    lane.leave();
  }

  HostPages pages;
  Lane lane{pages};
  bool is_attached;
  uint64_t last;
};

// Iterations of random sizes, some of them larger than all before.
class Training {
 public:
  Training(const Shared& shared, int end, unsigned seed)
      : shared_(shared), member_(shared, end), random_(seed) {}

  bool is_attached() const { return member_.is_attached; }
  void iterate() {
    member_.lane.enter();
    const size_t peak = shared_.bytes / (below(200) == 0 ? 1 : 2 + below(3));
    for (size_t live = 0; live < peak; live += grow()) {
      if (below(4) == 0) live -= std::min(live, shrink());
    }
    while (!blocks_.empty()) shrink();
    member_.lane.leave();
    shared_.seen->wrong += !member_.lane.is_valid().empty();
    ++shared_.seen->iterations;
  }
  void report() {
    shared_.seen->waits += member_.lane.co_lane_usage().waits;
    shared_.seen->spills += member_.lane.co_lane_usage().spills;
    shared_.seen->overflows += member_.lane.usage().overflows;
  }

 private:
  size_t below(size_t n) { return random_() % n; }
  size_t grow() {
    // few sizes, half of the time, so that there are blocks that are known again
    const size_t more = below(2) == 0 ? below(3 * kBlock) : below(3) * kBlock;
    const Block block = member_.allocate(kBlock + more);
    if (block.address != nullptr) blocks_.push_back(block);
    std::this_thread::yield();  // to the other process
    return block.bytes;
  }
  size_t shrink() {
    if (blocks_.empty()) return 0;
    std::swap(blocks_[below(blocks_.size())], blocks_.back());
    const Block block = blocks_.back();
    blocks_.pop_back();
    shared_.seen->wrong += !member_.free(block);
    return block.bytes;
  }

  const Shared& shared_;
  Member member_;
  std::mt19937 random_;
  std::vector<Block> blocks_;
};

void await(const std::atomic<int>& value, int least = 1) {
  while (value < least) usleep(1000);
}

// A process that has the whole lane in the middle of an iteration, until it is told that it is
// over.
pid_t greedy_elder(const Shared& shared) {
  const pid_t child = process([&] {
    Member member(shared, 1);
    member.lane.enter();
    const Block block = member.allocate(shared.bytes);
    if (block.address == nullptr) _exit(1);
    shared.seen->is_ready = 1;
    await(shared.seen->is_over);
    if (!member.free(block)) _exit(2);
    member.lane.leave();
  });
  await(shared.seen->is_ready);
  return child;
}

}  // namespace

TEST_CASE("co-lane: each end sees all chunks, and the second one in the reverse order") {
  const Shared shared(8);
  Member first(shared, 0), second(shared, 1);
  REQUIRE(first.is_attached);
  REQUIRE(second.is_attached);
  auto* view = static_cast<unsigned char*>(
      mmap(nullptr, shared.bytes, PROT_READ, MAP_SHARED, shared.memory, 0));
  first.lane.enter();
  const Block low = first.allocate(2 * kBlock);
  first.lane.leave();
  second.lane.enter();
  const Block high = second.allocate(3 * kBlock);
  second.lane.leave();
  CHECK(std::memcmp(view, low.address, 2 * kBlock) == 0);
  for (size_t chunk = 0; chunk < 3; ++chunk) {
    CHECK(std::memcmp(view + (7 - chunk) * kBlock, high.address + chunk * kBlock, kBlock) == 0);
  }
  CHECK(first.lane.is_valid() == "");
  CHECK(second.lane.is_valid() == "");
  CHECK(first.free(low));
  CHECK(second.free(high));
  munmap(view, shared.bytes);
}

// Draws random lanes, each end of which holds survivors at some addresses: no page that one end has
// below its extent is a page of the other end.
TEST_CASE("co-lane: what the two layouts show below two extents that fit are different pages") {
  std::mt19937 random(3);
  const auto below = [&](Page n) { return static_cast<Page>(random() % n); };
  for (int round = 0; round < 200; ++round) {
    const Page chunk_pages = Page{1} << below(4), chunks = 1 + below(24);
    const Page pages = chunks * chunk_pages;
    const Shared shared(pages * kPage / kBlock + 1);
    const Page extent = below(chunks + 1);
    const Page extents[] = {extent, chunks - extent};
    HostPages ends[2];
    std::vector<Stretch> shown[2];
    std::byte* windows[2];
    for (int end = 0; end < 2; ++end) {
      std::vector<Run> held;
      for (Page at = below(pages); at < pages && below(3) > 0; at += 1 + below(pages)) {
        held.push_back({at, 1 + below(std::min<Page>(4, pages - at))});
        at = held.back().end();
      }
      windows[end] = static_cast<std::byte*>(ends[end].reserve(pages));
      REQUIRE(ends[end].attach(std::span(&shared.memory, 1)) == "");
      shown[end] = layout_from(end, pages, chunk_pages, held);
      CHECK(outside(shown[end], held) == shown[end]);
      Page count = 0;
      for (const Run& run : held) count += run.count;
      for (const Stretch& stretch : shown[end]) {
        REQUIRE(ends[end].map(stretch));
        count += stretch.count;
      }
      CHECK(count == pages);  // all but what is held
    }
    const auto for_each_page = [&](auto visit) {
      for (int end = 0; end < 2; ++end) {
        for (const Stretch& stretch : shown[end]) {
          for (Page page = stretch.first; page < stretch.end(); ++page) {
            if (page >= extents[end] * chunk_pages) continue;
            visit(reinterpret_cast<uint64_t*>(windows[end] + page * kPage), 2 * page + end + 1);
          }
        }
      }
    };
    for_each_page([](uint64_t* at, uint64_t stamp) { *at = stamp; });
    for_each_page([](const uint64_t* at, uint64_t stamp) { REQUIRE(*at == stamp); });
  }
}

// Chunks that it has while nothing but a block that began at its peak is alive.
Chunks chunks_at_end(Member& member, const Ledger& ledger, size_t peak) {
  member.lane.enter();
  std::vector<Block> blocks(peak);
  for (Block& block : blocks) block = member.allocate(kBlock);
  const Block late = member.allocate(kBlock);
  for (; !blocks.empty(); blocks.pop_back()) CHECK(member.free(blocks.back()));
  const Chunks chunks = ledger.look().extent(0);
  CHECK(member.lane.is_valid() == "");
  CHECK(member.free(late));
  member.lane.leave();
  return chunks;
}

TEST_CASE("co-lane: a small block that outlives the peak lies low from the next iteration on") {
  const Shared shared(64);
  Member member(shared, 0);
  Ledger ledger;
  REQUIRE(ledger.open(shared.ledger, 1, 64) == "");
  CHECK(chunks_at_end(member, ledger, 40) == 41);
  for (int i = 0; i < 3; ++i) CHECK(chunks_at_end(member, ledger, 40) == 1);
  CHECK(chunks_at_end(member, ledger, 3) == 5);  // an evaluation: the place is kept, and empty
  CHECK(chunks_at_end(member, ledger, 40) == 1);
  for (int i = 0; i < 300; ++i) member.iterate(3);  // and the training has ended
  CHECK(chunks_at_end(member, ledger, 40) == 41);
}

TEST_CASE("co-lane: what lies low is small, and is a small part of the lane") {
  const Shared shared(64);
  Member member(shared, 0);
  Ledger ledger;
  REQUIRE(ledger.open(shared.ledger, 1, 64) == "");
  for (int i = 0; i < 100; ++i) {
    member.lane.enter();
    std::vector<Block> blocks(40);
    for (Block& block : blocks) {
      block = member.allocate(kBlock);
      if (&block == blocks.data()) CHECK(ledger.look().extent(0) <= 1 + 64 / LowPlaces::kPart);
    }
    CHECK(ledger.look().extent(0) == 40);
    for (const Block& block : blocks) CHECK(member.free(block));  // the last one is the highest
    member.lane.leave();
  }
}

// A cell ends, and the next one's turn may be at another end of another lane.
TEST_CASE("co-lane: what an iteration needs is known in the next lane as well") {
  const Shared small(64), large(4096);  // whose chunks are larger
  Member member(large, 0);
  for (int i = 0; i < 2; ++i) member.iterate(8);
  const auto bound_in = [&](const Shared& shared, int end) {
    REQUIRE(member.lane.attach(shared.memory, shared.bytes, {shared.ledger, end, kDirectory}) ==
            "");
    Ledger ledger;
    REQUIRE(ledger.open(shared.ledger, 1 - end,
                        static_cast<Chunks>(shared.bytes / chunk_bytes(shared.bytes))) == "");
    member.lane.enter();
    const Chunks bound = ledger.look().bound(end);
    member.lane.leave();
    return bound * chunk_bytes(shared.bytes) / kBlock;
  };
  CHECK(bound_in(small, 1) == 8);
  CHECK(bound_in(small, 0) == 8);
  CHECK(bound_in(large, 1) == 8);
}

TEST_CASE("co-lane: a lane that just holds the peak keeps no place for what comes after it") {
  const Shared shared(40);
  Member member(shared, 0);
  const auto iterate = [&] {
    member.lane.enter();
    std::vector<Block> blocks(40);
    for (Block& block : blocks) block = member.allocate(kBlock);
    const auto release = [&](size_t to) {
      for (; blocks.size() > to; blocks.pop_back())
        if (blocks.back().address != nullptr) CHECK(member.free(blocks.back()));
    };
    release(30);
    const Block late = member.allocate(kBlock);
    release(0);
    CHECK(member.free(late));
    member.lane.leave();
    CHECK(member.lane.is_valid() == "");
    return member.lane.usage().overflows;
  };
  CHECK(iterate() == 0);
  const uint64_t overflows = iterate();
  CHECK(overflows == 1);  // the place was in the way
  for (int i = 0; i < 10; ++i) CHECK(iterate() == overflows);
}

TEST_CASE("co-lane: two processes never have one page, whatever they need") {
  const Shared shared(64);
  pid_t children[2];
  for (int end = 0; end < 2; ++end) {
    children[end] = process([&] {
      Training training(shared, end, static_cast<unsigned>(end));
      if (!training.is_attached()) _exit(1);
      ++shared.seen->is_ready;
      await(shared.seen->is_ready, 2);
      for (int i = 0; i < 1000; ++i) training.iterate();
      training.report();
    });
  }
  for (const pid_t child : children) CHECK(end_of(child) == 0);
  CHECK(shared.seen->wrong == 0);
  CHECK(shared.seen->iterations == 2000);
  CHECK(shared.seen->waits > 0);
  MESSAGE(shared.seen->waits.load(), " waits, ", shared.seen->spills.load(), " spills, ",
          shared.seen->overflows.load(), " blocks elsewhere");
}

TEST_CASE("co-lane: a process that is killed at any instruction harms the other one in nothing") {
  const Shared shared(32);
  const pid_t steady = process([&] {
    Training training(shared, 0, 7);
    if (!training.is_attached()) _exit(1);
    for (;;) training.iterate();
  });
  std::mt19937 random(11);
  for (unsigned kill_number = 0; kill_number < 30; ++kill_number) {
    const pid_t victim = process([&] {
      Training training(shared, 1, kill_number);
      if (!training.is_attached()) _exit(1);
      for (;;) training.iterate();
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    kill(victim, SIGKILL);
    CHECK(WIFSIGNALED(end_of(victim)));
    const int before = shared.seen->iterations;
    for (int i = 0; i < 20'000 && shared.seen->iterations < before + 2; ++i) usleep(1000);
    REQUIRE(shared.seen->iterations >= before + 2);  // no wait for a dead process
  }
  kill(steady, SIGKILL);
  end_of(steady);
  CHECK(shared.seen->wrong == 0);
}

TEST_CASE("co-lane: what spills keeps its bytes and addresses, in a file or in private memory") {
  for (const std::string& directory : {kDirectory, std::string("/nowhere"), std::string()}) {
    const Shared shared(16);
    Member first(shared, 0, directory), second(shared, 1, directory);
    for (int i = 0; i < 2; ++i) {  // so each is known
      first.iterate(4);
      second.iterate(8);
    }
    first.lane.enter();
    const Block early = first.allocate(4 * kBlock);
    std::atomic<int> is_beside = 0;
    std::thread other([&] {
      second.lane.enter();
      const Block its = second.allocate(8 * kBlock);
      is_beside = 1;
      while (first.lane.co_lane_usage().waits == 0) usleep(1000);
      const Block more = second.allocate(6 * kBlock);  // otherwise neither can go on
      CHECK(more.address != nullptr);
      CHECK(second.free(its));
      CHECK(second.free(more));
      second.lane.leave();
    });
    await(is_beside);
    const Block late = first.allocate(6 * kBlock);
    CHECK(late.address != nullptr);
    other.join();
    CHECK(first.lane.co_lane_usage().spills == 1);
    CHECK(second.lane.co_lane_usage().spills == 0);
    CHECK(first.lane.is_valid() == "");
    CHECK(first.free(late));
    CHECK(first.free(early));
    first.lane.leave();
    CHECK(first.lane.usage().overflow_bytes == (directory == kDirectory ? 0 : 4 * kBlock));
    CHECK(first.lane.usage().footprint >= (directory == kDirectory ? 10 : 6) * kBlock);
    first.iterate(16);
    CHECK(first.lane.is_valid() == "");
  }
}

TEST_CASE(
    "co-lane: a signal ends a wait that has been long, and the rest of the iteration does not "
    "wait") {
  const Shared shared(16);
  struct sigaction quiet = {}, before = {};
  quiet.sa_handler = [](int) {};
  sigaction(SIGUSR1, &quiet, &before);
  const pid_t elder = greedy_elder(shared);
  Member member(shared, 0);
  member.lane.enter();
  std::atomic<bool> is_over = false;
  std::thread interrupter([&, waiter = pthread_self()] {
    while (!is_over) {
      usleep(10'000);
      pthread_kill(waiter, SIGUSR1);
    }
  });
  CHECK(member.allocate(kBlock).address == nullptr);
  is_over = true;
  interrupter.join();
  CHECK(member.allocate(kBlock).address == nullptr);
  CHECK(member.lane.co_lane_usage().interrupted_waits == 1);
  CHECK(member.lane.co_lane_usage().wait_seconds > 0);
  CHECK(member.lane.co_lane_usage().waits == 1);
  CHECK(member.lane.usage().overflows == 2);
  member.lane.leave();
  shared.seen->is_over = 1;
  CHECK(end_of(elder) == 0);
  member.iterate(16);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_CASE("co-lane: a thread that must not wait gets no more than is free, and asks for nothing") {
  const Shared shared(16);
  Member elder(shared, 1), member(shared, 0, kDirectory, [] { return false; });
  elder.lane.enter();
  const Block its = elder.allocate(12 * kBlock);
  member.lane.enter();
  CHECK(member.allocate(kBlock).address == nullptr);  // the elder may need all, for all one knows
  CHECK(member.lane.co_lane_usage().waits == 0);
  CHECK(member.lane.usage().overflows == 1);
  CHECK(elder.allocate(4 * kBlock).address != nullptr);
  CHECK(elder.lane.co_lane_usage().waits == 0);
  CHECK(its.is_whole());
}

TEST_CASE("co-lane: a fork while another thread waits has all that is alive") {
  const Shared shared(16);
  Member elder(shared, 1);
  for (int i = 0; i < 2; ++i) elder.iterate(12);
  Member member(shared, 0);
  elder.lane.enter();
  const Block its = elder.allocate(12 * kBlock);
  std::atomic<bool> is_made = false;
  Block block, late;
  std::thread waiter([&] {
    member.lane.enter();
    block = member.allocate(2 * kBlock);
    is_made = true;
    late = member.allocate(8 * kBlock);
    member.lane.leave();
  });
  while (!is_made || member.lane.co_lane_usage().waits == 0) usleep(1000);
  member.lane.before_fork();
  elder.lane.before_fork();
  const pid_t child = fork();
  if (child == 0) {
    elder.lane.after_fork_in_child();
    member.lane.after_fork_in_child();
    const bool is_right = block.is_whole() && member.lane.is_valid().empty() &&
                          member.lane.co_lane_usage().waits == 0;
    member.lane.enter();
    const bool is_outside = member.lane.allocate(kBlock).address == nullptr;
    _exit(is_right && is_outside ? 0 : 1);
  }
  elder.lane.after_fork_in_parent();
  member.lane.after_fork_in_parent();
  CHECK(end_of(child) == 0);
  CHECK(elder.free(its));
  elder.lane.leave();
  waiter.join();
  CHECK(late.address != nullptr);
  CHECK(block.is_whole());
  CHECK(member.free(late));
  CHECK(member.free(block));
  CHECK(member.lane.is_valid() == "");
}

TEST_CASE("co-lane: where the ledger is overwritten, both go on with private memory") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 50; ++round) {
    const Shared shared(16);
    Member first(shared, 0), second(shared, 1);
    first.lane.enter();
    const Block own = first.allocate(2 * kBlock);
    CHECK(first.free(own));
    for (int i = 0; i < 2; ++i) second.lane.enter(), second.lane.leave();
    const Block kept = first.allocate(4 * kBlock);
    auto* page = static_cast<uint64_t*>(
        mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, shared.ledger, 0));
    for (size_t at = 0; at < kPage / sizeof *page; ++at) page[at] = round == 0 ? 0 : random();
    second.lane.enter();
    CHECK(second.allocate(kBlock).address == nullptr);
    CHECK(first.allocate(8 * kBlock).address == nullptr);
    for (Member* member : {&first, &second}) {
      CHECK(member->lane.co_lane_usage().is_lost);
      CHECK(member->lane.usage().overflows == 1);
      CHECK(member->lane.is_valid() == "");
      member->lane.leave();
    }
    CHECK(first.free(kept));
    first.lane.enter();
    CHECK(first.allocate(kBlock).address == nullptr);
    first.lane.leave();
    munmap(page, kPage);
    REQUIRE(first.lane.attach(shared.memory, shared.bytes) == "");  // it is alone from here on
    first.iterate(16);
  }
}

TEST_CASE("co-lane: what is alive at a boundary stays this end's until it ends or is promoted") {
  const Shared shared(16);
  Member first(shared, 0);
  Member second(shared, 1, kDirectory, [] { return false; });
  const auto room = [&] {  // for the other end
    second.lane.enter();
    std::vector<Block> blocks;
    for (;;) {
      const Block block = second.allocate(kBlock);
      if (block.address == nullptr) break;
      blocks.push_back(block);
    }
    for (const Block& block : blocks) CHECK(second.free(block));
    second.lane.leave();
    return blocks.size();
  };
  first.lane.enter();
  const Block block = first.allocate(5 * kBlock);
  first.lane.leave();
  CHECK(room() == 11);
  first.lane.enter();
  CHECK(block.is_whole());
  first.lane.leave();
  CHECK(first.lane.promote() == 5 * kBlock);
  CHECK(room() == 16);
  CHECK(first.free(block));
  first.lane.enter();
  const Block another = first.allocate(3 * kBlock);
  REQUIRE(another.address != nullptr);
  first.lane.leave();
  std::thread([&] { CHECK(first.free(another)); }).join();
  CHECK(room() == 16);
}
