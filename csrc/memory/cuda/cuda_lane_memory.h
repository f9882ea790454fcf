#pragma once
#include <span>
#include <vector>

#include "memory/cuda/cuda_device.h"

namespace gpushare {

// The memory of one lane on a GPU, in chunks with a descriptor each. Only a process that uses the
// GPU can make it. It hands copies of the descriptors on, to others that map the lane and to the
// broker, which needs no GPU to keep it: a chunk lives as long as a descriptor, a handle or a
// mapping of it.
class CudaLaneMemory {
 public:
  // Rounded up to whole chunks, which must be what CudaPages has as pages. Raises
  // std::runtime_error; then nothing is left.
  CudaLaneMemory(const CudaDevice& device, size_t bytes,
                 size_t chunk_bytes = CudaDevice::kGranularity);
  CudaLaneMemory(const CudaLaneMemory&) = delete;
  CudaLaneMemory& operator=(const CudaLaneMemory&) = delete;
  ~CudaLaneMemory();

  std::span<const int> descriptors() const { return descriptors_; }

 private:
  CudaResult add_chunk(const CudaDevice& device, size_t chunk_bytes);
  void close_all();

  std::vector<int> descriptors_;
};

}  // namespace gpushare
