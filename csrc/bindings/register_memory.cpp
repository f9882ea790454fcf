#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "bindings/register.h"
#include "memory/host/allocation_hook.h"

namespace py = pybind11;

namespace gpushare {
namespace {

struct Counter {};  // the Python name for an object that a process has only once

// The collector also lists objects that other threads have not finished making, and such a thread
// fails if it continues while another reference to its object exists. So no Python code runs
// between the making of the list and its end, and nothing but the type is used of objects of other
// types.
py::list living_objects(const std::vector<py::type>& kinds, const std::optional<int>& generation) {
  py::list found;
  const py::list all = py::module_::import("gc").attr("get_objects")(generation);
  for (const py::handle object : all) {
    const bool is_one = std::ranges::any_of(kinds, [&](const py::type& kind) {
      return PyType_IsSubtype(Py_TYPE(object.ptr()), reinterpret_cast<PyTypeObject*>(kind.ptr()));
    });
    if (is_one) found.append(object);
  }
  return found;
}

std::pair<int64_t, int64_t> as_pair(Usage usage) { return {usage.live, usage.peak}; }

}  // namespace

void register_memory(py::module_& module) {
  py::class_<Counter>(
      module, "AllocationCounter",
      "Counts live and peak bytes of PyTorch's CPU storages, by patching libc10's imports.")
      .def_static("install", &install_allocation_hook,
                  "Patch posix_memalign and free of libc10. Returns an empty string, or why it is "
                  "impossible. A repeated call is harmless.")
      .def_static(
          "adopt",
          [](uintptr_t address, size_t size) {
            adopt_block(reinterpret_cast<const void*>(address), size);
          },
          py::arg("address"), py::arg("size"),
          "Count a storage that was allocated before `install`.")
      .def_static("live", [] { return touched_usage().live; })
      .def_static("peak", [] { return touched_usage().peak; })
      .def_static("bytes_of_thread", &AllocationCounter::bytes_of_thread,
                  "Return the bytes that this thread has allocated less those that it has freed.")
      .def_static(
          "take_peak", [] { return as_pair(take_touched_peak()); },
          "Return live and peak bytes in one call, without the parts of large blocks that were "
          "never touched; the next peak starts at what is alive now.");
  module.def("living_objects", &living_objects, py::arg("kinds"),
             py::arg("generation") = py::none(),
             "Return the objects of these types and their subtypes that the garbage collector has, "
             "in one generation or in all. They are found without running Python code or touching "
             "other objects.");
  module.def(
      "return_free_memory", &return_free_memory, py::call_guard<py::gil_scoped_release>(),
      "Give freed blocks that libc keeps back to the system; they may be hundreds of megabytes.");
  module.def("note_iteration_outside", &note_iteration_outside,
             "Note that an iteration has its memory from libc, outside of the lane.");
  module.def("return_memory_of_iterations", &return_memory_of_iterations,
             py::call_guard<py::gil_scoped_release>(),
             "Call `return_free_memory` if an iteration was outside of the lane since the last "
             "call of this; it takes 10 to 50 ms.");
}

}  // namespace gpushare
