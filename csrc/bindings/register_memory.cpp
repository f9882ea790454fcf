#include <pybind11/pybind11.h>

#include "bindings/register.h"
#include "memory/allocation_hook.h"

namespace py = pybind11;

namespace gpushare {
namespace {

struct Counter {};  // the Python name of what the process has once

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
            allocation_counter().adopt(reinterpret_cast<const void*>(address), size);
          },
          py::arg("address"), py::arg("size"),
          "Count a storage that was allocated before `install`.")
      .def_static("live", [] { return allocation_counter().usage().live; })
      .def_static("peak", [] { return allocation_counter().usage().peak; })
      .def_static("reset_peak", [] { allocation_counter().take_peak(); })
      .def_static(
          "take_peak", [] { return as_tuple(allocation_counter().take_peak()); },
          "Live and peak bytes; the next peak starts at what is alive now.");
  module.def("return_free_memory", &return_free_memory, py::call_guard<py::gil_scoped_release>(),
             "Give the system back what libc keeps of freed blocks.");
}

}  // namespace gpushare
