// The concurrency tuner for Python, by itself.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/register.h"
#include "core/probation.h"

namespace py = pybind11;

namespace gpushare {

void register_probation(py::module_& module) {
  const auto now = py::arg("now");
  py::class_<Probation>(module, "Probation")
      .def(py::init<Seconds>(), py::arg("quantum") = 0.25)
      .def("report", &Probation::report, now, py::arg("session"), py::arg("iterations"),
           py::arg("seconds"))
      .def("forget", &Probation::forget, py::arg("session"))
      .def("follow", &Probation::follow, now, py::arg("wanting"))
      .def("runs", &Probation::runs, now, py::arg("running"))
      .def("next_event", &Probation::next_event)
      .def_property_readonly("lanes", &Probation::lanes)
      .def_property_readonly("hoped", &Probation::hoped)
      .def_property_readonly("finding", &Probation::finding);
}

}  // namespace gpushare
