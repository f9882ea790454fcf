// A libcuda.so.1 whose GPU is main memory. It forbids what the real driver forbids, so code that
// passes here should pass there. It has the documented calls that this project and PyTorch make.
// Addresses are real: a test reads and writes them as a kernel would, and a touch without access
// ends the process.
//
// Unlike on a GPU, a mapping has all of a handle's memory, and unless FAKE_CUDA_LAZY is set, all is
// done when a call returns.
#include "fake_driver.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "fake_gpu.h"
#include "memory/cuda/cuda_driver.h"

using namespace gpushare;
using namespace fake_gpu;

// The primary one of a device.
struct gpushare::CudaContext {
  int device;
  size_t retained = 0;
};

namespace {

struct Driver {
  pid_t process = 0;                 // that called cuInit; a forked child has not
  std::deque<CudaContext> contexts;  // of each device
  fake_driver::Calls calls;
  size_t calls_until_failure = 0;
  CudaResult failure = 0;
};

Driver& driver() {
  static auto* const driver = new Driver;
  return *driver;
}

thread_local std::vector<CudaContext*> current;

// The current device of the thread goes with its contexts.
void contexts_changed() { set_current_device(current.empty() ? 0 : current.back()->device); }

size_t retained_contexts() {
  size_t sum = 0;
  for (const CudaContext& context : driver().contexts) sum += context.retained;
  return sum;
}

size_t used_bytes_of_all() {
  size_t sum = 0;
  for (size_t i = 0; i < gpus().visible.size(); ++i) sum += used_bytes(static_cast<int>(i));
  return sum;
}

void* at(CudaAddress address) { return reinterpret_cast<void*>(address); }

// One call: counted; refused if a test wants that, or if CUDA is not initialised or has failed;
// otherwise made.
template <class F>
CudaResult call(const char* name, F made) {
  const Lock lock(gpus().mutex);
  ++driver().calls[name];
  if (driver().calls_until_failure > 0 && --driver().calls_until_failure == 0) {
    return driver().failure;
  }
  if (gpus().broken != kSuccess) return gpus().broken;
  const bool is_first = std::strcmp(name, "cuInit") == 0;
  return is_first || driver().process == getpid() ? made() : kNotInitialized;
}

template <class F>
CudaResult call_in_context(const char* name, F made) {
  return call(name, [&] { return current.empty() ? kInvalidContext : made(); });
}

template <class F>
CudaResult call_on(const char* name, CudaOrdinal device, F made) {
  return call(name, [&] {
    if (!is_there(device)) return kInvalidDevice;
    return made(gpus().visible[static_cast<size_t>(device)],
                driver().contexts[static_cast<size_t>(device)]);
  });
}

// CUDA reads the environment once.
CudaResult see_devices() {
  if (driver().contexts.empty()) find();
  for (size_t i = driver().contexts.size(); i < gpus().visible.size(); ++i) {
    driver().contexts.push_back({static_cast<int>(i)});
  }
  return gpus().visible.empty() ? kNoDevice : kSuccess;
}

int bus_of(const Gpu& gpu) { return gpu.number + 1; }

bool is_right(const CudaLocation& location) {
  return location.type == CudaLocationType::kDevice && is_there(location.id);
}

bool are_right(const CudaAllocationProperties* properties) {
  return properties->type == CudaAllocationType::kPinned && is_right(properties->location);
}

// Each chunk has a descriptor here, which the real driver's has not.
void allow_more_files() {
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

// Copies on the default stream.
CudaResult copy_now(void* to, const void* from, size_t bytes) {
  submit(nullptr, [=] { return fake_gpu::copy(to, from, bytes); });
  return finish(static_cast<Stream*>(nullptr));
}

}  // namespace

namespace fake_driver {

Alive alive() {
  const Lock lock(gpus().mutex);
  return {gpus().handles.size(), gpus().mappings.size(), gpus().reservations.size(),
          retained_contexts(), used_bytes_of_all()};
}

Calls calls() {
  const Lock lock(gpus().mutex);
  return driver().calls;
}

void forget_calls() {
  const Lock lock(gpus().mutex);
  driver().calls.clear();
}

void fail(size_t nth, int code) {
  const Lock lock(gpus().mutex);
  driver().calls_until_failure = nth;
  driver().failure = code;
}

bool has_failed() {
  const Lock lock(gpus().mutex);
  return driver().calls_until_failure == 0;
}

void set_capacity(size_t bytes, int device) {
  const Lock lock(gpus().mutex);
  gpus().visible.at(static_cast<size_t>(device)).capacity = bytes;
}

}  // namespace fake_driver

size_t fake_driver_calls(const char* prefix) {
  size_t sum = 0;
  for (const auto& [name, count] : fake_driver::calls())
    sum += name.starts_with(prefix) ? count : 0;
  return sum;
}

extern "C" {

CudaResult cuInit(unsigned flags) {
  return call("cuInit", [&] {
    if (flags != 0) return kInvalidValue;
    if (driver().process != 0 && driver().process != getpid()) return kNotInitialized;  // forked
    if (driver().process == getpid()) return kSuccess;
    const CudaResult result = see_devices();
    if (result == kSuccess) driver().process = getpid();
    allow_more_files();
    return result;
  });
}

CudaResult cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

CudaResult cuGetErrorString(CudaResult result, const char** sentence) {
  *sentence = result == kSuccess          ? "no error"
              : result == kOutOfMemory    ? "out of memory"
              : result == kIllegalAddress ? "an illegal memory access was encountered"
                                          : "an error of the fake driver";
  return kSuccess;
}

CudaResult cuGetErrorName(CudaResult, const char** name) {
  *name = "CUDA_ERROR_OF_THE_FAKE_DRIVER";
  return kSuccess;
}

// --- the device

CudaResult cuDeviceGet(CudaOrdinal* device, int ordinal) {
  return call("cuDeviceGet", [&] {
    *device = ordinal;
    return is_there(ordinal) ? kSuccess : kInvalidDevice;
  });
}

CudaResult cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", [&] {
    *count = static_cast<int>(gpus().visible.size());
    return kSuccess;
  });
}

