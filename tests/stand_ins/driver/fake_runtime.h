#pragma once
#include <cstddef>

// A CUDA runtime whose memory is libc's, and a libc10_cuda.so that takes its segments there: just
// as much as PyTorch's caching allocator does, for what stands between the two.
extern "C" {
int cudaMalloc(void** address, size_t bytes);
int cudaFree(void* address);
int cudaGetDevice(int* ordinal);
int cudaSetDevice(int ordinal);

int c10_take_segment(void** address, size_t bytes);
int c10_end_segment(void* address);
}
