#include "memory/cuda/cuda_memory.h"

namespace gpushare {

CudaMemory::CudaMemory() : pages_(device_), lane_(pages_, Tenant::kSegments), segments_(device_) {}

std::string CudaMemory::expect(int ordinal, size_t window_bytes, size_t chunk_bytes) {
  const std::lock_guard guard(opening_);
  const Expected expected{ordinal, window_bytes, chunk_bytes};
  if (!expected_) expected_ = expected;
  if (*expected_ == expected) return {};
  return "this process has lanes on GPU " + std::to_string(expected_->ordinal) +
         " already, and one process has them on one GPU alone";
}

std::string CudaMemory::open() {
  const std::lock_guard guard(opening_);
  if (opened_) return *opened_;
  if (!expected_) return "no GPU is expected";
  pages_.set_page_bytes(expected_->chunk_bytes);
  std::string reason = device_.open(expected_->ordinal);
  if (reason.empty()) reason = lane_.open(expected_->window_bytes);
  return *(opened_ = std::move(reason));
}

bool CudaMemory::is_of(int ordinal) {
  {
    const std::lock_guard guard(opening_);
    if (!expected_ || expected_->ordinal != ordinal) return false;
  }
  return open().empty();
}

// A segment that overflows the lane counts to the end of its iteration: PyTorch seldom ends one
// before.
void* CudaMemory::allocate(size_t bytes) {
  if (bytes <= kSmallSegment) return segments_.allocate(bytes);
  const Lane::Place place = lane_.allocate(bytes);
  if (place.address != nullptr) {
    bytes_in_lane_ += bytes;
    return place.address;
  }
  void* address = segments_.allocate(bytes);
  if (address != nullptr && place.note != 0) lane_.made(place.note, bytes);
  return address;
}

// Kernels of one stream may still use the memory that another stream gets next: cudaFree waits for
// them, and PyTorch relies on it.
void CudaMemory::free(void* address, size_t bytes) {
  if (!lane_.owns(address)) {
    segments_.free(address);
    return;
  }
  device_.synchronize();
  lane_.free(address);
  bytes_in_lane_ -= bytes;
}

CudaMemory& cuda_memory() {
  static CudaMemory* const memory = new CudaMemory;
  return *memory;
}

}  // namespace gpushare

void* gpushare_cuda_allocate(ssize_t bytes, int device, void*) {
  auto& memory = gpushare::cuda_memory();
  return memory.is_of(device) && bytes > 0 ? memory.allocate(static_cast<size_t>(bytes)) : nullptr;
}

void gpushare_cuda_free(void* address, size_t bytes, int device, void*) {
  auto& memory = gpushare::cuda_memory();
  if (memory.is_of(device)) memory.free(address, bytes);
}
