// A lane on a GPU that others overwrite whenever they have it: living blocks keep their bytes.
#include <doctest/doctest.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "session.h"

using namespace gpushare;

namespace {

constexpr int kLink = 3;         // the other process's end of the socket
constexpr size_t kChunks = 16;   // of most lanes here
constexpr size_t kWindow = 256;  // in chunks

// The memory of a lane, with a view of it as another session has one.
class Memory {
 public:
  Memory(const CudaDevice& device, size_t chunks)
      : memory_(device, chunks * kChunk), device_(device), chunks_(chunks) {
    std::vector<CudaHandle> handles;
    for (const int descriptor : descriptors()) {
      REQUIRE(device.import(descriptor, handles.emplace_back()) == kCudaSuccess);
    }
    view_ = device.reserve(bytes());
    REQUIRE(device.map(view_, handles, kChunk) == kCudaSuccess);
    for (const CudaHandle handle : handles) device.release(handle);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { device_.unmap_and_unreserve(view_, bytes()); }

  std::span<const int> descriptors() const { return memory_.descriptors(); }
  size_t bytes() const { return chunks_ * kChunk; }
  void overwrite() { std::memset(view(), 0xFF, bytes()); }
  bool is_untouched() const {
    return view()[0] == 0xFF && std::memcmp(view(), view() + 1, bytes() - 1) == 0;
  }

 private:
  unsigned char* view() const { return reinterpret_cast<unsigned char*>(view_); }

  CudaLaneMemory memory_;
  const CudaDevice& device_;
  size_t chunks_;
  CudaAddress view_ = 0;
};

void send_descriptors(int socket, std::span<const int> descriptors) {
  alignas(cmsghdr) char control[CMSG_SPACE(kChunks * sizeof(int))] = {};
  char byte = 0;
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  REQUIRE(sendmsg(socket, &message, 0) == 1);
}

std::vector<int> receive_descriptors(int socket) {
  alignas(cmsghdr) char control[CMSG_SPACE(kChunks * sizeof(int))] = {};
  char byte = 0;
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  REQUIRE(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  REQUIRE(header != nullptr);
  std::vector<int> descriptors((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  std::memcpy(descriptors.data(), CMSG_DATA(header), descriptors.size() * sizeof(int));
  return descriptors;
}

void tell(int socket) { REQUIRE(write(socket, "t", 1) == 1); }  // the other session has the turn
void wait_for(int socket) {
  char byte;
  REQUIRE(read(socket, &byte, 1) == 1);
}

// Starts this program again, with a socket to this one, as the session of the test case of that
// name.
class OtherProcess {
 public:
  explicit OtherProcess(const char* test_case) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    link_ = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], kLink);
    std::string only = std::string("--test-case=") + test_case;
    std::string unskipped = "--no-skip", quiet = "--minimal", program = "cuda_test";
    char* arguments[] = {program.data(), only.data(), unskipped.data(), quiet.data(), nullptr};
    REQUIRE(posix_spawn(&process_, "/proc/self/exe", &actions, nullptr, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;
  ~OtherProcess() {
    close(link_);
    int status = 0;
    waitpid(process_, &status, 0);
    CHECK(status == 0);
  }
  int link() const { return link_; }

 private:
  int link_ = -1;
  pid_t process_ = 0;
};

// A session that has a lane of kChunks chunks.
struct InLane {
  InLane() { REQUIRE(lane.attach(memory.descriptors(), memory.bytes()) == ""); }

  Balance balance;
  CudaSession session{kWindow * kChunk};
  Lane& lane = session.lane;
  Memory memory{session.device, kChunks};
};

}  // namespace

TEST_CASE("every thread allocates segments while an iteration runs, and none outside of one") {
  const Balance balance;
  CudaSession session(kWindow * kChunk);
  Lane& lane = session.lane;
  {
    const CudaLaneMemory memory(session.device, kChunks * kChunk);
    REQUIRE(lane.attach(memory.descriptors(), kChunks * kChunk) == "");
  }
  const auto allocated_in_a_thread = [&] {
    void* address = nullptr;
    std::thread([&] { address = lane.allocate(3 * kChunk).address; }).join();
    return address != nullptr;
  };
  CHECK(lane.allocate(kChunk).address == nullptr);
  lane.enter();
  CHECK(lane.allocate(kChunk).address != nullptr);
  CHECK(allocated_in_a_thread());
  CHECK(lane.allocate(kChunks * kChunk).address == nullptr);
  CHECK(lane.usage().overflows == 1);
  std::thread([&] { lane.leave(); }).join();
  CHECK(lane.allocate(kChunk).address == nullptr);
  CHECK_FALSE(allocated_in_a_thread());
  CHECK(lane.is_valid() == "");
}

TEST_CASE_FIXTURE(InLane, "segments that stay tell nothing about survivors, and are used again") {
  for (int iteration = 0; iteration < 10; ++iteration) {
    session.lane.enter();
    const Segment segment = session.allocate(4 * kChunk, 1);
    REQUIRE(segment.address != nullptr);
    session.lane.leave();
    session.free(segment);
  }
  CHECK(session.lane.usage().expected_survivors == 0);
  CHECK(session.lane.usage().footprint == 4 * kChunk);
}

TEST_CASE_FIXTURE(InLane, "a context switch without survivors makes no driver call but the wait") {
  session.lane.enter();
  const Segment segment = session.allocate(kChunks * kChunk, 1);
  for (int turn = 0; turn < 100; ++turn) {
    fake_driver::forget_calls();
    session.lane.leave();
    REQUIRE(session.device.synchronize() == kCudaSuccess);
    CHECK(fake_driver::calls() == fake_driver::Calls{{"cuCtxPushCurrent_v2", 1},
                                                     {"cuCtxSynchronize", 1},
                                                     {"cuCtxPopCurrent_v2", 1}});
    memory.overwrite();
    fake_driver::forget_calls();
    session.lane.enter();
    CHECK(fake_driver::calls().empty());
    segment.write();  // PyTorch still has it
  }
}

TEST_CASE_FIXTURE(InLane,
                  "a survivor costs some calls for each of its pages, and nothing for the others") {
  session.lane.enter();
  const Segment segment = session.allocate(kChunks * kChunk, 1);
  session.lane.trim(std::array{Extent{segment.address, 2 * kChunk}});
  fake_driver::forget_calls();
  CHECK(session.lane.promote() == 2 * kChunk);
  auto calls = fake_driver::calls();
  CHECK(calls["cuMemCreate"] == 2);
  CHECK(calls["cuMemRelease"] == 2);
  CHECK(calls["cuMemMap"] == 4);  // to be filled, and in their place
  CHECK(calls["cuMemSetAccess"] == 2);
  CHECK(calls["cuMemUnmap"] == 2);
  CHECK(calls["cuMemcpyDtoD_v2"] == 1);
  CHECK(calls["cuMemAddressReserve"] == 1);
  CHECK(calls["cuMemAddressFree"] == 1);
  CHECK(calls["cuCtxSynchronize"] == 4);
  fake_driver::forget_calls();
  session.lane.enter();  // the pages that they displaced show elsewhere
  calls = fake_driver::calls();
  CHECK(calls["cuMemMap"] == 2);
  CHECK(calls["cuMemSetAccess"] == 1);
  CHECK(calls["cuMemUnmap"] == 0);
  session.free(segment);
}

TEST_CASE_FIXTURE(
    InLane, "of a segment only the pages that are alive are promoted, and the rest is the lane's") {
  const size_t before = fake_driver::alive().bytes;
  lane.enter();
  const Segment seed = session.allocate(kChunks * kChunk, 1);
  lane.leave();
  const std::array living{Extent{seed.address + 3 * kChunk + 512, 512},
                          Extent{seed.address + 3 * kChunk + 2048, 512},
                          Extent{seed.address + 8 * kChunk - 512, 1024}};
  lane.trim(living);
  CHECK(lane.is_valid() == "");
  CHECK(lane.survivor_bytes() == 4 * kChunk);  // and the first one
  CHECK(lane.promote() == 4 * kChunk);
  CHECK(lane.usage().promoted_runs == 3);
  CHECK(fake_driver::alive().bytes == before + 4 * kChunk);
  memory.overwrite();
  CHECK(seed.is_whole(3 * kChunk, kChunk));
  CHECK(seed.is_whole(7 * kChunk, 2 * kChunk));
  lane.enter();
  CHECK(lane.room() == 11 * kChunk);  // from the last survivor to the pages that the four displaced
  std::vector<Segment> others;        // all of the lane, and some of it where the seed was
  for (size_t i = 0; i < kChunks; ++i) {
    others.push_back(session.allocate(kChunk, static_cast<unsigned char>(10 + i)));
    REQUIRE(others.back().address != nullptr);
  }
  CHECK(lane.room() == 0);
  CHECK(lane.allocate(kChunk).address == nullptr);
  CHECK(std::ranges::count(others, seed.address + kChunk, &Segment::address) == 1);
  CHECK(std::ranges::count(others, seed.address, &Segment::address) == 0);
  session.free(seed);
  CHECK(lane.usage().living_promoted_bytes == 0);
  for (const Segment& other : others) CHECK(other.is_whole());
  for (const Segment& other : others) session.free(other);
  lane.leave();
  lane.enter();  // everything is where it was
  CHECK(fake_driver::alive().bytes == before);
  CHECK(session.allocate(kChunks * kChunk, 1).address == seed.address);
  CHECK(lane.is_valid() == "");
}

TEST_CASE_FIXTURE(InLane,
                  "a trimmed segment keeps its first page, so that no other has its address") {
  lane.enter();
  const Segment first = session.allocate(4 * kChunk, 1), second = session.allocate(4 * kChunk, 2);
  lane.trim(std::array{Extent{second.address + kChunk, 1}, Extent{&balance, 8}});
  CHECK(lane.survivor_bytes() == 3 * kChunk);
  CHECK(lane.trimmed_bytes() == 3 * kChunk);
  CHECK(lane.is_valid() == "");
  while (const auto* other = session.allocate(kChunk, 3).address) {
    CHECK(other != first.address);
    CHECK(other != second.address);
  }
  session.free(second);
  session.free(first);
  CHECK(lane.trimmed_bytes() == 0);
  CHECK(lane.is_valid() == "");
}

TEST_CASE_FIXTURE(InLane, "the rest of a trimmed segment stays whole when others are trimmed") {
  lane.enter();
  const Segment first = session.allocate(4 * kChunk, 1);
  const std::array living{Extent{first.address + kChunk, 2 * kChunk}};
  lane.trim(living);
  fake_driver::set_capacity(0);  // there is no memory for it
  CHECK_THROWS_AS(lane.promote(), PromotionFailed);
  CHECK(lane.trimmed_bytes() == 3 * kChunk);
  lane.enter();
  const Segment second = session.allocate(4 * kChunk, 2);
  CHECK(lane.trimmed_bytes() == 3 * kChunk);
  lane.trim(std::array{Extent{second.address, 1}});
  CHECK(lane.survivor_bytes() == 4 * kChunk);
  fake_driver::set_capacity(size_t{1} << 30);
  CHECK(lane.promote() == 4 * kChunk);
  CHECK(lane.trimmed_bytes() == 0);
  memory.overwrite();
  CHECK(first.is_whole(kChunk, 2 * kChunk));
  CHECK(second.is_whole(0, kChunk));
  session.free(first);
  session.free(second);
  CHECK(lane.is_valid() == "");
}

TEST_CASE("a lane is as large as its chunks, and grows and shrinks with them") {
  const Balance balance;
  CudaSession session(kWindow * kChunk);
  const Memory memory(session.device, kChunks);
  CHECK(session.lane.attach(memory.descriptors(), memory.bytes() + 1) ==
        "the lane's memory has 33554432 bytes, not 33554433");
  for (const size_t chunks : {3, 16, 1, 7}) {
    const auto descriptors = memory.descriptors().first(chunks);
    REQUIRE(session.lane.attach(descriptors, chunks * kChunk) == "");
    session.lane.enter();
    const Segment segment = session.allocate(chunks * kChunk, 1);
    CHECK(segment.address != nullptr);
    CHECK(session.lane.allocate(kChunk).address == nullptr);
    session.free(segment);
    session.lane.leave();
    CHECK(session.lane.is_valid() == "");
  }
  CHECK(session.lane.attach(std::array{-1}, kChunk) ==
        "the lane's memory cannot be had: an error of the fake driver");
  CHECK(session.lane.detach() == "");
  CHECK(fake_driver::alive().bytes == memory.bytes());
}

TEST_CASE("memory of a lane that the GPU does not have is refused, and nothing of it stays") {
  const Balance balance;
  CudaSession session(kWindow * kChunk);
  fake_driver::set_capacity(4 * kChunk);
  CHECK_THROWS_WITH(CudaLaneMemory(session.device, 5 * kChunk),
                    "the memory of a lane cannot be made: out of memory");
  fake_driver::set_capacity(size_t{1} << 30);
}

TEST_CASE("the other session" * doctest::skip()) {
  const Balance balance;
  CudaSession session(kWindow * kChunk);
  Lane& lane = session.lane;
  const std::vector<int> descriptors = receive_descriptors(kLink);
  REQUIRE(lane.attach(descriptors, kChunks * kChunk) == "");
  for (const int descriptor : descriptors) close(descriptor);
  tell(kLink);
  for (int turn = 0; turn < 10; ++turn) {
    wait_for(kLink);
    lane.enter();
    const Segment all = session.allocate(kChunks * kChunk, 0xFF);
    REQUIRE(all.address != nullptr);
    session.free(all);
    lane.leave();
    tell(kLink);
  }
}

TEST_CASE("two processes use one lane in turn, and survivors in one keep their bytes") {
  const Balance balance;
  CudaSession session(kWindow * kChunk);
  const OtherProcess other("the other session");
  Lane& lane = session.lane;
  {
    const CudaLaneMemory memory(session.device, kChunks * kChunk);
    REQUIRE(lane.attach(memory.descriptors(), kChunks * kChunk) == "");
    send_descriptors(other.link(), memory.descriptors());
  }
  wait_for(other.link());
  CHECK(fake_driver::alive().bytes == kChunks * kChunk);
  for (int turn = 0; turn < 10; ++turn) {
    lane.enter();
    const Segment survivor = session.allocate(5 * kChunk, 1), dead = session.allocate(kChunk, 2);
    session.free(dead);
    lane.trim(std::array{Extent{survivor.address + kChunk, 3 * kChunk}});
    CHECK(lane.promote() == 4 * kChunk);
    tell(other.link());
    wait_for(other.link());
    CHECK(survivor.is_whole(kChunk, 3 * kChunk));
    CHECK(dead.address[0] == 0xFF);  // the lane shows there, and is the other's
    CHECK(survivor.end()[-1] == 0xFF);
    CHECK(fake_driver::alive().bytes == (kChunks + 4) * kChunk);
    session.free(survivor);
    CHECK(lane.is_valid() == "");
  }
  lane.enter();
  CHECK(fake_driver::alive().bytes == kChunks * kChunk);
}

// One process uses its lane from beginning to end; each step may be refused, and then all living
// blocks must be as they were.
namespace {

void live_through_a_lane() {
  CudaDevice device;
  if (!device.open(0).empty()) return;
  CudaPages pages(device);
  Lane lane(pages, Tenant::kSegments);
  if (!lane.open(kWindow * kChunk).empty()) return;
  std::optional<CudaLaneMemory> memory;
  try {
    memory.emplace(device, 4 * kChunk);
  } catch (const std::runtime_error&) {
    return;
  }
  if (!lane.attach(memory->descriptors(), 4 * kChunk).empty()) {
    CHECK(lane.is_valid() == "");
    return;
  }
  lane.enter();
  const Segment segment{static_cast<unsigned char*>(lane.allocate(4 * kChunk).address), 4 * kChunk,
                        7};
  REQUIRE(segment.address != nullptr);
  segment.write();
  lane.trim(std::array{Extent{segment.address, kChunk}, Extent{segment.end() - kChunk, kChunk}});
  const auto check = [&] {
    CHECK(segment.is_whole(0, kChunk));
    CHECK(segment.is_whole(3 * kChunk, kChunk));
    CHECK(lane.is_valid() == "");
  };
  try {
    const size_t promoted = lane.promote();
    CHECK(promoted == 2 * kChunk);
  } catch (const PromotionFailed&) {
    check();
    CHECK(lane.promote() > 0);
  }
  check();
  lane.enter();
  void* other = lane.allocate(2 * kChunk).address;
  if (other != nullptr) std::memset(other, 0xFF, 2 * kChunk);
  check();
  lane.free(segment.address);
  if (other != nullptr) lane.free(other);
  lane.leave();
  lane.enter();
  lane.leave();
  lane.enter();  // the next iteration makes up for anything that was refused once
  CHECK(lane.allocate(4 * kChunk).address != nullptr);
  CHECK(lane.is_valid() == "");
}

}  // namespace

TEST_CASE("each call of the driver may fail once: nothing is lost, and nothing leaks") {
  size_t nth = 0;
  do {
    ++nth;
    CAPTURE(nth);
    const Balance balance;
    fake_driver::fail(nth, 999);
    live_through_a_lane();
  } while (fake_driver::has_failed());
  fake_driver::fail(0, 0);
  CHECK(nth > 50);
}

TEST_CASE_FIXTURE(InLane, "no random path of a lane on a GPU loses a byte") {
  std::mt19937 random(20);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  struct Tensor {  // what is alive in a segment; all of it until a boundary
    Segment segment;
    size_t offset, bytes;
    bool is_whole() const { return segment.is_whole(offset, bytes); }
  };
  std::vector<Tensor> alive;
  const auto boundary = [&] {
    lane.leave();
    for (Tensor& tensor : alive) {
      if (tensor.bytes < tensor.segment.bytes) continue;
      tensor.offset = below(tensor.bytes);
      tensor.bytes = 1 + below(std::min(tensor.bytes - tensor.offset, 2 * kChunk));
    }
    std::vector<Extent> extents;
    for (const Tensor& tensor : alive) {
      extents.push_back({tensor.segment.address + tensor.offset, tensor.bytes});
    }
    std::ranges::sort(extents, {}, &Extent::begin);
    lane.trim(extents);
    const size_t nth = below(3) > 0 ? 0 : 1 + below(40);
    fake_driver::fail(nth, 999);
    try {
      lane.promote();
    } catch (const PromotionFailed&) {
      CHECK(lane.survivor_bytes() > 0);
    }
    if (lane.survivor_bytes() == 0) memory.overwrite();
    for (const Tensor& tensor : alive) REQUIRE(tensor.is_whole());
    if (lane.survivor_bytes() == 0) lane.enter();
    fake_driver::fail(0, 0);
  };
  for (int step = 0; step < 2'000; ++step) {
    if (below(8) == 0) {
      boundary();
    } else if (below(2) == 0) {
      const auto value = static_cast<unsigned char>(below(255));
      const Segment segment = session.allocate((1 + below(4)) * kChunk, value);
      if (segment.address == nullptr) continue;
      for (const Tensor& other : alive) REQUIRE(other.segment.address != segment.address);
      alive.push_back({segment, 0, segment.bytes});
    } else if (!alive.empty()) {
      std::swap(alive[below(alive.size())], alive.back());
      REQUIRE(alive.back().is_whole());
      session.free(alive.back().segment);
      alive.pop_back();
    }
    REQUIRE(lane.is_valid() == "");
  }
  MESSAGE(lane.usage().promoted_runs, " runs promoted, ", lane.usage().overflows, " overflows");
}
