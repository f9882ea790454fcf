// The concurrency tuner for Python, by itself.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/register.h"
#include "core/tuner/concurrency_tuner.h"

namespace py = pybind11;

namespace gpushare {

void register_concurrency_tuner(py::module_& module) {
  const auto now = py::arg("now");
  py::class_<ConcurrencyTuner>(
      module, "ConcurrencyTuner",
      "Measures whether several lanes that run at once get more done than one. Sessions are "
      "numbers.\n\n"
      "Times are seconds of one clock. `lanes` may run at once now; `hoped` is the "
      "number of lanes that may turn out to be worth it, 0 while that is unknown.")
      .def(py::init<Seconds>(), py::arg("quantum") = 0.25)
      .def("report", &ConcurrencyTuner::report, now, py::arg("session"), py::arg("iterations"),
           py::arg("used"),
           "The session did `iterations` since its last report; `used` are seconds of all its "
           "turns until now.")
      .def("forget", &ConcurrencyTuner::forget, py::arg("session"),
           "Earlier measurements of the session do not hold any more.")
      .def("follow", &ConcurrencyTuner::follow, now, py::arg("wanting"),
           "These sessions want the device, or have it. Decides how many lanes may run.")
      .def("runs", &ConcurrencyTuner::runs, now, py::arg("running"),
           "`running` turns run from now on.")
      .def("is_valid", &ConcurrencyTuner::is_valid)
      .def("next_event", &ConcurrencyTuner::next_event,
           "Return when time alone changes something, or None.")
      .def_property_readonly("lanes", &ConcurrencyTuner::lanes)
      .def_property_readonly("hoped", &ConcurrencyTuner::hoped)
      .def_property_readonly("finding", &ConcurrencyTuner::finding);
}

}  // namespace gpushare
