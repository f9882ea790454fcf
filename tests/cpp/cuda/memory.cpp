// Tests where segments go, and that private ones leave the GPU and come back.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fake_runtime.h"
#include "memory/cuda/cuda_hook.h"
#include "memory/cuda/cuda_memory.h"
#include "session.h"

using namespace gpushare;

namespace {

constexpr size_t kPlenty = size_t{1} << 30;  // bytes of the fake GPU, unless a test says less

const std::string& directory() {
  static const std::string path = std::filesystem::temp_directory_path();
  return path;
}

// The private segments of one process.
struct Segments {
  Segments() { REQUIRE(device.open(0) == ""); }

  Segment allocate(size_t bytes, unsigned char value) {
    const Segment segment{static_cast<unsigned char*>(segments.allocate(bytes)), bytes, value};
    if (segment.address != nullptr) segment.write();
    return segment;
  }

  Balance balance;
  CudaDevice device;
  CudaSegments segments{device};
};

void* allocated_by_a_thread(CudaMemory& memory, size_t bytes) {
  void* address = nullptr;
  std::thread([&] { address = memory.allocate(bytes); }).join();
  return address;
}

}  // namespace

TEST_CASE_FIXTURE(
    Segments,
    "memory that is paged out leaves the GPU, and comes back a thousand times at its addresses") {
  const Segment segment = allocate(kChunk, 1);
  for (int i = 0; i < 1'000; ++i) {
    REQUIRE(segments.page_out(directory()) == "");
    REQUIRE(segments.bytes_out() == kChunk);
    REQUIRE(fake_driver::alive().bytes == 0);
    REQUIRE(segments.page_in() == "");
    REQUIRE(segments.bytes_out() == 0);
    REQUIRE(segment.is_whole());
    REQUIRE(segments.is_valid() == "");
  }
}

TEST_CASE_FIXTURE(Segments, "while some memory is out, segments are made and ended as before") {
  const Segment out = allocate(3 * kChunk + 1, 1), ended = allocate(kChunk, 2);
  REQUIRE(segments.page_out(directory()) == "");
  CHECK(segments.bytes_out() == 5 * kChunk);
  const Segment later = allocate(2 * kChunk, 3);
  CHECK(segments.bytes() == 7 * kChunk);
  CHECK(segments.free(ended.address));
  CHECK_FALSE(segments.free(ended.address));
  CHECK(segments.bytes_out() == 4 * kChunk);
  REQUIRE(segments.page_out(directory()) == "");  // segments that came later
  CHECK(segments.bytes_out() == 6 * kChunk);
  REQUIRE(segments.page_in() == "");
  CHECK(out.is_whole());
  CHECK(later.is_whole());
  CHECK(segments.is_valid() == "");
}

TEST_CASE_FIXTURE(Segments,
                  "segments that find no room on the GPU stay out, and nothing of them is lost") {
  const Segment first = allocate(2 * kChunk, 1), second = allocate(2 * kChunk, 2);
  REQUIRE(segments.page_out(directory()) == "");
  fake_driver::set_capacity(3 * kChunk);  // a neighbour has the rest
  CHECK(segments.page_in() == "4 MiB of the GPU's memory cannot be had again: out of memory");
  CHECK(segments.bytes_out() == 2 * kChunk);
  CHECK(segments.allocate(2 * kChunk) == nullptr);
  CHECK(segments.is_valid() == "");
  fake_driver::set_capacity(kPlenty);
  CHECK(segments.page_in() == "");
  CHECK(first.is_whole());
  CHECK(second.is_whole());
}

TEST_CASE_FIXTURE(Segments, "segments that cannot be written stay in") {
  CHECK(segments.page_out("/no/such/place") == "");  // there is nothing to write
  const Segment segment = allocate(kChunk, 1);
  CHECK(segments.page_out("/no/such/place") ==
        "no file can be made in /no/such/place: No such file or directory");
  CHECK(segments.bytes_out() == 0);
  CHECK(segment.is_whole());
}

