#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime.h"

using namespace fake_runtime;

namespace {

bool is_pageable(const void* address) {
  return !fake_gpu::is_device(address) && !fake_gpu::is_pinned(address);
}

// What a handle between processes says: a descriptor of the process that made it.
struct SharedMemory {
  pid_t process;
  int file;
  size_t bytes;
};

int open_shared(const SharedMemory& shared) {
  const std::string path =
      "/proc/" + std::to_string(shared.process) + "/fd/" + std::to_string(shared.file);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** address, size_t bytes) {
  *address = nullptr;
  const cudaError_t error = ready_outside_of_captures();
  if (error != cudaSuccess || bytes == 0) return error;
  return from(cuMemAlloc(reinterpret_cast<CUdeviceptr*>(address), bytes));
}

cudaError_t cudaFree(void* address) {
  const cudaError_t error = ready_outside_of_captures();
  return error == cudaSuccess ? from(cuMemFree(as_address(address))) : error;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const cudaError_t error = ready();
  return error == cudaSuccess ? from(cuMemGetInfo(free, total)) : error;
}

// --- memory of the host

cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  const fake_gpu::Lock lock(fake_gpu::gpus().mutex);
  fake_gpu::gpus().pinned[as_address(address)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* address) {
  const fake_gpu::Lock lock(fake_gpu::gpus().mutex);
  const bool is_known = fake_gpu::gpus().pinned.erase(as_address(address)) == 1;
  return is_known ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned flags) {
  if (const cudaError_t error = ready(); error != cudaSuccess) return error;
  *address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*address == MAP_FAILED) return fail(cudaErrorMemoryAllocation);
  return cudaHostRegister(*address, bytes, flags);
}

cudaError_t cudaFreeHost(void* address) {
  const fake_gpu::Lock lock(fake_gpu::gpus().mutex);
  const auto found = fake_gpu::gpus().pinned.find(as_address(address));
  if (found == fake_gpu::gpus().pinned.end()) return fail(cudaErrorInvalidValue);
  fake_gpu::finish_all();
  munmap(address, found->second);
  fake_gpu::gpus().pinned.erase(found);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  if (const cudaError_t error = ready(); error != cudaSuccess) return error;
  void* const address = const_cast<void*>(pointer);
  *attributes = {};
  if (fake_gpu::is_accessible(address, 1)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = fake_gpu::device_of(address);
    attributes->devicePointer = address;
  } else if (fake_gpu::is_pinned(address)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->hostPointer = attributes->devicePointer = address;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->hostPointer = address;
    attributes->device = -2;
  }
  return cudaSuccess;
}

// --- copies

// Pageable memory is read before the call returns, and is written before it returns.
cudaError_t cudaMemcpyAsync(void* to, const void* source, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const cudaError_t error = ready();
  if (error != cudaSuccess || bytes == 0) return error;
  if (is_pageable(source)) {
    const auto* begin = static_cast<const char*>(source);
    const auto staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
    return submit(stream, [=] { return fake_gpu::copy(to, staged->data(), bytes); });
  }
  const cudaError_t submitted = submit(stream, [=] { return fake_gpu::copy(to, source, bytes); });
  const bool must_wait = submitted == cudaSuccess && is_pageable(to) && !is_capturing(stream);
  return must_wait ? from(fake_gpu::finish(as_stream(stream))) : submitted;
}

cudaError_t cudaMemcpy(void* to, const void* source, size_t bytes, cudaMemcpyKind kind) {
  if (is_capturing_anything()) return fail(cudaErrorStreamCaptureUnsupported);
  const cudaError_t error = cudaMemcpyAsync(to, source, bytes, kind, nullptr);
  return error == cudaSuccess ? from(fake_gpu::finish(as_stream(nullptr))) : error;
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* source, int, size_t bytes,
                                cudaStream_t stream) {
  return cudaMemcpyAsync(to, source, bytes, cudaMemcpyDefault, stream);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* source, size_t pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  for (size_t row = 0; row < height; ++row) {
    void* to_row = static_cast<char*>(to) + row * to_pitch;
    const void* source_row = static_cast<const char*>(source) + row * pitch;
    const cudaError_t error = cudaMemcpyAsync(to_row, source_row, width, kind, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = ready(); error != cudaSuccess) return error;
  const auto byte = static_cast<unsigned char>(value);
  return submit(stream, [=] { return fake_gpu::fill(to, &byte, 1, bytes); });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

// --- between processes

// Works only for memory from cudaMalloc, as NVIDIA documents it.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  const fake_gpu::Lock lock(fake_gpu::gpus().mutex);
  const auto found = fake_gpu::gpus().mappings.find(as_address(address));
  if (found == fake_gpu::gpus().mappings.end() || !found->second.is_plain) {
    return fail(cudaErrorInvalidValue);
  }
  const auto& memory = *found->second.memory;
  const SharedMemory made{getpid(), memory.file, memory.bytes};
  *handle = {};
  std::memcpy(handle, &made, sizeof made);
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned) {
  if (const cudaError_t error = ready(); error != cudaSuccess) return error;
  SharedMemory shared;
  std::memcpy(&shared, &handle, sizeof shared);
  const int file = open_shared(shared);
  if (file < 0) return fail(cudaErrorInvalidValue);
  const fake_gpu::Lock lock(fake_gpu::gpus().mutex);
  auto memory = fake_gpu::imported(file);
  close(file);
  if (memory == nullptr) return fail(cudaErrorInvalidValue);
  const fake_gpu::Address place = fake_gpu::reserve(shared.bytes, 0);
  *address = reinterpret_cast<void*>(place);
  const bool is_there = place != 0 && fake_gpu::map(place, std::move(memory), true);
  return is_there ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaIpcCloseMemHandle(void* address) { return from(cuMemFree(as_address(address))); }

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t) {
  *handle = {};
  return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t) {
  return cudaEventCreate(event);
}

}  // extern "C"
