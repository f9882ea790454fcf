// Parts that only tests and benchmarks call from Python. No wheel has them.
#include <pybind11/pybind11.h>

#include "bindings/errors.h"
#include "bindings/register.h"
#include "memory/lane/lane.h"
#include "simulation/simulated_job.h"

namespace py = pybind11;

namespace {

// State of product objects that no Python code of the product reads.
void register_readings(py::module_& module) {
  using namespace gpushare;
  module.def(
      "think", [](const Cell& cell) { return cell.think; }, py::arg("cell"),
      "Return the seconds from the cell before it.");
  module.def(
      "paged", [](const Outcome& outcome) { return outcome.paged; }, py::arg("outcome"),
      "Return the bytes that went out and came in.");
  module.def(
      "overflows", [](const LaneUsage& usage) { return usage.overflows; }, py::arg("usage"),
      "Return the number of blocks that did not fit, since the process began.");
  module.def(
      "promoted_pages", [](const LaneUsage& usage) { return usage.promoted_pages; },
      py::arg("usage"), "Return the number of pages that were promoted, since the process began.");
  module.def(
      "waits", [](const CoLaneUsage& usage) { return usage.waits; }, py::arg("usage"),
      "Return the number of allocations that had to wait for the other process, so far.");
}

}  // namespace

PYBIND11_MODULE(_core_testing, module, pybind11::mod_gil_not_used()) {
  module.doc() = "Parts of the C++ of jupyter_gpushare by themselves, for tests and benchmarks.";
  pybind11::module_::import("jupyter_gpushare._core");  // it has the types that go in and come out
  gpushare::translate_errors();
  gpushare::register_concurrency_tuner(module);
  register_readings(module);
}