TEST_CASE_FIXTURE(Segments, "another thread cancels paging out, and all is in") {
  std::vector<Segment> made;
  for (unsigned char i = 0; i < 16; ++i) made.push_back(allocate(kChunk, i));
  std::atomic<bool> is_over = false;
  std::thread other([&] {
    while (!is_over) segments.cancel();
  });
  std::string reason;
  while (reason.empty()) {
    reason = segments.page_out(directory());
    if (reason.empty()) REQUIRE(segments.page_in() == "");
  }
  is_over = true;
  other.join();
  CHECK(reason == "paging out was cancelled");
  CHECK(segments.bytes_out() == 0);
  for (const Segment& segment : made) CHECK(segment.is_whole());
}

TEST_CASE_FIXTURE(Segments, "other threads allocate and free segments while all go out and in") {
  const Segment kept = allocate(kChunk, 1);
  std::atomic<bool> is_over = false;
  const auto allocate_and_free = [&] {
    while (!is_over) segments.free(segments.allocate(kChunk));
  };
  std::thread first(allocate_and_free), second(allocate_and_free);
  for (int i = 0; i < 50; ++i) {
    CHECK(segments.page_out(directory()) == "");
    CHECK(segments.page_in() == "");
    CHECK(segments.is_valid() == "");
  }
  is_over = true;
  first.join();
  second.join();
  CHECK(kept.is_whole());
  CHECK(segments.bytes() == kChunk);
}

TEST_CASE("each call of the driver may fail once while segments move: nothing is lost") {
  size_t nth = 0;
  do {
    ++nth;
    CAPTURE(nth);
    Segments process;
    fake_driver::fail(nth, 999);
    const Segment first = process.allocate(2 * kChunk, 1), second = process.allocate(kChunk, 2);
    const auto is_whole = [](const Segment& segment) {
      return segment.address == nullptr || segment.is_whole();
    };
    if (!process.segments.page_out(directory()).empty()) CHECK(process.segments.bytes_out() == 0);
    CHECK(process.segments.is_valid() == "");
    if (!process.segments.page_in().empty()) {
      CHECK(process.segments.bytes_out() > 0);
      CHECK(process.segments.page_in() == "");
    }
    CHECK(process.segments.is_valid() == "");
    CHECK(is_whole(first));
    CHECK(is_whole(second));
    process.segments.free(first.address);
  } while (fake_driver::has_failed());
  fake_driver::fail(0, 0);
  CHECK(nth > 30);
}

TEST_CASE("large segments of an iteration are the lane's, and all others private") {
  const Balance balance;
  CudaMemory memory;
  REQUIRE(memory.expect(0, 64 * kChunk) == "");
  REQUIRE(memory.open() == "");
  {
    const CudaLaneMemory lane(memory.device(), 4 * kChunk);
    REQUIRE(memory.lane().attach(lane.descriptors(), 4 * kChunk) == "");
  }
  const auto is_in_lane = [&](void* address) {
    REQUIRE(address != nullptr);
    const bool is_in = memory.lane().owns(address);
    CHECK(is_in == (memory.lane().survivor_bytes() > 0));
    return is_in;
  };
  void* before = memory.allocate(3 * kChunk);
  CHECK_FALSE(is_in_lane(before));
  memory.lane().enter();
  void* small = memory.allocate(CudaMemory::kSmallSegment);
  CHECK_FALSE(is_in_lane(small));
  void* large = allocated_by_a_thread(memory, 3 * kChunk);  // as a backward pass does
  CHECK(is_in_lane(large));
  void* overflow = memory.allocate(2 * kChunk);
  CHECK_FALSE(memory.lane().owns(overflow));
  CHECK(memory.lane().usage().overflows == 1);
  CHECK(memory.segments().bytes() == (3 + 1 + 2) * kChunk);
  fake_driver::set_capacity(0);
  CHECK(memory.allocate(2 * kChunk) == nullptr);  // neither here nor there
  fake_driver::set_capacity(kPlenty);
  memory.lane().leave();
  CHECK(memory.lane().usage().footprint == 3 * kChunk);
  CHECK(memory.lane().usage().overflow_bytes == 2 * kChunk);
  CHECK(memory.bytes_in_lane() == 3 * kChunk);
  memory.free(large, 3 * kChunk);
  CHECK(memory.lane().survivor_bytes() == 0);
  CHECK(memory.bytes_in_lane() == 0);
  memory.free(overflow, 2 * kChunk);
  memory.free(small, CudaMemory::kSmallSegment);
  memory.free(before, 3 * kChunk);
  CHECK(memory.segments().bytes() == 0);
}

