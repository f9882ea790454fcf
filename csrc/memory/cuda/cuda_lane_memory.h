#pragma once
#include <span>
#include <vector>

#include "memory/cuda/cuda_device.h"

namespace gpushare {

// The memory of one lane on a GPU, in chunks with a descriptor each. Only a process that uses the
// GPU can make it. It sends copies of the descriptors to others that map the lane, and to the
// broker, which needs no GPU to keep it: a chunk lives as long as a descriptor, a handle or a
// mapping of it.
class CudaLaneMemory {
 public:
  // The size is rounded up to whole chunks, which must be the pages of CudaPages. Raises
  // std::runtime_error; then nothing is left behind.
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
