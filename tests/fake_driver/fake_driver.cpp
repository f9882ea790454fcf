// A libcuda.so.1 whose GPU is main memory: it forbids what the real driver forbids, so that code
// that passes here is allowed there. Memory is a memfd each, and addresses are real: a test reads
// and writes them as a kernel would, and a touch without access ends the process.
//
// It differs from a GPU: all work is done when a call returns, a process knows of no other's
// memory, so that capacity is each one's own, and a mapping has all of a handle's memory.
#include "fake_driver.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "memory/cuda/cuda_driver.h"

using namespace gpushare;

struct gpushare::CudaContext {};

namespace {

// Codes of cuda.h.
constexpr CudaResult kInvalidValue = 1;
constexpr CudaResult kNotInitialized = 3;
constexpr CudaResult kInvalidDevice = 101;
constexpr CudaResult kInvalidContext = 201;

constexpr size_t kGranularity = size_t{2} << 20;
constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;  // with PROT_NONE

// Memory, which has a descriptor of its own while a handle or a mapping refers to it.
struct Memory {
  int file;
  size_t bytes;
  bool is_shareable;

  Memory(int file, size_t bytes, bool is_shareable)
      : file(file), bytes(bytes), is_shareable(is_shareable) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { close(file); }
};

// All memory that this process has a descriptor of, whether it was made here or shared.
size_t used_bytes() {
  std::map<ino_t, size_t> bytes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry, gone).string();
    struct stat status;
    if (target.starts_with("/memfd:fake-gpu") && stat(entry.path().c_str(), &status) == 0) {
      bytes[status.st_ino] = static_cast<size_t>(status.st_size);
    }
  }
  size_t sum = 0;
  for (const auto& [file, size] : bytes) sum += size;
  return sum;
}

struct Mapping {
  std::shared_ptr<Memory> memory;
  bool is_accessible = false;
};

struct Driver {
  std::mutex mutex;
  pid_t process = 0;  // the process that called cuInit; a forked child has not
  size_t capacity = size_t{1} << 30;
  std::map<CudaAddress, size_t> reservations;
  std::map<CudaAddress, Mapping> mappings;
  std::map<CudaHandle, std::shared_ptr<Memory>> handles;
  CudaHandle last_handle = 0;
  size_t contexts = 0;

  fake_driver::Calls calls;
  size_t calls_until_failure = 0;
  CudaResult failure = 0;
};

Driver& driver() {
  static auto* const driver = new Driver;  // destructors of others may come later than ours
  return *driver;
}

CudaContext primary;
thread_local std::vector<CudaContext*> current;

void* at(CudaAddress address) { return reinterpret_cast<void*>(address); }

// One call: it is counted, refused if a test wants that or CUDA is not initialised, and else made.
template <class F>
CudaResult call(const char* name, F made) {
  const std::lock_guard guard(driver().mutex);
  ++driver().calls[name];
  if (driver().calls_until_failure > 0 && --driver().calls_until_failure == 0) {
    return driver().failure;
  }
  const bool is_first = std::strcmp(name, "cuInit") == 0;
  return is_first || driver().process == getpid() ? made() : kNotInitialized;
}

// The mappings that tile the range, or none: then it is not made of whole ones.
std::vector<std::map<CudaAddress, Mapping>::iterator> whole_mappings(CudaAddress begin,
                                                                     size_t bytes) {
  std::vector<std::map<CudaAddress, Mapping>::iterator> found;
  CudaAddress next = begin;
  for (auto mapping = driver().mappings.find(begin);
       mapping != driver().mappings.end() && mapping->first == next && next < begin + bytes;
       ++mapping) {
    next += mapping->second.memory->bytes;
    found.push_back(mapping);
  }
  if (next != begin + bytes) found.clear();
  return found;
}

bool is_mapped(CudaAddress begin, size_t bytes) {
  auto after = driver().mappings.lower_bound(begin + bytes);
  if (after == driver().mappings.begin()) return false;
  --after;
  return after->first + after->second.memory->bytes > begin;
}

