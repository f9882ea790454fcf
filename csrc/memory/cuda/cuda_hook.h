#pragma once
#include <string>

namespace gpushare {

// PyTorch's caching allocator takes and ends the segments of a GPU in libc10_cuda.so alone, by
// cudaMalloc and cudaFree, unless expandable segments are on. The hook stands in those imports for
// good: what it made may be ended at any time. New segments on this process's GPU are private ones
// of cuda_memory(), which can be paged out; all others are the CUDA runtime's. Returns an empty
// string, or the sentence that says why it is impossible. Idempotent.
[[nodiscard]] std::string install_cuda_hook();

}  // namespace gpushare
