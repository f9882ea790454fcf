#pragma once
#include <span>
#include <string>

#include "memory/cuda/cuda_driver.h"

namespace gpushare {

// One GPU, as this process uses it: memory, addresses that show it, and copies. What returns a
// result leaves nothing behind where it fails. Thread-safe once it is open.
class CudaDevice {
 public:
  // Of memory and of addresses alike, and the size of PyTorch's smallest segments.
  static constexpr size_t kGranularity = size_t{2} << 20;

  CudaDevice() = default;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice();

  // Empty, or the sentence that says why lanes are impossible on this GPU. Takes nothing of it.
  [[nodiscard]] std::string examine(int ordinal, const char* library = "libcuda.so.1");
  // Retains the primary context, the one that PyTorch uses: hundreds of MB of the GPU, where it is
  // not there yet. Returns an empty string, or the sentence that says why lanes are impossible.
  [[nodiscard]] std::string open(int ordinal, const char* library = "libcuda.so.1");
  bool is_open() const { return context_ != nullptr; }
  std::string because(const char* what, CudaResult result) const;  // a sentence

  // Addresses that show nothing; 0 where there are none.
  CudaAddress reserve(size_t bytes) const;
  void unreserve(CudaAddress address, size_t bytes) const;

  // Memory that shows nowhere; with `kDescriptor` it can be shared.
  CudaResult create(size_t bytes, CudaHandleType type, CudaHandle& handle) const;
  // The handle ends. Its memory does when it shows nowhere any more, and no descriptor is left.
  void release(CudaHandle handle) const;
  // A new descriptor, which another process may import.
  CudaResult share(CudaHandle handle, int& descriptor) const;
  CudaResult import(int descriptor, CudaHandle& handle) const;

  // Memory of so many bytes each shows at addresses side by side that showed nothing.
  CudaResult map(CudaAddress address, std::span<const CudaHandle> handles, size_t bytes_each) const;
  // Addresses show nothing any more; they must be those of whole handles. Waits for our work
  // before, which may use what was freed already.
  CudaResult unmap(CudaAddress address, size_t bytes) const;
  // Both at once, for good.
  void unmap_and_unreserve(CudaAddress address, size_t bytes) const;

  // Returns when the GPU has done the work of this process.
  CudaResult synchronize() const;
  // Copies, done when they return: inside the GPU, from it, and to it.
  CudaResult copy(CudaAddress to, CudaAddress from, size_t bytes) const;
  CudaResult read(void* to, CudaAddress from, size_t bytes) const;
  CudaResult write(CudaAddress to, const void* from, size_t bytes) const;

 private:
  class Current;  // as long as it lives, calls of this thread go to this GPU

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
