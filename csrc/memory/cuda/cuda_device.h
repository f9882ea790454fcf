#pragma once
#include <span>
#include <string>

#include "memory/cuda/cuda_driver.h"

namespace gpushare {

// One GPU, as this process uses it: memory, addresses that show it, and copies. A function that
// returns a result leaves nothing behind if it fails. Thread-safe once it is open.
class CudaDevice {
 public:
  // The granularity of memory and of addresses alike, and the size of PyTorch's smallest segments.
  static constexpr size_t kGranularity = size_t{2} << 20;

  CudaDevice() = default;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice();

  // Empty, or the sentence that says why lanes are impossible on this GPU. It uses nothing of the
  // GPU.
  [[nodiscard]] std::string examine(int ordinal, const char* library = "libcuda.so.1");
  // Retains the primary context, the one that PyTorch uses: hundreds of MB of the GPU, where it is
  // not there yet. Returns an empty string, or the sentence that says why lanes are impossible.
  [[nodiscard]] std::string open(int ordinal, const char* library = "libcuda.so.1");
  bool is_open() const { return context_ != nullptr; }
  std::string because(const char* what, CudaResult result) const;  // a sentence

  // Reserves addresses that show nothing; 0 where there are none.
  CudaAddress reserve(size_t bytes) const;
  void unreserve(CudaAddress address, size_t bytes) const;

  // Allocates memory that is mapped nowhere; with `kDescriptor` it can be shared.
  CudaResult create(size_t bytes, CudaHandleType type, CudaHandle& handle) const;
  // The handle ends. Its memory ends when it is mapped nowhere any more, and no descriptor is
  // left.
  void release(CudaHandle handle) const;
  // A new descriptor, which another process may import.
  CudaResult share(CudaHandle handle, int& descriptor) const;
  CudaResult import(int descriptor, CudaHandle& handle) const;

  // Maps memory of `bytes` bytes each at adjacent addresses that showed nothing.
  CudaResult map(CudaAddress address, std::span<const CudaHandle> handles, size_t bytes_each) const;
  // Unmaps addresses; they must be those of whole handles. It waits for our work before it, which
  // may use memory that was freed already.
  CudaResult unmap(CudaAddress address, size_t bytes) const;
  // Unmaps the addresses and gives them back, for good.
  void unmap_and_unreserve(CudaAddress address, size_t bytes) const;

  // Returns when the GPU has done the work of this process.
  CudaResult synchronize() const;
  // Copies inside the GPU, from it, and to it; they are done when the function returns.
  CudaResult copy(CudaAddress to, CudaAddress from, size_t bytes) const;
  CudaResult read(void* to, CudaAddress from, size_t bytes) const;
  CudaResult write(CudaAddress to, const void* from, size_t bytes) const;

 private:
  class Current;  // while it lives, calls of this thread go to this GPU

  std::string find_device(int ordinal);
  std::string what_is_missing() const;
  CudaLocation location() const { return {CudaLocationType::kDevice, device_}; }
  CudaAllocationProperties properties(CudaHandleType type) const;
  CudaResult allow(CudaAddress address, size_t bytes) const;

  CudaDriver driver_;
  CudaOrdinal device_ = 0;
  CudaContext* context_ = nullptr;
};

}  // namespace gpushare
