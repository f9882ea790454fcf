#pragma once
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <vector>

#include "fake_driver.h"
#include "memory/cuda/cuda_device.h"
#include "memory/cuda/cuda_lane_memory.h"
#include "memory/cuda/cuda_pages.h"
#include "memory/lane/lane.h"

namespace gpushare {

constexpr size_t kChunk = CudaDevice::kGranularity;

// While it lives, it checks that all that is taken of the GPU and of the system is given back.
class Balance {
 public:
  Balance() = default;
  Balance(const Balance&) = delete;
  Balance& operator=(const Balance&) = delete;
  ~Balance() {
    CHECK(fake_driver::alive() == before_);
    CHECK(count_descriptors() == descriptors_);
  }

 private:
  static std::ptrdiff_t count_descriptors() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  }

  fake_driver::Alive before_ = fake_driver::alive();
  std::ptrdiff_t descriptors_ = count_descriptors();
};

// A segment of PyTorch's allocator with one value in all of it.
struct Segment {
  unsigned char* address = nullptr;
  size_t bytes = 0;
  unsigned char value = 0;

  unsigned char* end() const { return address + bytes; }
  void write() const { std::memset(address, value, bytes); }
  bool is_whole(size_t offset, size_t count) const {
    const unsigned char* first = address + offset;
    return *first == value && std::memcmp(first, first + 1, count - 1) == 0;
  }
  bool is_whole() const { return is_whole(0, bytes); }
};

// One process with its lane on the GPU.
struct CudaSession {
  explicit CudaSession(size_t window_bytes) {
    REQUIRE(device.open(0) == "");
    REQUIRE(lane.open(window_bytes) == "");
  }

  Segment allocate(size_t bytes, unsigned char value) {
    const Segment segment{static_cast<unsigned char*>(lane.allocate(bytes).address), bytes, value};
    if (segment.address != nullptr) segment.write();
    return segment;
  }
  void free(const Segment& segment) { lane.free(segment.address); }

  CudaDevice device;
  CudaPages pages{device};
  Lane lane{pages, Tenant::kSegments};
};

}  // namespace gpushare