CudaResult cuDeviceGetName(char* name, int length, CudaOrdinal) {
  std::snprintf(name, static_cast<size_t>(length), "NVIDIA L4");
  return kSuccess;
}

CudaResult cuDeviceGetUuid_v2(void* uuid, CudaOrdinal device) {
  return call_on("cuDeviceGetUuid_v2", device, [&](const Gpu& gpu, CudaContext&) {
    std::memcpy(uuid, uuid_of(gpu.number).data(), 16);
    return kSuccess;
  });
}

CudaResult cuDeviceGetPCIBusId(char* text, int length, CudaOrdinal device) {
  return call_on("cuDeviceGetPCIBusId", device, [&](const Gpu& gpu, CudaContext&) {
    std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", bus_of(gpu));
    return kSuccess;
  });
}

CudaResult cuDeviceTotalMem_v2(size_t* bytes, CudaOrdinal device) {
  return call_on("cuDeviceTotalMem_v2", device, [&](const Gpu& gpu, CudaContext&) {
    *bytes = gpu.capacity;
    return kSuccess;
  });
}

CudaResult cuDeviceGetAttribute(int* value, int attribute, CudaOrdinal device) {
  // The attributes of an NVIDIA L4 that PyTorch reads, by their numbers in cuda.h: threads and
  // blocks of a launch, shared memory, warps, processors, registers, texture, compute capability.
  static const std::map<int, int> values{{1, 1024},
                                         {2, 1024},
                                         {3, 1024},
                                         {4, 64},
                                         {5, 2147483647},
                                         {6, 65535},
                                         {7, 65535},
                                         {8, 49152},
                                         {10, 32},
                                         {12, 65536},
                                         {14, 512},
                                         {16, 8},
                                         {31, 1},
                                         {39, 1536},
                                         {41, 1},
                                         {75, 8},
                                         {76, 9},
                                         {81, 102400},
                                         {82, 65536},
                                         {97, 101376},
                                         {kCudaVirtualMemorySupported, 1},
                                         {kCudaDescriptorsSupported, 1}};
  constexpr int kBus = 33;
  return call_on("cuDeviceGetAttribute", device, [&](const Gpu& gpu, CudaContext&) {
    const auto found = values.find(attribute);
    *value = found == values.end() ? 0 : found->second;
    if (attribute == kBus) *value = bus_of(gpu);
    return kSuccess;
  });
}

