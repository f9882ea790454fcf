#pragma once
#include <cstddef>
#include <string>

// The functions of the CUDA driver API that we use: declared here, so that no toolkit is needed to
// build, and found at run time, so that one build serves machines with and without a GPU. Names,
// values and layouts are those of cuda.h.

namespace gpushare {

using CudaResult = int;
using CudaOrdinal = int;  // the number of a device, among those that CUDA_VISIBLE_DEVICES shows
using CudaAddress = unsigned long long;
using CudaHandle =
    unsigned long long;  // a handle of memory that may be mapped somewhere, or nowhere
struct CudaContext;      // CUDA's own term

inline constexpr CudaResult kCudaSuccess = 0;
inline constexpr CudaResult kCudaOutOfMemory = 2;

inline constexpr int kCudaVirtualMemorySupported = 102;  // device attributes
inline constexpr int kCudaDescriptorsSupported = 103;

enum class CudaAllocationType : int { kPinned = 1 };
enum class CudaHandleType : int { kNone = 0, kDescriptor = 1 };
enum class CudaLocationType : int { kDevice = 1 };
enum class CudaAccess : int { kReadWrite = 3 };
enum class CudaGranularity : int { kMinimum = 0 };

struct CudaLocation {
  CudaLocationType type;
  int id;
};
static_assert(sizeof(CudaLocation) == 8);

struct CudaAllocationProperties {
  CudaAllocationType type;
  CudaHandleType handle_types;
  CudaLocation location;
  void* windows_only;
  unsigned char compression;
  unsigned char direct_rdma;
  unsigned short usage;
  unsigned char reserved[4];
};
static_assert(offsetof(CudaAllocationProperties, handle_types) == 4);
static_assert(offsetof(CudaAllocationProperties, location) == 8);
static_assert(offsetof(CudaAllocationProperties, windows_only) == 16);
static_assert(offsetof(CudaAllocationProperties, compression) == 24);
static_assert(offsetof(CudaAllocationProperties, usage) == 26);
static_assert(sizeof(CudaAllocationProperties) == 32);

struct CudaAccessDescription {
  CudaLocation location;
  CudaAccess flags;
};
static_assert(offsetof(CudaAccessDescription, flags) == 8);
static_assert(sizeof(CudaAccessDescription) == 12);

// Each call has the name that libcuda exports; `_v2` is what cuda.h means without it.
#define GPUSHARE_CUDA_CALLS(CALL)                                                              \
  CALL(cuInit, (unsigned flags))                                                               \
  CALL(cuGetErrorString, (CudaResult result, const char** sentence))                           \
  CALL(cuDeviceGet, (CudaOrdinal * device, int ordinal))                                       \
  CALL(cuDeviceGetAttribute, (int* value, int attribute, CudaOrdinal device))                  \
  CALL(cuDevicePrimaryCtxRetain, (CudaContext * *context, CudaOrdinal device))                 \
  CALL(cuDevicePrimaryCtxRelease_v2, (CudaOrdinal device))                                     \
  CALL(cuCtxPushCurrent_v2, (CudaContext * context))                                           \
  CALL(cuCtxPopCurrent_v2, (CudaContext * *context))                                           \
  CALL(cuCtxSynchronize, ())                                                                   \
  CALL(cuMemGetAllocationGranularity,                                                          \
       (size_t* bytes, const CudaAllocationProperties* properties, CudaGranularity kind))      \
  CALL(cuMemAddressReserve, (CudaAddress * address, size_t bytes, size_t alignment,            \
                             CudaAddress wished, unsigned long long flags))                    \
  CALL(cuMemAddressFree, (CudaAddress address, size_t bytes))                                  \
  CALL(cuMemCreate, (CudaHandle * handle, size_t bytes,                                        \
                     const CudaAllocationProperties* properties, unsigned long long flags))    \
  CALL(cuMemRelease, (CudaHandle handle))                                                      \
  CALL(cuMemMap, (CudaAddress address, size_t bytes, size_t offset, CudaHandle handle,         \
                  unsigned long long flags))                                                   \
  CALL(cuMemUnmap, (CudaAddress address, size_t bytes))                                        \
  CALL(cuMemSetAccess,                                                                         \
       (CudaAddress address, size_t bytes, const CudaAccessDescription* access, size_t count)) \
  CALL(cuMemExportToShareableHandle,                                                           \
       (void* descriptor, CudaHandle handle, CudaHandleType type, unsigned long long flags))   \
  CALL(cuMemImportFromShareableHandle,                                                         \
       (CudaHandle * handle, void* descriptor, CudaHandleType type))                           \
  CALL(cuMemcpyDtoD_v2, (CudaAddress to, CudaAddress from, size_t bytes))                      \
  CALL(cuMemcpyDtoH_v2, (void* to, CudaAddress from, size_t bytes))                            \
  CALL(cuMemcpyHtoD_v2, (CudaAddress to, const void* from, size_t bytes))

// The driver's functions, once they are found.
struct CudaDriver {
  // Loads the functions from a library that stays loaded from then on. Returns an empty string, or
  // the sentence that says why it is impossible.
  [[nodiscard]] std::string find(const char* library = "libcuda.so.1");

#define GPUSHARE_DECLARE(name, parameters) CudaResult(*name) parameters = nullptr;
  GPUSHARE_CUDA_CALLS(GPUSHARE_DECLARE)
#undef GPUSHARE_DECLARE
};

}  // namespace gpushare