bool is_reserved(CudaAddress begin, size_t bytes) {
  auto after = driver().reservations.upper_bound(begin);
  if (after == driver().reservations.begin()) return false;
  --after;
  return begin + bytes <= after->first + after->second;
}

bool is_accessible(CudaAddress begin, size_t bytes) {
  const CudaAddress end = begin + bytes;
  auto mapping = driver().mappings.upper_bound(begin);
  if (mapping == driver().mappings.begin()) return false;
  for (--mapping; mapping != driver().mappings.end() && mapping->first <= begin; ++mapping) {
    const CudaAddress mapping_end = mapping->first + mapping->second.memory->bytes;
    if (mapping_end <= begin || !mapping->second.is_accessible) return false;
    if (mapping_end >= end) return true;
    begin = mapping_end;
  }
  return false;
}

bool are_right(const CudaAllocationProperties* properties) {
  return properties->type == CudaAllocationType::kPinned &&
         properties->location.type == CudaLocationType::kDevice && properties->location.id == 0;
}

CudaHandle add_handle(std::shared_ptr<Memory> memory) {
  driver().handles[++driver().last_handle] = std::move(memory);
  return driver().last_handle;
}

// The memory behind a file, if this process has it already.
std::shared_ptr<Memory> memory_of(ino_t file) {
  const auto is_it = [&](const std::shared_ptr<Memory>& memory) {
    struct stat status;
    return fstat(memory->file, &status) == 0 && status.st_ino == file;
  };
  for (const auto& [handle, memory] : driver().handles) {
    if (is_it(memory)) return memory;
  }
  for (const auto& [address, mapping] : driver().mappings) {
    if (is_it(mapping.memory)) return mapping.memory;
  }
  return nullptr;
}

CudaResult copy(void* to, const void* from, size_t bytes) {
  if (current.empty()) return kInvalidContext;
  std::memcpy(to, from, bytes);
  return kCudaSuccess;
}

}  // namespace

namespace fake_driver {

Alive alive() {
  const std::lock_guard guard(driver().mutex);
  return {driver().handles.size(), driver().mappings.size(), driver().reservations.size(),
          driver().contexts, used_bytes()};
}

Calls calls() {
  const std::lock_guard guard(driver().mutex);
  return driver().calls;
}

void forget_calls() {
  const std::lock_guard guard(driver().mutex);
  driver().calls.clear();
}

void fail(size_t nth, int code) {
  const std::lock_guard guard(driver().mutex);
  driver().calls_until_failure = nth;
  driver().failure = code;
}

bool has_failed() {
  const std::lock_guard guard(driver().mutex);
  return driver().calls_until_failure == 0;
}

void set_capacity(size_t bytes) {
  const std::lock_guard guard(driver().mutex);
  driver().capacity = bytes;
}

}  // namespace fake_driver