// --- contexts

CudaResult cuDevicePrimaryCtxRetain(CudaContext** context, CudaOrdinal device) {
  return call_on("cuDevicePrimaryCtxRetain", device, [&](const Gpu&, CudaContext& primary) {
    ++primary.retained;
    *context = &primary;
    return kSuccess;
  });
}

CudaResult cuDevicePrimaryCtxRelease_v2(CudaOrdinal device) {
  return call_on("cuDevicePrimaryCtxRelease_v2", device, [&](const Gpu&, CudaContext& primary) {
    if (primary.retained == 0) return kInvalidContext;
    --primary.retained;
    return kSuccess;
  });
}

CudaResult cuDevicePrimaryCtxGetState(CudaOrdinal device, unsigned* flags, int* is_active) {
  return call_on("cuDevicePrimaryCtxGetState", device, [&](const Gpu&, CudaContext& primary) {
    *flags = 0;
    *is_active = primary.retained > 0 ? 1 : 0;
    return kSuccess;
  });
}

CudaResult cuCtxGetCurrent(CudaContext** context) {
  *context = current.empty() ? nullptr : current.back();
  return kSuccess;
}

CudaResult cuCtxSetCurrent(CudaContext* context) {
  return call("cuCtxSetCurrent", [&] {
    if (!current.empty()) current.pop_back();
    if (context != nullptr) current.push_back(context);
    contexts_changed();
    return kSuccess;
  });
}

CudaResult cuCtxGetDevice(CudaOrdinal* device) {
  return call_in_context("cuCtxGetDevice", [&] {
    *device = current_device();
    return kSuccess;
  });
}

CudaResult cuCtxPushCurrent_v2(CudaContext* context) {
  return call("cuCtxPushCurrent_v2", [&] {
    if (context->retained == 0) return kInvalidContext;
    current.push_back(context);
    contexts_changed();
    return kSuccess;
  });
}

CudaResult cuCtxPopCurrent_v2(CudaContext** context) {
  return call_in_context("cuCtxPopCurrent_v2", [&] {
    *context = current.back();
    current.pop_back();
    contexts_changed();
    return kSuccess;
  });
}

CudaResult cuCtxSynchronize() {
  return call_in_context("cuCtxSynchronize", [] { return finish_device(current_device()); });
}

// --- plain memory

CudaResult cuMemAlloc_v2(CudaAddress* address, size_t bytes) {
  return call_in_context("cuMemAlloc_v2", [&] {
    if (bytes == 0) return kInvalidValue;
    const size_t size = (bytes + kGranularity - 1) / kGranularity * kGranularity;
    auto memory = create(size, true, current_device());
    if (memory == nullptr) return kOutOfMemory;
    *address = reserve(size, 0);
    return *address != 0 && map(*address, std::move(memory), true) ? kSuccess : kOutOfMemory;
  });
}

CudaResult cuMemFree_v2(CudaAddress address) {
  return call_in_context("cuMemFree_v2", [&] {
    if (address == 0) return kSuccess;
    finish_all();
    const auto found = gpus().mappings.find(address);
    if (found == gpus().mappings.end() || !found->second.is_plain) return kInvalidValue;
    const size_t bytes = found->second.memory->bytes;
    unmap({found});
    unreserve(address, bytes);
    return kSuccess;
  });
}

CudaResult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return call_in_context("cuMemGetInfo_v2", [&] {
    *total = gpus().visible[static_cast<size_t>(current_device())].capacity;
    *free = *total - std::min(*total, used_bytes(current_device()));
    return kSuccess;
  });
}

CudaResult cuMemGetAddressRange_v2(CudaAddress* begin, size_t* bytes, CudaAddress address) {
  return call("cuMemGetAddressRange_v2", [&] {
    const auto found = mapping_at(address);
    if (found == gpus().mappings.end()) return kNotFound;
    *begin = found->first;
    *bytes = found->second.memory->bytes;
    return kSuccess;
  });
}

