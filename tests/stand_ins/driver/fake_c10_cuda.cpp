#include "fake_runtime.h"

int c10_take_segment(void** address, size_t bytes) { return cudaMalloc(address, bytes); }

int c10_end_segment(void* address) { return cudaFree(address); }
