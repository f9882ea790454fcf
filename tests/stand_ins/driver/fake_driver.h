#pragma once
#include <cstddef>
#include <map>
#include <string>

// Controls of the fake driver for tests, which the real one does not have.
namespace fake_driver {

// The objects that are alive in this process. All zeros: nothing was leaked.
struct Alive {
  size_t handles;
  size_t mappings;
  size_t reservations;
  size_t contexts;  // retained
  size_t bytes;     // of memory that a handle, a mapping or a descriptor keeps

  bool operator==(const Alive&) const = default;
};
Alive alive();

using Calls = std::map<std::string, size_t>;  // how often each was called
Calls calls();                                // since the last `forget_calls`
void forget_calls();

// The n-th call from now on fails with this code; 1 is the next one, 0 none.
void fail(size_t nth, int code);
// True once it has failed.
bool has_failed();

void set_capacity(size_t bytes, int device = 0);  // 1 GiB by default

}  // namespace fake_driver

// Returns how often this process made calls whose names begin so; tests call it by ctypes.
extern "C" size_t fake_driver_calls(const char* prefix);
