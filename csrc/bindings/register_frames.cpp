// The frames of all threads of Python.
#include <pybind11/pybind11.h>

#include "bindings/other_threads.h"
#include "bindings/register.h"
#include "bindings/stacks.h"

namespace py = pybind11;

namespace gpushare {
namespace {

py::dict stacks_by_thread() {
  py::dict found;
  for (const auto& [thread, code] : stacks()) {
    py::list codes;
    for (const auto& one : code) codes.append(one);
    found[py::int_(thread)] = codes;
  }
  return found;
}

}  // namespace

void register_frames(py::module_& module) {
  module.def("stacks", &stacks_by_thread,
             "Return the code on the stack of each thread, the innermost first, by the thread's "
             "identifier. Nothing else runs meanwhile, no garbage collection either, and no frame "
             "is kept alive.");
  module.def("others_wait", &others_wait, py::arg("milliseconds") = 0,
             "Whether all other threads of Python wait, so that none computes. Until this thread "
             "gives the GIL away, none begins to. For a thread that runs, this waits that long. It "
             "is False off Linux.");
}

}  // namespace gpushare
