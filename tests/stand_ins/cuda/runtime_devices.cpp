#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "runtime.h"

using namespace fake_runtime;

namespace {

thread_local cudaError_t last_error = cudaSuccess;

// Its primary context, which is retained for good.
cudaError_t make_current(int device) {
  static std::map<int, CUcontext> contexts;
  static std::mutex mutex;
  const std::lock_guard guard(mutex);
  CUresult result = cuInit(0);
  CUcontext& primary = contexts[device];
  if (result == CUDA_SUCCESS && primary == nullptr) {
    result = cuDevicePrimaryCtxRetain(&primary, device);
  }
  return from(result == CUDA_SUCCESS ? cuCtxSetCurrent(primary) : result);
}

}  // namespace

namespace fake_runtime {

cudaError_t fail(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t ready() {
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  return context == nullptr ? make_current(0) : from(fake_gpu::gpus().broken);
}

cudaError_t ready_outside_of_captures() {
  return is_capturing_anything() ? fail(cudaErrorStreamCaptureUnsupported) : ready();
}

}  // namespace fake_runtime

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) { return from(cuDriverGetVersion(version)); }

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, static_cast<cudaError_t>(fake_gpu::gpus().broken));
}

cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  if (error == cudaSuccess) return "cudaSuccess";
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
                                            : "cudaErrorOfTheFakeRuntime";
}

const char* cudaGetErrorString(cudaError_t error) {
  const char* sentence = "";
  cuGetErrorString(static_cast<CUresult>(error), &sentence);
  return sentence;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  const CUresult result = cuInit(0);
  return from(result == CUDA_SUCCESS ? cuDeviceGetCount(count) : result);
}

cudaError_t cudaGetDevice(int* device) {
  *device = fake_gpu::current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  const cudaError_t error = make_current(device);
  return error == cudaSuccess ? from(fake_gpu::gpus().broken) : error;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return from(cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(attribute), device));
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!fake_gpu::is_there(device)) return fail(cudaErrorInvalidDevice);
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    cudaDeviceGetAttribute(&value, which, device);
    return value;
  };
  *properties = {};
  cuDeviceGetName(properties->name, sizeof properties->name, device);
  cuDeviceGetUuid(&properties->uuid, device);
  cuDeviceTotalMem(&properties->totalGlobalMem, device);
  properties->major = attribute(cudaDevAttrComputeCapabilityMajor);
  properties->minor = attribute(cudaDevAttrComputeCapabilityMinor);
  properties->multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
  properties->pciBusID = attribute(cudaDevAttrPciBusId);
  properties->warpSize = attribute(cudaDevAttrWarpSize);
  properties->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
  properties->maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
  properties->maxThreadsDim[0] = attribute(cudaDevAttrMaxBlockDimX);
  properties->maxThreadsDim[1] = attribute(cudaDevAttrMaxBlockDimY);
  properties->maxThreadsDim[2] = attribute(cudaDevAttrMaxBlockDimZ);
  properties->maxGridSize[0] = attribute(cudaDevAttrMaxGridDimX);
  properties->maxGridSize[1] = attribute(cudaDevAttrMaxGridDimY);
  properties->maxGridSize[2] = attribute(cudaDevAttrMaxGridDimZ);
  properties->sharedMemPerBlock =
      static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlock));
  properties->regsPerBlock = attribute(cudaDevAttrMaxRegistersPerBlock);
  properties->unifiedAddressing = properties->concurrentKernels = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return from(cuDeviceGetPCIBusId(text, length, device));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  const cudaError_t error = ready_outside_of_captures();
  return error == cudaSuccess ? from(cuCtxSynchronize()) : error;
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  *function = dlsym(library, (std::string(symbol) + "_v2").c_str());
  if (*function == nullptr) *function = dlsym(library, symbol);
  if (status != nullptr) {
    *status =
        *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}

}  // extern "C"
