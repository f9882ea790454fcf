// The stacks of all threads.
//
// CPython 3.11 and before makes frame objects on demand, also while it has the lock of its list of
// threads (python/cpython#106883). A garbage collection that begins meanwhile may run code that
// waits for the GIL, which another thread has that waits for this lock: the process stands still
// for ever. And a thread that returns from a frame with further references has to move it, which is
// the probable cause of a crash of CPython 3.11. So no collection begins here, the GIL is kept, and
// no frame is referred to afterwards.
#include <frameobject.h>
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

template <typename Object>
py::object owned(Object* object) {
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(object));
}

py::list code_of(py::object frame) {
  py::list code;
  while (frame) {
    auto* const at = reinterpret_cast<PyFrameObject*>(frame.ptr());
    code.append(owned(PyFrame_GetCode(at)));
    frame = owned(PyFrame_GetBack(at));
  }
  return code;
}

py::dict stacks() {
  const auto current_frames =
      py::reinterpret_borrow<py::object>(PySys_GetObject("_current_frames"));
  const WithoutGarbageCollection none;
  py::dict stacks;
  for (const auto& [thread, frame] : py::dict(current_frames())) {
    stacks[thread] = code_of(py::reinterpret_borrow<py::object>(frame));
  }
  return stacks;
}

}  // namespace

void register_frames(py::module_& module) { module.def("stacks", &stacks); }

}  // namespace gpushare
