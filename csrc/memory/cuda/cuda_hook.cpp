#include "memory/cuda/cuda_hook.h"

#include <dlfcn.h>

#include <array>
#include <atomic>

#include "memory/common/got_patch.h"
#include "memory/common/install_once.h"
#include "memory/cuda/cuda_memory.h"

namespace gpushare {
namespace {

using RuntimeResult = int;  // of the CUDA runtime; both codes are also the driver's

constexpr const char* kCudaLibrary = "libc10_cuda.so";

// The runtime that the library is linked to. There may be others in the process.
struct Runtime {
  RuntimeResult (*cudaMalloc)(void** address, size_t bytes) = nullptr;
  RuntimeResult (*cudaFree)(void* address) = nullptr;
  RuntimeResult (*cudaGetDevice)(int* ordinal) = nullptr;

  bool find() {
    void* library = dlopen(kCudaLibrary, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return false;
    cudaMalloc = reinterpret_cast<decltype(cudaMalloc)>(dlsym(library, "cudaMalloc"));
    cudaFree = reinterpret_cast<decltype(cudaFree)>(dlsym(library, "cudaFree"));
    cudaGetDevice = reinterpret_cast<decltype(cudaGetDevice)>(dlsym(library, "cudaGetDevice"));
    return cudaMalloc != nullptr && cudaFree != nullptr && cudaGetDevice != nullptr;
  }
};

Runtime runtime;
std::atomic<size_t> of_runtime = 0;  // bytes of segments that are the runtime's own on purpose

// If there is no room, PyTorch gives back its cached memory and asks again.
RuntimeResult hooked_cuda_malloc(void** address, size_t bytes) {
  int ordinal = -1;
  const RuntimeResult result = runtime.cudaGetDevice(&ordinal);
  if (result != kCudaSuccess) return result;
  if (!cuda_memory().is_of(ordinal)) return runtime.cudaMalloc(address, bytes);
  *address = cuda_memory().segments().allocate(bytes);
  return *address == nullptr ? kCudaOutOfMemory : kCudaSuccess;
}

RuntimeResult hooked_cuda_free(void* address) {
  return cuda_memory().segments().free(address) ? kCudaSuccess : runtime.cudaFree(address);
}

std::string redirect_cuda_runtime() {
  if (!runtime.find()) return std::string(kCudaLibrary) + " is not loaded, or has no CUDA runtime";
  const std::array redirections{
      Redirection{"cudaMalloc", reinterpret_cast<void*>(runtime.cudaMalloc),
                  reinterpret_cast<void*>(&hooked_cuda_malloc)},
      Redirection{"cudaFree", reinterpret_cast<void*>(runtime.cudaFree),
                  reinterpret_cast<void*>(&hooked_cuda_free)},
  };
  return redirect_imports(kCudaLibrary, redirections);
}

}  // namespace

std::string install_cuda_hook() {
  static InstallOnce once;
  return once(redirect_cuda_runtime);
}

size_t shareable_bytes() { return of_runtime; }

}  // namespace gpushare

void* gpushare_cuda_allocate_shareable(ssize_t bytes, int device, void*) {
  using gpushare::runtime;
  int ordinal = -1;
  void* address = nullptr;
  const bool is_possible = bytes > 0 && runtime.cudaMalloc != nullptr &&
                           runtime.cudaGetDevice(&ordinal) == gpushare::kCudaSuccess &&
                           ordinal == device;
  if (!is_possible || runtime.cudaMalloc(&address, static_cast<size_t>(bytes)) != 0) return nullptr;
  gpushare::of_runtime += static_cast<size_t>(bytes);
  return address;
}

void gpushare_cuda_free_shareable(void* address, size_t bytes, int, void*) {
  gpushare::runtime.cudaFree(address);
  gpushare::of_runtime -= bytes;
}
