// The concurrency tuner for Python, by itself.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/register.h"
#include "core/tuner/concurrency_tuner.h"

namespace py = pybind11;

namespace gpushare {

void register_concurrency_tuner(py::module_& module) {
  const auto now = py::arg("now");
  py::class_<ConcurrencyTuner>(module, "ConcurrencyTuner")
      .def(py::init<Seconds>(), py::arg("quantum") = 0.25)
      .def("report", &ConcurrencyTuner::report, now, py::arg("session"), py::arg("iterations"),
           py::arg("seconds"))
      .def("forget", &ConcurrencyTuner::forget, py::arg("session"))
      .def("follow", &ConcurrencyTuner::follow, now, py::arg("wanting"))
      .def("runs", &ConcurrencyTuner::runs, now, py::arg("running"))
      .def("is_valid", &ConcurrencyTuner::is_valid)
      .def("next_event", &ConcurrencyTuner::next_event)
      .def_property_readonly("lanes", &ConcurrencyTuner::lanes)
      .def_property_readonly("hoped", &ConcurrencyTuner::hoped)
      .def_property_readonly("finding", &ConcurrencyTuner::finding);
}

}  // namespace gpushare