TEST_CASE("a lane of larger chunks is shared and promoted as one of small ones") {
  const Balance balance;
  constexpr size_t kLarge = 8 * kChunk;
  CudaMemory memory;
  REQUIRE(memory.expect(0, 16 * kLarge, kLarge) == "");
  REQUIRE(memory.open() == "");
  const CudaLaneMemory lane(memory.device(), 2 * kLarge, kLarge);
  CHECK(lane.descriptors().size() == 2);
  REQUIRE(memory.lane().attach(lane.descriptors(), 2 * kLarge) == "");
  memory.lane().enter();
  void* address = memory.allocate(kLarge + kChunk);
  const Segment segment{static_cast<unsigned char*>(address), kLarge + kChunk, 1};
  segment.write();
  memory.lane().trim(std::array{Extent{segment.end() - 1, 1}});
  CHECK(memory.lane().promote() == 2 * kLarge);
  CHECK(segment.is_whole(kLarge, kChunk));
  memory.free(segment.address, segment.bytes);
  CHECK(memory.lane().is_valid() == "");
}

TEST_CASE("the additional chunks of a lane are attached behind those that it has") {
  const Balance balance;
  CudaMemory memory;
  REQUIRE(memory.expect(0, 64 * kChunk) == "");
  REQUIRE(memory.open() == "");
  CudaPages& pages = memory.pages();
  Lane& lane = memory.lane();
  const CudaLaneMemory first(memory.device(), 2 * kChunk), more(memory.device(), 3 * kChunk);
  REQUIRE(pages.attach_from(0, first.descriptors()) == "");
  CHECK(lane.attach(3 * kChunk) ==
        "the lane's memory has 4194304 bytes, not " + std::to_string(3 * kChunk));
  REQUIRE(lane.attach(2 * kChunk) == "");
  REQUIRE(pages.attach_from(2, more.descriptors()) == "");
  REQUIRE(lane.attach(5 * kChunk) == "");
  lane.enter();
  const Segment all{static_cast<unsigned char*>(memory.allocate(5 * kChunk)), 5 * kChunk, 7};
  REQUIRE(all.address != nullptr);
  all.write();
  CHECK(lane.attach(kChunk) == "an iteration is using the lane");
  memory.free(all.address, all.bytes);
  lane.leave();
  fake_driver::fail(2, 999);
  CHECK(pages.attach_from(0, more.descriptors()) != "");
  CHECK(pages.attached() == 5);  // as it was
  REQUIRE(lane.attach(kChunk) == "");
  REQUIRE(pages.attach_from(1, {}) == "");
  CHECK(pages.attached() == 1);
  CHECK(lane.is_valid() == "");
}

