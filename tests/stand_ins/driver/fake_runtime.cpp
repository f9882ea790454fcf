#include "fake_runtime.h"

#include <cstdlib>

namespace {
int current = 0;
}

int cudaMalloc(void** address, size_t bytes) {
  *address = std::malloc(bytes);
  return *address == nullptr ? 2 : 0;
}

int cudaFree(void* address) {
  std::free(address);
  return 0;
}

int cudaGetDevice(int* ordinal) {
  *ordinal = current;
  return 0;
}

int cudaSetDevice(int ordinal) {
  current = ordinal;
  return 0;
}
