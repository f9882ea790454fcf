// Two processes claim the two ends of one co-lane, and are killed at any time.
#include "memory/co_lane/ledger.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "child_process.h"
#include "claims/chunk.h"
#include "memory/co_lane/held_end.h"

using namespace gpushare;

namespace {

constexpr Chunks kBudget = 16;
constexpr double kLongestWait = 20;  // seconds

struct Descriptor {
  int number = Ledger::make();
  ~Descriptor() { close(number); }
};

// The chunks that the processes own, as they see it themselves.
struct OwnedChunks {
  std::atomic<int> owners[kBudget];
  std::atomic<int> wrong, iterations;
};

OwnedChunks* shared_lane() {
  void* memory =
      mmap(nullptr, sizeof(OwnedChunks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  return static_cast<OwnedChunks*>(memory);
}

int chunk_of(int end, Chunks chunk) {
  return static_cast<int>(end == 0 ? chunk : kBudget - 1 - chunk);
}

// A process at one end: it takes chunks, writes its name into them, and gives them back.
class Claimant {
 public:
  // If `other_dies`, a chunk may have the other's name when this process takes it; a living process
  // notices that itself.
  Claimant(OwnedChunks& lane, Ledger& ledger, unsigned seed, bool other_dies = false)
      : lane_(lane), ledger_(ledger), random_(seed), other_dies_(other_dies) {}

  void iterate() {
    const Chunks peak = 1 + random_() % kBudget;
    const Chunks said = random_() % 4 == 0 ? 1 + random_() % peak : peak;
    ledger_.change([&](Claims& claims) { claims.begin(ledger_.end(), said, kBudget); });
    for (Chunks want = 1; want <= peak; ++want) extend(want);
    for (Chunks to = peak; to-- > 0;) shrink(to);
    ledger_.change([&](Claims& claims) { claims.end(ledger_.end()); });
    ++lane_.iterations;
  }

 private:
  void extend(Chunks want) {
    for (;;) {
      Claims::Answer answer = Claims::Answer::kWait;
      ledger_.change([&](Claims& claims) { answer = claims.claim(ledger_.end(), want, kBudget); });
      if (answer == Claims::Answer::kGranted) break;
      if (answer == Claims::Answer::kSpill) {
        for (Chunks chunk = 0; chunk < had_; ++chunk) write(chunk, 0);
        spilled_ = std::max(spilled_, had_);
        had_ = 0;
        want = std::max(want, spilled_);
        ledger_.change([&](Claims& claims) { claims.spilled(ledger_.end()); });
      } else {
        ledger_.await(want, kLongestWait);
      }
    }
    for (; had_ < want; ++had_) write(had_, 1 + ledger_.end());
    spilled_ = 0;
  }

  void shrink(Chunks to) {
    for (; had_ > to; --had_) write(had_ - 1, 0);
    ledger_.change([&](Claims& claims) {
      claims.shrink(ledger_.end(), to);
      claims.lower_bound(ledger_.end(), to);
    });
  }

  void write(Chunks chunk, int name) {
    const int own = 1 + ledger_.end();
    const int before = lane_.owners[chunk_of(ledger_.end(), chunk)].exchange(name);
    const bool is_free = before == 0 || (other_dies_ && before != own);
    if (name == 0 ? before != own : !is_free) ++lane_.wrong;
  }

  OwnedChunks& lane_;
  Ledger& ledger_;
  std::mt19937 random_;
  const bool other_dies_;
  Chunks had_ = 0, spilled_ = 0;
};

}  // namespace

TEST_CASE("ledger: two processes never have one chunk, whatever they said") {
  const Descriptor descriptor;
  OwnedChunks& lane = *shared_lane();
  pid_t children[2];
  for (int end = 0; end < 2; ++end) {
    children[end] = process([&] {
      Ledger ledger;
      if (!ledger.open(descriptor.number, end, kBudget).empty()) _exit(1);
      Claimant member(lane, ledger, static_cast<unsigned>(end));
      for (int i = 0; i < 2000; ++i) member.iterate();
    });
  }
  for (const pid_t child : children) CHECK(end_of(child) == 0);
  CHECK(lane.wrong == 0);
  CHECK(lane.iterations == 4000);
}

TEST_CASE("ledger: a process that is killed at any instruction leaves its end to the next") {
  const Descriptor descriptor;
  OwnedChunks& lane = *shared_lane();
  const pid_t steady = process([&] {
    Ledger ledger;
    if (!ledger.open(descriptor.number, 0, kBudget).empty()) _exit(1);
    Claimant member(lane, ledger, 7, true);
    for (;;) member.iterate();
  });
  std::mt19937 random(11);
  for (unsigned kill_number = 0; kill_number < 60; ++kill_number) {
    const pid_t victim = process([&] {
      Ledger ledger;
      if (!ledger.open(descriptor.number, 1, kBudget).empty()) _exit(1);
      Claimant member(lane, ledger, kill_number);
      for (;;) member.iterate();
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    kill(victim, SIGKILL);
    CHECK(WIFSIGNALED(end_of(victim)));
    const int before = lane.iterations;
    for (int i = 0; i < 20'000 && lane.iterations < before + 2; ++i) usleep(1000);
    REQUIRE(lane.iterations >= before + 2);  // no wait for a dead process
    for (auto& owner : lane.owners) {        // its chunks are those of the one that is left
      int name = 2;
      owner.compare_exchange_strong(name, 0);
    }
  }
  kill(steady, SIGKILL);
  end_of(steady);
  CHECK(lane.wrong == 0);
}

TEST_CASE("ledger: an end belongs to one process, and is free when that has ended") {
  const Descriptor descriptor;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t owner = process([&] {
    Ledger ledger;
    const bool is_open = ledger.open(descriptor.number, 0, kBudget).empty();
    ledger.change([](Claims& claims) {
      claims.begin(0, 9, kBudget);
      claims.claim(0, 9, kBudget);
    });
    if (write(ready[1], is_open ? "y" : "n", 1) == 1) pause();
  });
  char answer = 0;
  REQUIRE(read(ready[0], &answer, 1) == 1);
  CHECK(answer == 'y');
  Ledger same, other;
  CHECK(same.open(descriptor.number, 0, kBudget) == "another process has this end of the co-lane");
  REQUIRE(other.open(descriptor.number, 1, kBudget) == "");
  CHECK(other.look().extent(0) == 9);
  CHECK_FALSE(other.reap());
  other.close();
  kill(owner, SIGKILL);
  end_of(owner);
  REQUIRE(same.open(descriptor.number, 0, kBudget) == "");
  CHECK(same.look().extent(0) == 0);
  close(ready[0]);
  close(ready[1]);
}

TEST_CASE("ledger: an end stays its process's when other descriptors of the ledger are closed") {
  const Descriptor descriptor;
  Ledger ledger;
  const int given = dup(descriptor.number);
  REQUIRE(ledger.open(given, 0, kBudget) == "");
  close(given);
  ledger.change([](Claims& claims) { claims.begin(0, 9, kBudget); });
  const pid_t neighbour = process([&] {
    Ledger other;
    const bool is_open = other.open(descriptor.number, 1, kBudget).empty();
    _exit(is_open && !other.reap() && other.look().is_inside(0) ? 0 : 1);
  });
  CHECK(end_of(neighbour) == 0);
}

TEST_CASE("ledger: what cannot be one is refused") {
  Ledger ledger;
  const Descriptor descriptor;
  CHECK(ledger.open(descriptor.number, 0, 0) == "a co-lane has 1 to 32767 chunks");
  CHECK(ledger.open(descriptor.number, 0, 40'000) == "a co-lane has 1 to 32767 chunks");
  const int file = memfd_create("none", MFD_CLOEXEC);
  CHECK(ledger.open(file, 0, kBudget) == "this is no ledger of a co-lane");
  close(file);
  CHECK_FALSE(ledger.is_open());
}

TEST_CASE("ledger: a signal ends a wait") {
  const Descriptor descriptor;
  struct sigaction quiet = {}, before = {};
  quiet.sa_handler = [](int) {};
  sigaction(SIGUSR1, &quiet, &before);
  Ledger ledger;
  REQUIRE(ledger.open(descriptor.number, 0, kBudget) == "");
  const pid_t elder = process([&] {
    Ledger its;
    if (!its.open(descriptor.number, 1, kBudget).empty()) _exit(1);
    its.change([](Claims& claims) { claims.begin(1, kBudget, kBudget); });
    for (;;) {
      usleep(10'000);
      kill(getppid(), SIGUSR1);
    }
  });
  while (!ledger.look().is_inside(1)) usleep(1000);
  ledger.change([](Claims& claims) { claims.begin(0, 4, kBudget); });
  CHECK(ledger.await(4, kLongestWait) == Ledger::Wait::kSignal);
  kill(elder, SIGKILL);
  end_of(elder);
  CHECK(ledger.await(4, kLongestWait) == Ledger::Wait::kMayGoOn);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_CASE("ledger: between turns the next process may take an end") {
  const Descriptor descriptor;
  Ledger before, after;
  REQUIRE(before.open(descriptor.number, 0, kBudget) == "");
  before.pass_on();
  REQUIRE(after.open(descriptor.number, 0, kBudget) == "");
  CHECK_FALSE(before.take_up());
  after.change([](Claims& claims) { claims.begin(0, 9, kBudget); });
  before.close();  // which changes nothing of what the other one has
  CHECK(after.look().is_inside(0));
  after.change([](Claims& claims) { claims.end(0); });
  after.pass_on();
  CHECK(after.take_up());
}

TEST_CASE("ledger: what a killed process has left is gone when the next one takes its end up") {
  const Descriptor descriptor;
  Ledger ledger;
  REQUIRE(ledger.open(descriptor.number, 0, kBudget) == "");
  ledger.pass_on();
  const pid_t next = process([&] {
    Ledger its;
    if (!its.open(descriptor.number, 0, kBudget).empty()) _exit(1);
    its.change([](Claims& claims) { claims.begin(0, 9, kBudget); });
    pause();
  });
  while (!ledger.look().is_inside(0)) usleep(1000);
  CHECK_FALSE(Ledger::reap(descriptor.number, 0));
  CHECK_FALSE(ledger.take_up());
  kill(next, SIGKILL);
  end_of(next);
  SUBCASE("by itself") {}
  SUBCASE("after another process has seen it") { CHECK(Ledger::reap(descriptor.number, 0)); }
  REQUIRE(ledger.take_up());
  CHECK_FALSE(ledger.look().is_inside(0));
}

TEST_CASE("ledger: an end is held for a process until that has opened the ledger") {
  const Descriptor descriptor;
  const size_t lane_bytes = kBudget * kLeastChunk;
  HeldEnd held;
  REQUIRE(held.open(descriptor.number, 0, 3 * kLeastChunk + 1, lane_bytes) == "");
  Ledger other, own, stranger;
  REQUIRE(other.open(descriptor.number, 1, kBudget) == "");
  CHECK(other.look().extent(0) == 4);
  CHECK(other.look().bound(0) == 4);
  other.change([](Claims& claims) { claims.begin(1, kBudget, kBudget); });
  CHECK(other.look().elder() == 0);
  CHECK_FALSE(other.reap());
  CHECK(stranger.open(descriptor.number, 0, kBudget) ==
        "another process has this end of the co-lane");
  const int received = dup(held.descriptor());
  REQUIRE(own.open(received, 0, kBudget) == "");
  CHECK_FALSE(own.look().is_inside(0));
  own.change([](Claims& claims) { claims.begin(0, 7, kBudget); });
  held.release();
  CHECK(own.look().bound(0) == 7);
  close(received);
  CHECK(own.look().bound(0) == 7);
}

TEST_CASE("ledger: an end that is held is free when its turn or its process has ended") {
  const Descriptor descriptor;
  const size_t lane_bytes = kBudget * kLeastChunk;
  HeldEnd held;
  REQUIRE(held.open(descriptor.number, 0, lane_bytes, lane_bytes) == "");
  Ledger other;
  REQUIRE(other.open(descriptor.number, 1, kBudget) == "");
  const int received = dup(held.descriptor());
  SUBCASE("its turn has ended, and it has not even looked") { held.release(); }
  SUBCASE("its process uses nothing of the lane") { Ledger::let_go(received, 0); }
  if (other.look().is_inside(0)) CHECK(other.reap());
  CHECK_FALSE(other.look().is_inside(0));
  close(received);
}

TEST_CASE("ledger: a process that has no end can spoil it for both") {
  const Descriptor descriptor;
  Ledger ledger;
  REQUIRE(ledger.open(descriptor.number, 0, kBudget) == "");
  CHECK(ledger.is_whole());
  CHECK(Ledger::is_whole(descriptor.number));
  Ledger::spoil(descriptor.number);
  CHECK_FALSE(ledger.is_whole());
  CHECK_FALSE(Ledger::is_whole(descriptor.number));
}
