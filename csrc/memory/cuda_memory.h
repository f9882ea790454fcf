#pragma once
#include <sys/types.h>

#include <cstddef>
#include <string>

#include "memory/cuda_device.h"
#include "memory/cuda_pages.h"
#include "memory/cuda_segments.h"
#include "memory/lane.h"

namespace gpushare {

// What this process has on one GPU: its part of a lane, and its private segments. It says where
// each segment of PyTorch's allocator goes. Thread-safe once it is open.
class CudaMemory {
 public:
  // Segments of this size hold PyTorch's small tensors, up to 1 MiB: losses, statistics, what
  // survives. They are always private, so that not one of them keeps a page of the lane alive.
  static constexpr size_t kSmallSegment = size_t{2} << 20;

  explicit CudaMemory(size_t chunk_bytes = CudaDevice::kGranularity);

  // Of this GPU, with a window of so many addresses for lanes. Once. Returns an empty string, or
  // the sentence that says why not.
  [[nodiscard]] std::string open(int ordinal, size_t window_bytes);
  bool is_of(int ordinal) const { return device_.is_open() && ordinal == ordinal_; }

  const CudaDevice& device() const { return device_; }
  Lane& lane() { return lane_; }
  CudaSegments& segments() { return segments_; }

  // In the lane while an iteration runs, and private otherwise and where the lane has no room. Null
  // where the GPU has none either.
  void* allocate(size_t bytes);
  void free(void* address);

 private:
  CudaDevice device_;
  int ordinal_ = -1;
  CudaPages pages_;
  Lane lane_;
  CudaSegments segments_;
};

// The process's; alive until the process ends, since PyTorch frees until then.
CudaMemory& cuda_memory();

}  // namespace gpushare

// For torch.cuda.memory.CUDAPluggableAllocator, which finds them by their names. In a MemPool it
// calls them for segments, of any thread. They act on what the process has on that device; where it
// has nothing there, the first says that there is no memory.
extern "C" {
[[gnu::visibility("default")]] void* gpushare_cuda_allocate(ssize_t bytes, int device,
                                                            void* stream);
[[gnu::visibility("default")]] void gpushare_cuda_free(void* address, size_t bytes, int device,
                                                       void* stream);
}