CudaResult cuPointerGetAttribute(void* value, int attribute, CudaAddress address) {
  constexpr int kContext = 1, kMemoryType = 2, kOrdinal = 9;
  constexpr unsigned kHostMemory = 1, kDeviceMemory = 2;
  return call("cuPointerGetAttribute", [&] {
    const bool is_mapped_here = mapping_at(address) != gpus().mappings.end();
    if (attribute == kMemoryType && (is_mapped_here || is_pinned(at(address)))) {
      *static_cast<unsigned*>(value) = is_mapped_here ? kDeviceMemory : kHostMemory;
      return kSuccess;
    }
    if (!is_mapped_here) return kInvalidValue;
    const int device = device_of(at(address));
    if (attribute == kContext) {
      *static_cast<CudaContext**>(value) = &driver().contexts[static_cast<size_t>(device)];
    }
    if (attribute == kOrdinal) *static_cast<int*>(value) = device;
    return attribute == kContext || attribute == kOrdinal ? kSuccess : kNotSupported;
  });
}

// --- memory by handles

CudaResult cuMemGetAllocationGranularity(size_t* bytes, const CudaAllocationProperties* properties,
                                         CudaGranularity) {
  return call("cuMemGetAllocationGranularity", [&] {
    *bytes = kGranularity;
    return are_right(properties) ? kSuccess : kInvalidValue;
  });
}

CudaResult cuMemAddressReserve(CudaAddress* address, size_t bytes, size_t alignment, CudaAddress,
                               unsigned long long flags) {
  return call("cuMemAddressReserve", [&] {
    const bool is_right = bytes > 0 && bytes % kGranularity == 0 && flags == 0 &&
                          (alignment == 0 || std::has_single_bit(alignment));
    if (!is_right) return kInvalidValue;
    *address = reserve(bytes, alignment);
    return *address == 0 ? kOutOfMemory : kSuccess;
  });
}

CudaResult cuMemAddressFree(CudaAddress address, size_t bytes) {
  return call("cuMemAddressFree", [&] {
    const auto found = gpus().reservations.find(address);
    if (found == gpus().reservations.end() || found->second != bytes) return kInvalidValue;
    if (is_mapped(address, bytes)) return kInvalidValue;
    unreserve(address, bytes);
    return kSuccess;
  });
}

CudaResult cuMemCreate(CudaHandle* handle, size_t bytes, const CudaAllocationProperties* properties,
                       unsigned long long flags) {
  return call("cuMemCreate", [&] {
    if (bytes == 0 || bytes % kGranularity != 0 || !are_right(properties) || flags != 0) {
      return kInvalidValue;
    }
    auto memory = create(bytes, properties->handle_types == CudaHandleType::kDescriptor,
                         properties->location.id);
    if (memory == nullptr) return kOutOfMemory;
    *handle = add_handle(std::move(memory));
    return kSuccess;
  });
}

CudaResult cuMemRelease(CudaHandle handle) {
  return call("cuMemRelease",
              [&] { return gpus().handles.erase(handle) == 1 ? kSuccess : kInvalidValue; });
}

CudaResult cuMemMap(CudaAddress address, size_t bytes, size_t offset, CudaHandle handle,
                    unsigned long long flags) {
  return call("cuMemMap", [&] {
    const auto found = gpus().handles.find(handle);
    if (found == gpus().handles.end() || offset != 0 || flags != 0) return kInvalidValue;
    if (bytes != found->second->bytes || address % kGranularity != 0) return kInvalidValue;
    if (!is_reserved(address, bytes) || is_mapped(address, bytes)) return kInvalidValue;
    return map(address, found->second, false) ? kSuccess : kOutOfMemory;
  });
}

// Work that is under way does not stop it: it meets what is mapped when its time comes.
CudaResult cuMemUnmap(CudaAddress address, size_t bytes) {
  return call("cuMemUnmap", [&] {
    const auto mappings = whole_mappings(address, bytes);
    if (mappings.empty()) return kInvalidValue;
    unmap(mappings);
    return kSuccess;
  });
}

