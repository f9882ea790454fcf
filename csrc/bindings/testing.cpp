// Parts that tests and benchmarks drive by themselves, and the product does not. No wheel has them.
#include <pybind11/pybind11.h>

#include "bindings/errors.h"
#include "bindings/register.h"
#include "memory/lane/lane.h"
#include "simulation/simulated_job.h"

namespace py = pybind11;

namespace {

// Readings of objects of the product that nothing in the product reads in Python.
void register_readings(py::module_& module) {
  using namespace gpushare;
  module.def("think", [](const Cell& cell) { return cell.think; }, py::arg("cell"));
  module.def("paged", [](const Outcome& outcome) { return outcome.paged; }, py::arg("outcome"));
  module.def("overflows", [](const LaneUsage& usage) { return usage.overflows; }, py::arg("usage"));
  module.def(
      "promoted_pages", [](const LaneUsage& usage) { return usage.promoted_pages; },
      py::arg("usage"));
  module.def("waits", [](const CoLaneUsage& usage) { return usage.waits; }, py::arg("usage"));
  module.def("spills", [](const CoLaneUsage& usage) { return usage.spills; }, py::arg("usage"));
}

}  // namespace

PYBIND11_MODULE(_core_testing, module, pybind11::mod_gil_not_used()) {
  module.doc() = "Parts of the C++ of jupyter_gpushare by themselves, for tests and benchmarks.";
  pybind11::module_::import("jupyter_gpushare._core");  // it has the types that go in and come out
  gpushare::translate_errors();
  gpushare::register_block_allocator(module);
  gpushare::register_concurrency_tuner(module);
  gpushare::register_gangs(module);
  gpushare::register_lane_allocator(module);
  gpushare::register_scheduler(module);
  register_readings(module);
}
