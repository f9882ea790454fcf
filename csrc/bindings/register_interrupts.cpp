// Callbacks whose exceptions Python ignores, such as those of weak references.
//
// Python raises KeyboardInterrupt wherever the main thread is. In such a callback it would be
// printed and forgotten, and the cell would go on.
#include <pybind11/pybind11.h>

#include "bindings/register.h"

namespace py = pybind11;

namespace gpushare {
namespace {

bool is_interrupted(const py::function& callback, const py::args& args) {
  try {
    callback(*args);
    return false;
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_KeyboardInterrupt)) throw;
    return true;
  }
}

// Python looks for signals again once this has returned, so the interrupt is not raised in here.
py::cpp_function keeps_interrupts(const py::function& callback) {
  return [callback](const py::args& args) {
    if (!is_interrupted(callback, args)) return;
    is_interrupted(callback, args);
    PyErr_SetInterrupt();
  };
}

}  // namespace

void register_interrupts(py::module_& module) {
  module.def(
      "keeps_interrupts", &keeps_interrupts, py::arg("callback"),
      "Return what calls the callback, where Python ignores its exceptions. If an interrupt comes "
      "meanwhile, it is called once more, and KeyboardInterrupt is raised after it has returned. A "
      "callback that is called twice must do no more than one that is called once.");
}

}  // namespace gpushare
