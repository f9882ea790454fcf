// Our declarations of the driver API are those of NVIDIA's header. Compiled where there is one;
// nothing runs.
#include <cuda.h>

#include <type_traits>

#include "memory/cuda/cuda_driver.h"

// The header renames what has a newer version; ours has the names that the library exports.
#undef cuDevicePrimaryCtxRelease
#undef cuCtxPushCurrent
#undef cuCtxPopCurrent
#undef cuMemcpyDtoD
#undef cuMemcpyDtoH
#undef cuMemcpyHtoD

namespace gpushare {
namespace {

using Properties = CudaAllocationProperties;
using Theirs = CUmemAllocationProp;

static_assert(sizeof(Properties) == sizeof(Theirs));
static_assert(offsetof(Properties, type) == offsetof(Theirs, type));
static_assert(offsetof(Properties, handle_types) == offsetof(Theirs, requestedHandleTypes));
static_assert(offsetof(Properties, location) == offsetof(Theirs, location));
static_assert(offsetof(Properties, windows_only) == offsetof(Theirs, win32HandleMetaData));
static_assert(offsetof(Properties, compression) == offsetof(Theirs, allocFlags.compressionType));
static_assert(offsetof(Properties, usage) == offsetof(Theirs, allocFlags.usage));
static_assert(sizeof(CudaLocation) == sizeof(CUmemLocation));
static_assert(offsetof(CudaLocation, id) == offsetof(CUmemLocation, id));
static_assert(sizeof(CudaAccessDescription) == sizeof(CUmemAccessDesc));
static_assert(offsetof(CudaAccessDescription, flags) == offsetof(CUmemAccessDesc, flags));

template <class Ours, class TheirsToo>
constexpr bool is_same(Ours ours, TheirsToo theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}

static_assert(is_same(kCudaSuccess, CUDA_SUCCESS));
static_assert(is_same(kCudaOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY));
static_assert(is_same(kCudaVirtualMemorySupported,
                      CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
static_assert(is_same(kCudaDescriptorsSupported,
                      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
static_assert(is_same(CudaAllocationType::kPinned, CU_MEM_ALLOCATION_TYPE_PINNED));
static_assert(is_same(CudaHandleType::kNone, CU_MEM_HANDLE_TYPE_NONE));
static_assert(is_same(CudaHandleType::kDescriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
static_assert(is_same(CudaLocationType::kDevice, CU_MEM_LOCATION_TYPE_DEVICE));
static_assert(is_same(CudaAccess::kReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
static_assert(is_same(CudaGranularity::kMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM));

template <class Ours, class TheirsToo>
constexpr bool is_passed_alike() {
  return sizeof(Ours) == sizeof(TheirsToo) &&
         std::is_pointer_v<Ours> == std::is_pointer_v<TheirsToo>;
}

template <class... Ours, class Result, class... Others>
constexpr bool is_called_alike(CudaResult (*)(Ours...), Result (*)(Others...)) {
  if constexpr (sizeof...(Ours) == sizeof...(Others)) {
    return sizeof(CudaResult) == sizeof(Result) && (is_passed_alike<Ours, Others>() && ...);
  }
  return false;
}

#define GPUSHARE_CHECK(name, parameters) \
  static_assert(is_called_alike(decltype(CudaDriver::name){}, &::name), #name);
GPUSHARE_CUDA_CALLS(GPUSHARE_CHECK)

}  // namespace
}  // namespace gpushare