extern "C" {

CudaResult cuInit(unsigned flags) {
  return call("cuInit", [&] {
    if (flags != 0) return kInvalidValue;
    driver().process = getpid();
    return kCudaSuccess;
  });
}

CudaResult cuGetErrorString(CudaResult result, const char** sentence) {
  *sentence = result == kCudaOutOfMemory ? "out of memory" : "an error of the fake driver";
  return kCudaSuccess;
}

CudaResult cuDeviceGet(CudaOrdinal* device, int ordinal) {
  return call("cuDeviceGet", [&] {
    *device = ordinal;
    return ordinal == 0 ? kCudaSuccess : kInvalidDevice;
  });
}

CudaResult cuDeviceGetAttribute(int* value, int attribute, CudaOrdinal) {
  return call("cuDeviceGetAttribute", [&] {
    const bool is_known =
        attribute == kCudaVirtualMemorySupported || attribute == kCudaDescriptorsSupported;
    *value = is_known ? 1 : 0;
    return is_known ? kCudaSuccess : kInvalidValue;
  });
}

CudaResult cuDevicePrimaryCtxRetain(CudaContext** context, CudaOrdinal) {
  return call("cuDevicePrimaryCtxRetain", [&] {
    ++driver().contexts;
    *context = &primary;
    return kCudaSuccess;
  });
}

CudaResult cuDevicePrimaryCtxRelease_v2(CudaOrdinal) {
  return call("cuDevicePrimaryCtxRelease_v2", [&] {
    if (driver().contexts == 0) return kInvalidContext;
    --driver().contexts;
    return kCudaSuccess;
  });
}

CudaResult cuCtxPushCurrent_v2(CudaContext* context) {
  return call("cuCtxPushCurrent_v2", [&] {
    if (driver().contexts == 0) return kInvalidContext;
    current.push_back(context);
    return kCudaSuccess;
  });
}

CudaResult cuCtxPopCurrent_v2(CudaContext** context) {
  return call("cuCtxPopCurrent_v2", [&] {
    if (current.empty()) return kInvalidContext;
    *context = current.back();
    current.pop_back();
    return kCudaSuccess;
  });
}

CudaResult cuCtxSynchronize() {
  return call("cuCtxSynchronize", [&] { return current.empty() ? kInvalidContext : kCudaSuccess; });
}

CudaResult cuMemGetAllocationGranularity(size_t* bytes, const CudaAllocationProperties* properties,
                                         CudaGranularity) {
  return call("cuMemGetAllocationGranularity", [&] {
    *bytes = kGranularity;
    return are_right(properties) ? kCudaSuccess : kInvalidValue;
  });
}

CudaResult cuMemAddressReserve(CudaAddress* address, size_t bytes, size_t alignment, CudaAddress,
                               unsigned long long flags) {
  return call("cuMemAddressReserve", [&] {
    const bool is_right = bytes > 0 && bytes % kGranularity == 0 && flags == 0 &&
                          (alignment == 0 || std::has_single_bit(alignment));
    if (!is_right) return kInvalidValue;
    const size_t unit = std::max(alignment, kGranularity);
    void* memory = mmap(nullptr, bytes + unit, PROT_NONE, kNothing, -1, 0);
    if (memory == MAP_FAILED) return kCudaOutOfMemory;
    const auto begin = reinterpret_cast<CudaAddress>(memory);
    const CudaAddress first = (begin + unit - 1) / unit * unit;
    if (first > begin) munmap(memory, first - begin);
    munmap(at(first + bytes), begin + unit - first);
    driver().reservations[*address = first] = bytes;
    return kCudaSuccess;
  });
}

CudaResult cuMemAddressFree(CudaAddress address, size_t bytes) {
  return call("cuMemAddressFree", [&] {
    const auto found = driver().reservations.find(address);
    if (found == driver().reservations.end() || found->second != bytes) return kInvalidValue;
    if (is_mapped(address, bytes)) return kInvalidValue;
    munmap(at(address), bytes);
    driver().reservations.erase(found);
    return kCudaSuccess;
  });
}

CudaResult cuMemCreate(CudaHandle* handle, size_t bytes, const CudaAllocationProperties* properties,
                       unsigned long long flags) {
  return call("cuMemCreate", [&] {
    if (bytes == 0 || bytes % kGranularity != 0 || !are_right(properties) || flags != 0) {
      return kInvalidValue;
    }
    if (bytes > driver().capacity - std::min(driver().capacity, used_bytes())) {
      return kCudaOutOfMemory;
    }
    const int file = memfd_create("fake-gpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return kCudaOutOfMemory;
    const bool is_shareable = properties->handle_types == CudaHandleType::kDescriptor;
    *handle = add_handle(std::make_shared<Memory>(file, bytes, is_shareable));
    return kCudaSuccess;
  });
}

CudaResult cuMemRelease(CudaHandle handle) {
  return call("cuMemRelease",
              [&] { return driver().handles.erase(handle) == 1 ? kCudaSuccess : kInvalidValue; });
}

CudaResult cuMemMap(CudaAddress address, size_t bytes, size_t offset, CudaHandle handle,
                    unsigned long long flags) {
  return call("cuMemMap", [&] {
    const auto found = driver().handles.find(handle);
    if (found == driver().handles.end() || offset != 0 || flags != 0) return kInvalidValue;
    const auto& memory = found->second;
    if (bytes != memory->bytes || address % kGranularity != 0) return kInvalidValue;
    if (!is_reserved(address, bytes) || is_mapped(address, bytes)) return kInvalidValue;
    if (mmap(at(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->file, 0) ==
        MAP_FAILED) {
      return kCudaOutOfMemory;
    }
    madvise(at(address), bytes, MADV_DONTFORK);
    driver().mappings[address] = {memory};
    return kCudaSuccess;
  });
}

CudaResult cuMemUnmap(CudaAddress address, size_t bytes) {
  return call("cuMemUnmap", [&] {
    const auto mappings = whole_mappings(address, bytes);
    if (mappings.empty()) return kInvalidValue;
    mmap(at(address), bytes, PROT_NONE, kNothing | MAP_FIXED, -1, 0);
    for (const auto& mapping : mappings) driver().mappings.erase(mapping);
    return kCudaSuccess;
  });
}

CudaResult cuMemSetAccess(CudaAddress address, size_t bytes, const CudaAccessDescription* access,
                          size_t count) {
  return call("cuMemSetAccess", [&] {
    const auto mappings = whole_mappings(address, bytes);
    const bool is_right = count == 1 && access->location.type == CudaLocationType::kDevice &&
                          access->location.id == 0 && access->flags == CudaAccess::kReadWrite;
    if (mappings.empty() || !is_right) return kInvalidValue;
    mprotect(at(address), bytes, PROT_READ | PROT_WRITE);
    for (const auto& mapping : mappings) mapping->second.is_accessible = true;
    return kCudaSuccess;
  });
}

CudaResult cuMemExportToShareableHandle(void* descriptor, CudaHandle handle, CudaHandleType type,
                                        unsigned long long flags) {
  return call("cuMemExportToShareableHandle", [&] {
    const auto found = driver().handles.find(handle);
    if (found == driver().handles.end() || flags != 0) return kInvalidValue;
    if (type != CudaHandleType::kDescriptor || !found->second->is_shareable) return kInvalidValue;
    const int copy = dup(found->second->file);
    if (copy < 0) return kCudaOutOfMemory;
    std::memcpy(descriptor, &copy, sizeof copy);
    return kCudaSuccess;
  });
}

CudaResult cuMemImportFromShareableHandle(CudaHandle* handle, void* descriptor,
                                          CudaHandleType type) {
  return call("cuMemImportFromShareableHandle", [&] {
    const auto file = static_cast<int>(reinterpret_cast<uintptr_t>(descriptor));
    struct stat status;
    if (type != CudaHandleType::kDescriptor || fstat(file, &status) != 0) return kInvalidValue;
    auto memory = memory_of(status.st_ino);
    if (memory == nullptr) {
      const auto bytes = static_cast<size_t>(status.st_size);
      memory = std::make_shared<Memory>(dup(file), bytes, true);
    }
    *handle = add_handle(std::move(memory));
    return kCudaSuccess;
  });
}

CudaResult cuMemcpyDtoD_v2(CudaAddress to, CudaAddress from, size_t bytes) {
  return call("cuMemcpyDtoD_v2", [&] {
    if (!is_accessible(to, bytes) || !is_accessible(from, bytes)) return kInvalidValue;
    return copy(at(to), at(from), bytes);
  });
}

CudaResult cuMemcpyDtoH_v2(void* to, CudaAddress from, size_t bytes) {
  return call("cuMemcpyDtoH_v2", [&] {
    return is_accessible(from, bytes) ? copy(to, at(from), bytes) : kInvalidValue;
  });
}

CudaResult cuMemcpyHtoD_v2(CudaAddress to, const void* from, size_t bytes) {
  return call("cuMemcpyHtoD_v2",
              [&] { return is_accessible(to, bytes) ? copy(at(to), from, bytes) : kInvalidValue; });
}

}  // extern "C"
