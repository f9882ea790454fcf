#include "memory/cuda/cuda_lane_memory.h"

#include <unistd.h>

#include <stdexcept>

namespace gpushare {

CudaLaneMemory::CudaLaneMemory(const CudaDevice& device, size_t bytes, size_t chunk_bytes) {
  if (!device.is_open()) throw std::runtime_error("no GPU is open");
  for (size_t made = 0; made < bytes; made += chunk_bytes) {
    const CudaResult result = add_chunk(device, chunk_bytes);
    if (result == kCudaSuccess) continue;
    close_all();
    throw std::runtime_error(device.because("the memory of a lane cannot be made", result));
  }
}

CudaLaneMemory::~CudaLaneMemory() { close_all(); }

// The descriptor keeps the chunk, so the handle may end.
CudaResult CudaLaneMemory::add_chunk(const CudaDevice& device, size_t chunk_bytes) {
  CudaHandle handle = 0;
  CudaResult result = device.create(chunk_bytes, CudaHandleType::kDescriptor, handle);
  if (result != kCudaSuccess) return result;
  int descriptor = -1;
  result = device.share(handle, descriptor);
  if (result == kCudaSuccess) descriptors_.push_back(descriptor);
  device.release(handle);
  return result;
}

void CudaLaneMemory::close_all() {
  for (const int descriptor : descriptors_) close(descriptor);
}

}  // namespace gpushare