TEST_CASE("PyTorch's calls reach the memory of the process on that GPU") {
  CHECK(gpushare_cuda_allocate(kChunk, 0, nullptr) == nullptr);
  CHECK(cuda_memory().open() == "no GPU is expected");
  REQUIRE(cuda_memory().expect(0, 64 * kChunk) == "");
  REQUIRE(cuda_memory().expect(0, 64 * kChunk) == "");
  CHECK(cuda_memory().expect(1, 64 * kChunk) ==
        "this process has lanes on GPU 0 already, and one process has them on one GPU alone");
  REQUIRE(cuda_memory().open() == "");
  REQUIRE(cuda_memory().open() == "");
  const Balance balance;
  CHECK(gpushare_cuda_allocate(kChunk, 1, nullptr) == nullptr);
  CHECK(gpushare_cuda_allocate(0, 0, nullptr) == nullptr);
  void* address = gpushare_cuda_allocate(kChunk, 0, nullptr);
  REQUIRE(address != nullptr);
  std::memset(address, 1, kChunk);
  gpushare_cuda_free(address, kChunk, 0, nullptr);
}

TEST_CASE("PyTorch's caching allocator gets private segments on our GPU, and others elsewhere") {
  void* before = nullptr;
  REQUIRE(c10_take_segment(&before, kChunk) == 0);
  REQUIRE(install_cuda_hook() == "");
  REQUIRE(install_cuda_hook() == "");
  REQUIRE(cuda_memory().expect(0, 64 * kChunk) == "");
  REQUIRE(cuda_memory().is_of(0));
  const Balance balance;
  void* ours = nullptr;
  REQUIRE(c10_take_segment(&ours, 3 * kChunk) == 0);
  CHECK(cuda_memory().segments().bytes() == 3 * kChunk);
  auto* const end = static_cast<std::byte*>(ours) + 3 * kChunk;
  CHECK(cuda_memory().segments().owns(end - 1));
  CHECK_FALSE(cuda_memory().segments().owns(end));
  cudaSetDevice(1);
  void* others = nullptr;
  REQUIRE(c10_take_segment(&others, kChunk) == 0);
  cudaSetDevice(0);
  CHECK(cuda_memory().segments().bytes() == 3 * kChunk);
  fake_driver::set_capacity(0);
  void* none = nullptr;
  CHECK(c10_take_segment(&none, kChunk) == kCudaOutOfMemory);
  fake_driver::set_capacity(kPlenty);
  for (void* segment : {before, ours, others}) CHECK(c10_end_segment(segment) == 0);
  CHECK(cuda_memory().segments().bytes() == 0);
}

TEST_CASE("what is for other processes is memory of the runtime on the current GPU, and counted") {
  REQUIRE(install_cuda_hook() == "");
  const Balance balance;
  CHECK(gpushare_cuda_allocate_shareable(0, 0, nullptr) == nullptr);
  CHECK(gpushare_cuda_allocate_shareable(kChunk, 1, nullptr) == nullptr);
  void* address = gpushare_cuda_allocate_shareable(kChunk, 0, nullptr);
  REQUIRE(address != nullptr);
  CHECK(shareable_bytes() == kChunk);
  CHECK_FALSE(cuda_memory().segments().owns(address));
  gpushare_cuda_free_shareable(address, kChunk, 0, nullptr);
  CHECK(shareable_bytes() == 0);
}

TEST_CASE("without a GPU there is no lane and no memory of one") {
  CudaMemory memory;
  CHECK(memory.lane().attach(std::array{0}, 0) == "no GPU is open");
  CHECK_THROWS_WITH(CudaLaneMemory(memory.device(), kChunk), "no GPU is open");
  CHECK_FALSE(memory.is_of(0));
}

TEST_CASE("a GPU that is not there, or cannot share, is reported in one sentence") {
  const Balance balance;
  CudaDevice device;
  CHECK(device.open(2) == "there is no such GPU: an error of the fake driver");
  CHECK(device.open(0, "no-such-library.so").starts_with("there is no CUDA driver here: "));
  for (size_t nth = 1; nth <= 6; ++nth) {  // up to the context
    fake_driver::fail(nth, 999);
    CHECK(device.open(0) != "");
    CHECK_FALSE(device.is_open());
    CHECK(fake_driver::has_failed());
  }
  CHECK(device.open(0) == "");
}
