#include "bindings/stacks.h"

#include <frameobject.h>

#include <utility>

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

std::vector<py::object> code_of(py::object frame) {
  std::vector<py::object> code;
  while (frame) {
    auto* const at = reinterpret_cast<PyFrameObject*>(frame.ptr());
    code.push_back(owned(PyFrame_GetCode(at)));
    frame = owned(PyFrame_GetBack(at));
  }
  return code;
}

}  // namespace

std::vector<Stack> stacks() {
  const auto current_frames =
      py::reinterpret_borrow<py::object>(PySys_GetObject("_current_frames"));
  const WithoutGarbageCollection none;
  std::vector<Stack> stacks;
  for (const auto& [thread, frame] : py::dict(current_frames())) {
    stacks.push_back(
        {thread.cast<unsigned long>(), code_of(py::reinterpret_borrow<py::object>(frame))});
  }
  return stacks;
}

}  // namespace gpushare
