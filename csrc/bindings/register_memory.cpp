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

py::tuple as_tuple(Usage usage) { return py::make_tuple(usage.live, usage.peak); }

}  // namespace

void register_memory(py::module_& module) {
  py::class_<Counter>(module, "AllocationCounter",
                      "Counts live and peak bytes of PyTorch's CPU storages, by patching libc10's "
                      "imports.")
      .def_static("install", &install_allocation_hook,
                  "Patch posix_memalign and free of libc10; empty, or why it is impossible. "
                  "Idempotent.")
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
                  "The bytes that this thread has allocated less those that it has freed; below 0 "
                  "where it frees what others have allocated.")
      .def_static(
          "take_peak", [] { return as_tuple(take_touched_peak()); },
          "Live and peak bytes, without what was never touched of large blocks; the next peak "
          "starts "
          "at what is alive now.");
  module.def("living_objects", &living_objects, py::arg("kinds"),
             py::arg("generation") = py::none(),
             "The objects of these types and their subtypes that the garbage collector has, in one "
             "generation or in all, found without running Python code or touching other objects.");
  module.def("return_free_memory", &return_free_memory, py::call_guard<py::gil_scoped_release>(),
             "Give the system back what libc keeps of freed blocks.");
  module.def("note_iteration_outside", &note_iteration_outside);
  module.def("return_memory_of_iterations", &return_memory_of_iterations,
             py::call_guard<py::gil_scoped_release>(),
             "The same, if an iteration was outside of the lane since the last call.");
}

}  // namespace gpushare