CudaResult cuMemSetAccess(CudaAddress address, size_t bytes, const CudaAccessDescription* access,
                          size_t count) {
  return call("cuMemSetAccess", [&] {
    const auto mappings = whole_mappings(address, bytes);
    const bool are_known =
        count == 1 && is_right(access->location) && access->flags == CudaAccess::kReadWrite;
    if (mappings.empty() || !are_known) return kInvalidValue;
    for (const auto& mapping : mappings) {  // no device reaches another's memory
      if (mapping->second.memory->device != access->location.id) return kInvalidDevice;
    }
    for (const auto& mapping : mappings) allow(mapping);
    return kSuccess;
  });
}

CudaResult cuMemExportToShareableHandle(void* descriptor, CudaHandle handle, CudaHandleType type,
                                        unsigned long long flags) {
  return call("cuMemExportToShareableHandle", [&] {
    const auto found = gpus().handles.find(handle);
    if (found == gpus().handles.end() || flags != 0) return kInvalidValue;
    if (type != CudaHandleType::kDescriptor || !found->second->is_shareable) return kInvalidValue;
    const int copy = fcntl(found->second->file, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return kOutOfMemory;
    std::memcpy(descriptor, &copy, sizeof copy);
    return kSuccess;
  });
}

CudaResult cuMemImportFromShareableHandle(CudaHandle* handle, void* descriptor,
                                          CudaHandleType type) {
  return call("cuMemImportFromShareableHandle", [&] {
    if (type != CudaHandleType::kDescriptor) return kInvalidValue;
    auto memory = imported(static_cast<int>(reinterpret_cast<uintptr_t>(descriptor)));
    if (memory == nullptr) return kInvalidValue;
    *handle = add_handle(std::move(memory));
    return kSuccess;
  });
}

CudaResult cuMemRetainAllocationHandle(CudaHandle* handle, void* address) {
  return call("cuMemRetainAllocationHandle", [&] {
    const auto found = mapping_at(reinterpret_cast<CudaAddress>(address));
    if (found == gpus().mappings.end() || found->second.is_plain) return kInvalidValue;
    *handle = add_handle(found->second.memory);
    return kSuccess;
  });
}

CudaResult cuMemGetAllocationPropertiesFromHandle(CudaAllocationProperties* properties,
                                                  CudaHandle handle) {
  return call("cuMemGetAllocationPropertiesFromHandle", [&] {
    const auto found = gpus().handles.find(handle);
    if (found == gpus().handles.end()) return kInvalidValue;
    const bool is_shareable = found->second->is_shareable;
    *properties = {};
    properties->type = CudaAllocationType::kPinned;
    properties->location = {CudaLocationType::kDevice, found->second->device};
    properties->handle_types = is_shareable ? CudaHandleType::kDescriptor : CudaHandleType::kNone;
    return kSuccess;
  });
}

// --- copies

CudaResult cuMemcpyDtoD_v2(CudaAddress to, CudaAddress from, size_t bytes) {
  return call_in_context("cuMemcpyDtoD_v2", [&] {
    if (!is_accessible(at(to), bytes) || !is_accessible(at(from), bytes)) return kInvalidValue;
    return submit(nullptr, [=] { return fake_gpu::copy(at(to), at(from), bytes); });
  });
}

CudaResult cuMemcpyDtoH_v2(void* to, CudaAddress from, size_t bytes) {
  return call_in_context("cuMemcpyDtoH_v2", [&] {
    return is_accessible(at(from), bytes) ? copy_now(to, at(from), bytes) : kInvalidValue;
  });
}

CudaResult cuMemcpyHtoD_v2(CudaAddress to, const void* from, size_t bytes) {
  return call_in_context("cuMemcpyHtoD_v2", [&] {
    return is_accessible(at(to), bytes) ? copy_now(at(to), from, bytes) : kInvalidValue;
  });
}

CudaResult cuMemsetD32Async(CudaAddress to, unsigned value, size_t count, Stream* stream) {
  return call_in_context("cuMemsetD32Async", [&] {
    return submit(stream, [=] { return fill(at(to), &value, sizeof value, count); });
  });
}

}  // extern "C"
