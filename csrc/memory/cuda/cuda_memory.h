#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>

#include "memory/cuda/cuda_device.h"
#include "memory/cuda/cuda_pages.h"
#include "memory/cuda/cuda_segments.h"
#include "memory/lane/lane.h"

namespace gpushare {

// The memory of this process on one GPU: its part of a lane, and its private segments. It says
// where each segment of PyTorch's allocator goes. Thread-safe once it is open.
class CudaMemory {
 public:
  // Segments of this size hold PyTorch's small tensors, up to 1 MiB: losses, statistics,
  // survivors. They are always private, so that none of them keeps a page of the lane alive.
  static constexpr size_t kSmallSegment = size_t{2} << 20;

  CudaMemory();

  // Functions that return a string return an empty one, or the sentence that says why not.

  // Expects this GPU, with a window of `window_bytes` addresses for lanes that are made of chunks
  // of this size. It uses nothing of the GPU before it is opened. Once; a repeated call with the
  // same values is harmless.
  [[nodiscard]] std::string expect(int ordinal, size_t window_bytes,
                                   size_t chunk_bytes = CudaDevice::kGranularity);
  // Opens the expected GPU, unless that was tried before; it happens by itself as soon as PyTorch
  // asks for memory of that GPU.
  [[nodiscard]] std::string open();
  bool is_of(int ordinal);

  const CudaDevice& device() const { return device_; }
  CudaPages& pages() { return pages_; }
  Lane& lane() { return lane_; }
  CudaSegments& segments() { return segments_; }

  // Allocates in the lane while an iteration runs, and in private memory otherwise and where the
  // lane has no room. Null where the GPU has none either.
  void* allocate(size_t bytes);
  void free(void* address, size_t bytes);
  // The segments of PyTorch's allocator that lie in the lane.
  size_t bytes_in_lane() const { return bytes_in_lane_; }

 private:
  struct Expected {
    int ordinal;
    size_t window_bytes;
    size_t chunk_bytes;
    bool operator==(const Expected&) const = default;
  };

  std::mutex opening_;
  std::optional<Expected> expected_;
  std::optional<std::string> opened_;  // the result of opening
  CudaDevice device_;
  CudaPages pages_;
  Lane lane_;
  CudaSegments segments_;
  std::atomic<size_t> bytes_in_lane_ = 0;
};

// The one object of the process; it is alive until the process ends, since PyTorch frees until
// then.
CudaMemory& cuda_memory();

}  // namespace gpushare

// torch.cuda.memory.CUDAPluggableAllocator finds these by name. A MemPool calls them for segments,
// in any thread. They act on the memory of the process on that device; if it has none there, the
// first says that there is no memory.
extern "C" {
[[gnu::visibility("default")]] void* gpushare_cuda_allocate(ssize_t bytes, int device,
                                                            void* stream);
[[gnu::visibility("default")]] void gpushare_cuda_free(void* address, size_t bytes, int device,
                                                       void* stream);
}
