// A lane that others overwrite whenever they have it: living blocks keep their bytes.
#include "memory/lane/lane.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "child_process.h"
#include "lane_block.h"
#include "memory/host/host_pages.h"

using namespace gpushare;

namespace {

constexpr int kUnlimitedCalls = 1'000'000;

// The memory of a lane, as another session sees it.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes), descriptor_(memfd_create("lane", MFD_CLOEXEC)) {
    REQUIRE(ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0);
    void* view = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    REQUIRE(view != MAP_FAILED);
    view_ = static_cast<unsigned char*>(view);
  }
  ~Memory() {
    munmap(view_, bytes_);
    close(descriptor_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  int descriptor() const { return descriptor_; }
  size_t bytes() const { return bytes_; }
  void overwrite() { std::memset(view_, 0xFF, bytes_); }
  bool is_untouched() const {
    return view_[0] == 0xFF && std::memcmp(view_, view_ + 1, bytes_ - 1) == 0;
  }

 private:
  size_t bytes_;
  int descriptor_;
  unsigned char* view_;
};

// Whether there is memory at an address; the system looks, since a touch would end the process.
bool is_readable(const void* address) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const bool readable = write(ends[1], address, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

// A system that has no memory left from a certain call on.
class ScarcePages : public HostPages {
 public:
  int maps_left = kUnlimitedCalls, copies_left = kUnlimitedCalls;

  bool map(const Stretch& stretch) override { return maps_left-- > 0 && HostPages::map(stretch); }
  void* copy(Run run) override { return copies_left-- > 0 ? HostPages::copy(run) : nullptr; }
};

struct Session {
  explicit Session(size_t window, const Memory* memory = nullptr) {
    REQUIRE(lane.open(window) == "");
    if (memory != nullptr) REQUIRE(lane.attach(memory->descriptor(), memory->bytes()) == "");
  }

  Block allocate(size_t bytes) { return block_in(lane, bytes, ++last); }
  size_t allocate_all() {  // block by block, until the lane is full
    size_t blocks = 0;
    while (allocate(kBlock).address != nullptr) ++blocks;
    return blocks * kBlock;
  }

  ScarcePages pages;
  Lane lane{pages};
  uint64_t last = 0;
};

// A session that has a lane of 16 blocks.
struct InLane {
  Memory memory{16 * kBlock};
  Session session{64 * kBlock, &memory};
  Lane& lane = session.lane;
};

}  // namespace

TEST_CASE("bytes that another thread writes to a survivor while it is promoted are kept") {
  const Memory memory(64 * kBlock);
  Session session(256 * kBlock, &memory);
  for (int turn = 0; turn < 200; ++turn) {
    session.lane.enter();
    const Block block = session.allocate(16 * kBlock);
    if (block.address == nullptr) continue;
    std::atomic<bool> over = false;
    std::atomic<uint64_t> lost = 0, written = 0;
    std::thread writer([&] {
      auto& word = *reinterpret_cast<std::atomic<uint64_t>*>(block.address);
      for (uint64_t number = 1; !over; ++number) {
        word = number;
        written = number;
        std::this_thread::yield();
        lost += word != number;
      }
    });
    while (written == 0) std::this_thread::yield();
    session.lane.promote();
    over = true;
    writer.join();
    CHECK(lost == 0);
    session.lane.free(block.address);
  }
  CHECK(session.lane.is_valid() == "");
}

TEST_CASE_FIXTURE(InLane, "only the thread that entered allocates, and only large blocks") {
  CHECK(lane.allocate(kBlock).address == nullptr);
  lane.enter();
  CHECK(lane.allocate(kBlock).address != nullptr);
  CHECK(lane.allocate(kBlock - 1).address == nullptr);
  CHECK(lane.allocate(kBlock, 2 * kPage).address == nullptr);
  std::thread([&] { CHECK(lane.allocate(kBlock).address == nullptr); }).join();
  std::thread([&] { lane.enter(); }).join();
  CHECK(lane.allocate(kBlock).address == nullptr);
  lane.enter();
  CHECK(session.allocate(kBlock).address != nullptr);
  lane.leave();
  CHECK(lane.allocate(kBlock).address == nullptr);
  CHECK(lane.is_valid() == "");
}

TEST_CASE("blocks begin at pages, and a lane that is full sends the rest elsewhere") {
  const Memory memory(4 * kBlock);
  Session session(64 * kBlock, &memory);
  session.lane.enter();
  void* block = session.lane.allocate(kBlock + 1).address;
  CHECK(session.lane.owns(block));
  CHECK(reinterpret_cast<uintptr_t>(block) % kPage == 0);
  CHECK(session.lane.allocate(3 * kBlock).address == nullptr);
  CHECK(session.lane.allocate(SIZE_MAX).address == nullptr);
  CHECK(session.lane.allocate(2 * kBlock).address != nullptr);
  CHECK(session.lane.usage().overflows == 2);
  CHECK_FALSE(session.lane.owns(&memory));
  CHECK_FALSE(session.lane.owns(nullptr));
}

TEST_CASE("overflow counts the most bytes that were alive at one time in its iteration") {
  const Memory memory(kBlock);
  Session session(64 * kBlock, &memory);
  Lane& lane = session.lane;
  const auto overflow = [&](size_t bytes) {
    const Lane::Place place = lane.allocate(bytes);
    CHECK(place.address == nullptr);
    return place.note;
  };
  lane.enter();
  const auto survivor = overflow(2 * kBlock);
  lane.made(survivor, 2 * kBlock);
  for (int i = 0; i < 10; ++i) {
    const auto note = overflow(3 * kBlock - 1);
    lane.made(note, 3 * kBlock - 1);
    lane.ended(note, 3 * kBlock - 1);
  }
  overflow(SIZE_MAX);  // and there is not enough memory for it
  lane.leave();
  CHECK(lane.usage().overflows == 12);
  CHECK(lane.usage().overflow_bytes == 5 * kBlock);
  lane.enter();
  lane.ended(survivor, 2 * kBlock);
  lane.leave();
  CHECK(lane.usage().overflow_bytes == 0);
}

TEST_CASE_FIXTURE(InLane, "survivors keep their addresses and bytes while the lane is another's") {
  lane.enter();
  const Block first = session.allocate(3 * kBlock), second = session.allocate(kBlock);
  const Block third = session.allocate(2 * kBlock);
  lane.free(second.address);
  lane.leave();
  CHECK(lane.survivor_bytes() == 5 * kBlock);
  CHECK(lane.promote() == 5 * kBlock);
  CHECK(lane.survivor_bytes() == 0);
  CHECK(lane.usage().promoted_runs == 2);
  CHECK(lane.usage().living_promoted_bytes == 5 * kBlock);
  memory.overwrite();
  CHECK(first.is_whole());
  CHECK(third.is_whole());
  first.write();
  CHECK(memory.is_untouched());
  CHECK(lane.is_valid() == "");
}

TEST_CASE_FIXTURE(InLane, "survivors take addresses from the lane, but no memory") {
  std::vector<Block> survivors;
  for (int i = 0; i < 3; ++i) {
    lane.enter();
    const Block gap = session.allocate(kBlock);
    survivors.push_back(session.allocate((i + 1) * kBlock));
    lane.free(gap.address);
    lane.promote();
    CHECK(lane.is_valid() == "");
  }
  lane.enter();
  CHECK(session.allocate_all() == 16 * kBlock);
  CHECK(lane.is_valid() == "");
  for (const Block& survivor : survivors) CHECK(survivor.is_whole());
}

TEST_CASE_FIXTURE(InLane,
                  "a survivor that dies gives its pages back at the next iteration, not before") {
  lane.enter();
  const Block survivor = session.allocate(16 * kBlock);
  lane.promote();
  memory.overwrite();
  std::thread([&] { lane.free(survivor.address); }).join();
  CHECK(memory.is_untouched());
  CHECK(survivor.is_whole());  // its pages are private still
  CHECK(lane.usage().living_promoted_bytes == 0);
  lane.enter();
  CHECK(survivor.address[0] == 0xFF);  // the lane shows there again
  CHECK(session.allocate(16 * kBlock).address == survivor.address);
  CHECK(lane.is_valid() == "");
}

TEST_CASE_FIXTURE(InLane, "a survivor that dies outside the lane leaves no memory behind") {
  lane.enter();
  const Block first = session.allocate(8 * kBlock), second = session.allocate(8 * kBlock);
  lane.promote();
  REQUIRE(lane.attach(memory.descriptor(), 4 * kBlock) == "");
  lane.free(first.address);
  lane.free(second.address);
  lane.enter();
  CHECK(is_readable(first.address));
  CHECK_FALSE(is_readable(first.address + 4 * kBlock));
  CHECK_FALSE(is_readable(second.address));
  CHECK(lane.is_valid() == "");
}

TEST_CASE_FIXTURE(InLane, "survivors of a lane that no other session wants stay in it") {
  lane.enter();
  const Block promoted = session.allocate(kBlock);
  lane.promote();
  lane.enter();
  const Block survivor = session.allocate(16 * kBlock - kBlock);
  REQUIRE(survivor.address != nullptr);
  lane.leave();
  lane.free(promoted.address);
  lane.enter();  // the lane cannot be laid out again around it
  CHECK(lane.is_valid() == "");
  CHECK(survivor.is_whole());
  lane.free(survivor.address);
  lane.leave();
  lane.enter();
  CHECK(lane.is_valid() == "");
  CHECK(session.allocate_all() == 16 * kBlock);
}

TEST_CASE("a lane changes only between iterations and with nothing alive in it") {
  const Memory memory(16 * kBlock), other(8 * kBlock);
  Session session(16 * kBlock);
  Lane& lane = session.lane;
  CHECK(lane.open(kBlock) == "a window of addresses is open already");
  CHECK(lane.attach(memory.descriptor(), 17 * kBlock) ==
        "a lane of 1114112 bytes does not fit into a window of 1048576 bytes");
  CHECK(lane.attach(other.descriptor(), 9 * kBlock) ==
        "the lane's memory has 524288 bytes, not 589824");
  CHECK(lane.attach(-1, kBlock) == "the lane's memory cannot be read: Bad file descriptor");
  REQUIRE(lane.attach(memory.descriptor(), 16 * kBlock) == "");
  lane.enter();
  CHECK(lane.attach(memory.descriptor(), kBlock) == "an iteration is using the lane");
  session.allocate(kBlock);
  lane.leave();
  CHECK(lane.detach() == "65536 bytes of this process are alive in the lane");
  lane.promote();
  CHECK(lane.attach(other.descriptor(), 8 * kBlock) == "");
  CHECK(lane.detach() == "");
  CHECK(lane.detach() == "");
  lane.enter();
  CHECK(lane.allocate(kBlock).address == nullptr);
  CHECK(lane.usage().overflows == 0);
  CHECK(lane.is_valid() == "");
}

TEST_CASE("the part of a lane that is used grows and shrinks") {
  const Memory memory(32 * kBlock);
  Session session(64 * kBlock);
  for (const size_t blocks : {8, 32, 3, 0, 12}) {
    REQUIRE(session.lane.attach(memory.descriptor(), blocks * kBlock) == "");
    session.lane.enter();
    CHECK(session.allocate_all() == blocks * kBlock);
    session.lane.promote();  // all of it survives for good
    CHECK(session.lane.is_valid() == "");
  }
}

TEST_CASE_FIXTURE(InLane, "survivors that cannot be copied stay in the lane, and it is reported") {
  lane.enter();
  const Block first = session.allocate(kBlock), gap = session.allocate(kBlock);
  const Block second = session.allocate(2 * kBlock);
  lane.free(gap.address);
  session.pages.copies_left = 1;
  CHECK_THROWS_AS(lane.promote(), PromotionFailed);
  CHECK(lane.is_valid() == "");
  CHECK(lane.survivor_bytes() == 2 * kBlock);
  CHECK(lane.detach() == "131072 bytes of this process are alive in the lane");
  session.pages.copies_left = 1;
  CHECK(lane.promote() == 2 * kBlock);
  memory.overwrite();
  CHECK(first.is_whole());
  CHECK(second.is_whole());
}

TEST_CASE("a lane that cannot be mapped is not used, and one that can in part is used in part") {
  const Memory memory(16 * kBlock);
  Session session(64 * kBlock);
  Lane& lane = session.lane;
  session.pages.maps_left = 0;
  CHECK(lane.attach(memory.descriptor(), 16 * kBlock) ==
        "the system cannot map a lane of 1048576 bytes");
  lane.enter();
  CHECK(lane.allocate(kBlock).address == nullptr);
  lane.leave();
  session.pages.maps_left = 1;
  REQUIRE(lane.attach(memory.descriptor(), 16 * kBlock) == "");
  lane.enter();
  session.allocate(kBlock);
  lane.promote();
  lane.enter();
  CHECK(session.allocate_all() == 15 * kBlock);  // the page that the survivor displaced is missing
  CHECK(lane.is_valid() == "");
  lane.promote();
  session.pages.maps_left = kUnlimitedCalls;
  lane.enter();
  CHECK(session.allocate_all() == 16 * kBlock);
  CHECK(lane.is_valid() == "");
}

TEST_CASE_FIXTURE(InLane, "the footprint is the size that a lane needs, wherever survivors are") {
  const auto iterate = [&](size_t bytes) {
    lane.enter();
    lane.free(session.allocate(bytes).address);
    lane.leave();
    return lane.usage().footprint;
  };
  CHECK(iterate(5 * kBlock) == 5 * kBlock);
  lane.enter();
  const Block survivor = session.allocate(2 * kBlock);
  lane.promote();
  CHECK(survivor.is_whole());
  CHECK(iterate(3 * kBlock) == 3 * kBlock);
}

TEST_CASE_FIXTURE(InLane, "an allocation that survives once is made elsewhere from then on") {
  for (int i = 0; i < 10; ++i) {
    lane.enter();
    const Block before = session.allocate(kBlock);
    const Lane::Place survivor = lane.allocate(kBlock);
    CHECK((survivor.address != nullptr) == (i == 0));
    CHECK((survivor.note != 0) == (i > 0));
    lane.free(before.address);
    CHECK((lane.promote() > 0) == (i == 0));
  }
  CHECK(lane.usage().expected_survivors == 9);
}

TEST_CASE(
    "an allocation that is expected to survive and dies again and again is not expected any more") {
  Predictor predictor;
  const auto iterate = [&](bool survives) {
    const auto birth = predictor.next(kBlock);
    const auto note = predictor.expect(birth);
    if (note == 0 && survives) predictor.survived(birth);
    if (note != 0 && !survives) predictor.died(note);
    predictor.end_iteration();
    if (note != 0 && survives)
      predictor.died(note);  // later than its iteration: it does not matter
    return note != 0;
  };
  CHECK_FALSE(iterate(true));
  for (int i = 0; i < 10; ++i) CHECK(iterate(true));
  CHECK(iterate(false));
  CHECK(iterate(true));
  int wrong = 0;
  while (iterate(false)) ++wrong;
  CHECK(wrong > 1);
  CHECK(wrong < 5);
  CHECK_FALSE(iterate(true));
  CHECK(iterate(true));
}

TEST_CASE("shapes without end are learned in bounded memory") {
  Predictor predictor;
  for (size_t bytes = 1; bytes < 100'000; ++bytes) {
    const auto birth = predictor.next(bytes);
    CHECK(predictor.expect(birth) == 0);
    predictor.survived(birth);
    predictor.end_iteration();
    CHECK(predictor.expect(predictor.next(bytes)) != 0);
  }
}

TEST_CASE_FIXTURE(InLane, "a forked child has all living blocks, and the parent its lane") {
  lane.enter();
  const Block promoted = session.allocate(kBlock);
  lane.promote();
  lane.enter();
  const Block alive = session.allocate(4 * kBlock), dead = session.allocate(kBlock);
  lane.free(dead.address);

  lane.before_fork();
  const pid_t child = fork();
  if (child == 0) {
    lane.after_fork_in_child();
    memory.overwrite();
    bool good = alive.is_whole() && promoted.is_whole() && lane.is_valid().empty();
    alive.write();
    good &= memory.is_untouched() && lane.allocate(kBlock).address == nullptr;
    good &= !is_readable(dead.address);
    void* hole = mmap(dead.address, kPage, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    good &= hole == MAP_FAILED;  // the addresses of the lane are reserved
    lane.free(alive.address);
    lane.free(promoted.address);
    lane.enter();
    good &= lane.allocate(kBlock).address == nullptr && lane.promote() == 0;
    good &= lane.is_valid().empty() && lane.survivor_bytes() == 0;
    _exit(good ? 0 : 1);
  }
  lane.after_fork_in_parent();
  CHECK(end_of(child) == 0);
  CHECK(alive.address[0] == 0xFF);  // the child overwrote the lane, and that is where it still is
  CHECK(lane.survivor_bytes() == 4 * kBlock);
  CHECK(promoted.is_whole());
  CHECK(lane.allocate(kBlock).address != nullptr);
  CHECK(lane.is_valid() == "");
}

TEST_CASE("no random path loses a byte") {
  std::mt19937 random(20);
  std::vector<std::unique_ptr<Memory>> memories;
  for (const size_t blocks : {16, 24})
    memories.push_back(std::make_unique<Memory>(blocks * kBlock));
  Memory* memory = memories[0].get();
  Session session(64 * kBlock, memory);
  Lane& lane = session.lane;
  std::vector<Block> alive;
  bool is_anothers = false;
  const auto below = [&](size_t n) { return random() % n; };
  const auto take_back = [&] {
    if (is_anothers) CHECK(memory->is_untouched());
    is_anothers = false;
  };
  const auto promote = [&] {
    const size_t survivors = lane.survivor_bytes();
    try {
      const size_t promoted = lane.promote();
      CHECK(promoted == survivors);
    } catch (const PromotionFailed&) {
      CHECK(lane.survivor_bytes() > 0);
    }
  };
  for (int step = 0; step < 100'000; ++step) {
    switch (below(16)) {
      case 0:
      case 1:
        take_back();
        lane.enter();
        break;
      case 2:
        lane.leave();
        break;
      case 3:
        session.pages.copies_left = below(8) > 0 ? kUnlimitedCalls : static_cast<int>(below(3));
        promote();
        if (is_anothers || lane.survivor_bytes() > 0) break;
        memory->overwrite();
        is_anothers = true;
        break;
      case 4:
        session.pages.maps_left = below(8) > 0 ? kUnlimitedCalls : static_cast<int>(below(3));
        if (is_anothers && below(4) == 0) {
          take_back();
          memory = memories[below(2)].get();
          const size_t bytes = below(memory->bytes() + 1);
          const bool attached = lane.attach(memory->descriptor(), bytes).empty();
          REQUIRE((attached || session.pages.maps_left <= 0));
        }
        break;
      case 5:  // all living blocks are whole
        for (const Block& block : alive) REQUIRE(block.is_whole());
        break;
      case 6:
      case 7:
      case 8:
      case 9:
      case 10:
      case 11: {
        const Block block = session.allocate(kBlock + below(3 * kBlock));
        if (block.address != nullptr) alive.push_back(block);
        break;
      }
      default:
        if (alive.empty()) break;
        std::swap(alive[below(alive.size())], alive.back());
        REQUIRE(alive.back().is_whole());
        lane.free(alive.back().address);
        alive.pop_back();
    }
    REQUIRE(lane.is_valid() == "");
  }
  MESSAGE(lane.usage().promoted_runs, " runs promoted, ", lane.usage().overflows, " overflows");
}

TEST_CASE("other threads free at any time, and allocate elsewhere") {
  Memory memory(32 * kBlock);
  Session session(128 * kBlock, &memory);
  Lane& lane = session.lane;
  std::mutex mutex;
  std::vector<Block> given;
  std::atomic<bool> is_over = false;
  std::atomic<int> wrong = 0;
  const auto others = [&] {
    while (!is_over) {
      if (lane.allocate(kBlock).address != nullptr) ++wrong;
      std::this_thread::yield();
      std::vector<Block> mine;
      {
        const std::lock_guard guard(mutex);
        mine.swap(given);
      }
      for (const Block& block : mine) {
        if (!block.is_whole()) ++wrong;
        lane.free(block.address);
      }
    }
  };
  std::thread first(others), second(others);
  std::mt19937 random(20);
  for (int iteration = 0; iteration < 300; ++iteration) {
    lane.enter();
    for (int i = 0; i < 20; ++i) {
      const Block block = session.allocate(kBlock + random() % kBlock);
      if (block.address == nullptr) continue;
      const std::lock_guard guard(mutex);
      given.push_back(block);
    }
    if (iteration % 3 > 0) lane.leave();
    if (iteration % 3 > 1) continue;
    lane.promote();
    memory.overwrite();
  }
  is_over = true;
  first.join();
  second.join();
  CHECK(wrong == 0);
  CHECK(lane.is_valid() == "");
}
