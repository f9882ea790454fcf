#include "memory/cuda/cuda_driver.h"

#include <dlfcn.h>

namespace gpushare {
namespace {

template <class F>
bool find_call(void* library, const char* name, F*& call) {
  call = reinterpret_cast<F*>(dlsym(library, name));
  return call != nullptr;
}

}  // namespace

std::string CudaDriver::find(const char* library) {
  void* loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) return std::string("there is no CUDA driver here: ") + dlerror();
#define GPUSHARE_FIND(name, parameters) \
  if (!find_call(loaded, #name, name)) return std::string(library) + " has no " #name;
  GPUSHARE_CUDA_CALLS(GPUSHARE_FIND)
#undef GPUSHARE_FIND
  return {};
}

}  // namespace gpushare
