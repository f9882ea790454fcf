#include "memory/cuda/cuda_device.h"

#include <cstdint>

namespace gpushare {
namespace {

// A call that gives something back is tried again if it fails, since no caller could handle the
// failure.
template <class F>
void insist(F call) {
  if (call() != kCudaSuccess) call();
}

}  // namespace

class CudaDevice::Current {
 public:
  explicit Current(const CudaDevice& device)
      : driver_(device.driver_), result_(driver_.cuCtxPushCurrent_v2(device.context_)) {}
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    CudaContext* popped = nullptr;
    if (result_ == kCudaSuccess) insist([&] { return driver_.cuCtxPopCurrent_v2(&popped); });
  }
  CudaResult result() const { return result_; }

 private:
  const CudaDriver& driver_;
  CudaResult result_;
};

CudaDevice::~CudaDevice() {
  if (is_open()) insist([&] { return driver_.cuDevicePrimaryCtxRelease_v2(device_); });
}

std::string CudaDevice::open(int ordinal, const char* library) {
  if (is_open()) return "a GPU is open already";
  std::string reason = examine(ordinal, library);
  if (!reason.empty()) return reason;
  CudaContext* context = nullptr;
  const CudaResult result = driver_.cuDevicePrimaryCtxRetain(&context, device_);
  if (result != kCudaSuccess) return because("the GPU cannot be used", result);
  context_ = context;
  return {};
}

std::string CudaDevice::examine(int ordinal, const char* library) {
  std::string reason = driver_.find(library);
  if (reason.empty()) reason = find_device(ordinal);
  return reason.empty() ? what_is_missing() : reason;
}

std::string CudaDevice::find_device(int ordinal) {
  CudaResult result = driver_.cuInit(0);
  if (result == kCudaSuccess) result = driver_.cuDeviceGet(&device_, ordinal);
  return result == kCudaSuccess ? "" : because("there is no such GPU", result);
}

std::string CudaDevice::what_is_missing() const {
  for (const int attribute : {kCudaVirtualMemorySupported, kCudaDescriptorsSupported}) {
    int value = 0;
    const CudaResult result = driver_.cuDeviceGetAttribute(&value, attribute, device_);
    if (result != kCudaSuccess) return because("the GPU does not say what it can do", result);
    if (value == 0) return "this GPU cannot share memory between processes";
  }
  const auto wanted = properties(CudaHandleType::kDescriptor);
  size_t granularity = 0;
  const CudaResult result =
      driver_.cuMemGetAllocationGranularity(&granularity, &wanted, CudaGranularity::kMinimum);
  if (result != kCudaSuccess)
    return because("the GPU does not say how large its pages are", result);
  if (granularity == 0 || kGranularity % granularity != 0) {
    return "this GPU's pages have " + std::to_string(granularity) + " bytes";
  }
  return {};
}

std::string CudaDevice::because(const char* what, CudaResult result) const {
  const char* sentence = nullptr;
  driver_.cuGetErrorString(result, &sentence);
  const std::string reason =
      sentence == nullptr ? "error " + std::to_string(result) : std::string(sentence);
  return std::string(what) + ": " + reason;
}

CudaAllocationProperties CudaDevice::properties(CudaHandleType type) const {
  return {CudaAllocationType::kPinned, type, location(), nullptr, 0, 0, 0, {}};
}

// --- addresses and memory

CudaAddress CudaDevice::reserve(size_t bytes) const {
  CudaAddress address = 0;
  const CudaResult result = driver_.cuMemAddressReserve(&address, bytes, kGranularity, 0, 0);
  return result == kCudaSuccess ? address : 0;
}

void CudaDevice::unreserve(CudaAddress address, size_t bytes) const {
  insist([&] { return driver_.cuMemAddressFree(address, bytes); });
}

CudaResult CudaDevice::create(size_t bytes, CudaHandleType type, CudaHandle& handle) const {
  const auto wanted = properties(type);
  return driver_.cuMemCreate(&handle, bytes, &wanted, 0);
}

void CudaDevice::release(CudaHandle handle) const {
  insist([&] { return driver_.cuMemRelease(handle); });
}

CudaResult CudaDevice::share(CudaHandle handle, int& descriptor) const {
  return driver_.cuMemExportToShareableHandle(&descriptor, handle, CudaHandleType::kDescriptor, 0);
}

CudaResult CudaDevice::import(int descriptor, CudaHandle& handle) const {
  auto* const as_pointer = reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor));
  return driver_.cuMemImportFromShareableHandle(&handle, as_pointer, CudaHandleType::kDescriptor);
}

CudaResult CudaDevice::map(CudaAddress address, std::span<const CudaHandle> handles,
                           size_t bytes_each) const {
  CudaResult result = kCudaSuccess;
  size_t mapped = 0;
  for (const CudaHandle handle : handles) {
    result = driver_.cuMemMap(address + mapped, bytes_each, 0, handle, 0);
    if (result != kCudaSuccess) break;
    mapped += bytes_each;
  }
  if (result == kCudaSuccess) result = allow(address, mapped);
  if (result != kCudaSuccess && mapped > 0) driver_.cuMemUnmap(address, mapped);
  return result;
}

CudaResult CudaDevice::allow(CudaAddress address, size_t bytes) const {
  const CudaAccessDescription access{location(), CudaAccess::kReadWrite};
  return driver_.cuMemSetAccess(address, bytes, &access, 1);
}

CudaResult CudaDevice::unmap(CudaAddress address, size_t bytes) const {
  const CudaResult result = synchronize();
  return result == kCudaSuccess ? driver_.cuMemUnmap(address, bytes) : result;
}

void CudaDevice::unmap_and_unreserve(CudaAddress address, size_t bytes) const {
  insist([&] { return unmap(address, bytes); });
  unreserve(address, bytes);
}

// --- work

CudaResult CudaDevice::synchronize() const {
  const Current current(*this);
  return current.result() == kCudaSuccess ? driver_.cuCtxSynchronize() : current.result();
}

// The driver may return from a copy inside the GPU before the copy is done, and runs it in parallel
// to streams that do not synchronize with others.
CudaResult CudaDevice::copy(CudaAddress to, CudaAddress from, size_t bytes) const {
  const Current current(*this);
  CudaResult result = current.result();
  if (result == kCudaSuccess) result = driver_.cuCtxSynchronize();
  if (result == kCudaSuccess) result = driver_.cuMemcpyDtoD_v2(to, from, bytes);
  return result == kCudaSuccess ? driver_.cuCtxSynchronize() : result;
}

CudaResult CudaDevice::read(void* to, CudaAddress from, size_t bytes) const {
  const Current current(*this);
  CudaResult result = current.result();
  if (result == kCudaSuccess) result = driver_.cuCtxSynchronize();
  return result == kCudaSuccess ? driver_.cuMemcpyDtoH_v2(to, from, bytes) : result;
}

// Synchronizes, since a copy from memory that is not pinned may return before the last bytes are
// there.
CudaResult CudaDevice::write(CudaAddress to, const void* from, size_t bytes) const {
  const Current current(*this);
  CudaResult result = current.result();
  if (result == kCudaSuccess) result = driver_.cuMemcpyHtoD_v2(to, from, bytes);
  return result == kCudaSuccess ? driver_.cuCtxSynchronize() : result;
}

}  // namespace gpushare
