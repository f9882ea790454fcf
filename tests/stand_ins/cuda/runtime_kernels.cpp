#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime.h"

using namespace fake_runtime;

namespace {

struct Registered {
  std::mutex mutex;
  std::unordered_map<const void*, size_t> fills;      // kernels: bytes of an element, or 0
  std::unordered_map<const void*, size_t> variables;  // their sizes
  std::unordered_map<const void*, void*> symbols;     // their memory, once it is wanted
};

Registered& registered() {
  static auto* const all = new Registered;
  return *all;
}

struct Launch {
  dim3 grid, block;
  size_t shared_bytes;
  void* stream;
};
thread_local std::vector<Launch> launches;

size_t bytes_of_type(const std::string& mangled) {
  if (mangled.starts_with("N3c104HalfE") || mangled.starts_with("N3c108BFloat16E")) return 2;
  switch (mangled[0]) {
    case 'a':
    case 'b':
    case 'h':
      return 1;
    case 's':
      return 2;
    case 'f':
    case 'i':
      return 4;
    case 'd':
    case 'l':
      return 8;
    default:
      return 0;
  }
}

// Bytes of an element, if the kernel is PyTorch's fill of memory side by side; otherwise 0.
size_t fill_bytes(const std::string& mangled) {
  static const std::string kernel = "29vectorized_elementwise_kernelILi";
  static const std::string functor = "ENS0_11FillFunctorI";
  const size_t begin = mangled.find(kernel);
  if (begin == std::string::npos) return 0;
  const size_t type = mangled.find(functor, begin);
  const bool is_next = type != std::string::npos && type <= begin + kernel.size() + 3;
  return is_next ? bytes_of_type(mangled.substr(type + functor.size())) : 0;
}

size_t fill_bytes_of(const void* kernel, bool& is_known) {
  const std::lock_guard guard(registered().mutex);
  const auto found = registered().fills.find(kernel);
  is_known = found != registered().fills.end();
  return is_known ? found->second : 0;
}

// The arguments of the fill: how many elements, the value, and where they are.
cudaError_t launch(const void* kernel, cudaStream_t stream, void** arguments) {
  if (const cudaError_t error = ready(); error != cudaSuccess) return error;
  if (fake_gpu::device_of(as_stream(stream)) != fake_gpu::current_device()) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  bool is_known = false;
  const size_t bytes = fill_bytes_of(kernel, is_known);
  if (!is_known) return fail(cudaErrorInvalidDeviceFunction);
  if (bytes == 0) return submit(stream, [] { return fake_gpu::kSuccess; });
  const auto count = static_cast<size_t>(*static_cast<int*>(arguments[0]));
  std::array<char, 8> value{};
  std::memcpy(value.data(), arguments[1], bytes);
  void* const to = *static_cast<void**>(arguments[2]);
  return submit(stream, [=] { return fake_gpu::fill(to, value.data(), bytes, count); });
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  const std::lock_guard guard(registered().mutex);
  registered().fills.emplace(host, fill_bytes(name));
}

void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t bytes, int, int) {
  const std::lock_guard guard(registered().mutex);
  registered().variables.emplace(host, bytes);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void* stream) {
  launches.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  const Launch launch = launches.back();
  launches.pop_back();
  *grid = launch.grid;
  *block = launch.block;
  *shared_bytes = launch.shared_bytes;
  *static_cast<void**>(stream) = launch.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, size_t,
                               cudaStream_t stream) {
  return launch(kernel, stream, arguments);
}

cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void** arguments, size_t,
                             cudaStream_t stream) {
  return launch(kernel, stream, arguments);
}

cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3, dim3, void** arguments, size_t,
                                        cudaStream_t stream) {
  return launch(kernel, stream, arguments);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                void** arguments) {
  return launch(kernel, config->stream, arguments);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->binaryVersion = attributes->ptxVersion = 89;
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel,
                                                          int threads, size_t bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, bytes, 0);
}

cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  const std::lock_guard guard(registered().mutex);
  void*& memory = registered().symbols[symbol];
  if (memory == nullptr) memory = std::calloc(1, registered().variables[symbol] + 8);
  *address = memory;
  return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* source, size_t bytes, size_t offset,
                               cudaMemcpyKind) {
  void* memory = nullptr;
  cudaGetSymbolAddress(&memory, symbol);
  std::memcpy(static_cast<char*>(memory) + offset, source, bytes);
  return cudaSuccess;
}

}  // extern "C"
