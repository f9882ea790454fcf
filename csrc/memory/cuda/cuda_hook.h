#pragma once
#include <sys/types.h>

#include <cstddef>
#include <string>

namespace gpushare {

// PyTorch's caching allocator takes and ends the segments of a GPU in libc10_cuda.so alone, by
// cudaMalloc and cudaFree, unless expandable segments are on. The hook stays in those imports for
// good, since PyTorch may free its segments at any time. New segments on this process's GPU are
// private ones of cuda_memory(), which can be paged out; all others are the CUDA runtime's. Returns
// an empty string, or the sentence that says why it is impossible. Idempotent.
[[nodiscard]] std::string install_cuda_hook();

// Bytes of all segments that the functions below have made.
size_t shareable_bytes();

}  // namespace gpushare

// torch.cuda.memory.CUDAPluggableAllocator finds these by name. Once the hook is installed they
// still make segments with the CUDA runtime, which can share no others with another process. The
// device must be current; null if it is not, or has no room.
extern "C" {
[[gnu::visibility("default")]] void* gpushare_cuda_allocate_shareable(ssize_t bytes, int device,
                                                                      void* stream);
[[gnu::visibility("default")]] void gpushare_cuda_free_shareable(void* address, size_t bytes,
                                                                 int device, void* stream);
}
