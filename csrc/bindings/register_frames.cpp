// The frames of all threads.
//
// CPython 3.11 and before makes frame objects while it has the lock of its list of threads
// (python/cpython#106883). A garbage collection that begins meanwhile may run code that waits for
// the GIL, which another thread has that waits for this lock: the process stands still for ever. So
// none begins. Nothing here gives the GIL away in between, so no other thread sees that.
#include <pybind11/pybind11.h>

#include "bindings/register.h"

namespace py = pybind11;

namespace gpushare {
namespace {

class WithoutGarbageCollection {
 public:
  WithoutGarbageCollection() : was_enabled_(PyGC_Disable() != 0) {}
  ~WithoutGarbageCollection() {
    if (was_enabled_) PyGC_Enable();
  }
  WithoutGarbageCollection(const WithoutGarbageCollection&) = delete;
  WithoutGarbageCollection& operator=(const WithoutGarbageCollection&) = delete;

 private:
  bool was_enabled_;
};

py::object current_frames() {
  const auto frames = py::reinterpret_borrow<py::object>(PySys_GetObject("_current_frames"));
  const WithoutGarbageCollection none;
  return frames();
}

}  // namespace

void register_frames(py::module_& module) { module.def("current_frames", &current_frames); }

}  // namespace gpushare
