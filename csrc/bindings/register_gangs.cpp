// Gangs in virtual time, for Python. A run may take long, so it releases the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/register.h"
#include "core/cluster/gangs.h"

namespace py = pybind11;

namespace gpushare {
namespace {

void register_gang_results(py::module_& module) {
  py::class_<GangOutcome>(module, "GangOutcome")
      .def_readonly("id", &GangOutcome::id)
      .def_readonly("arrival", &GangOutcome::arrival)
      .def_readonly("started", &GangOutcome::started)
      .def_readonly("ended", &GangOutcome::ended)
      .def_readonly("waited", &GangOutcome::waited)
      .def_readonly("preempted", &GangOutcome::preempted)
      .def_readonly("promoted", &GangOutcome::promoted);
  py::class_<GangTurn>(module, "GangTurn")
      .def_readonly("gang", &GangTurn::gang)
      .def_readonly("began", &GangTurn::began)
      .def_readonly("ended", &GangTurn::ended)
      .def_readonly("devices", &GangTurn::devices);
}

}  // namespace

void register_gangs(py::module_& module) {
  register_gang_results(module);
  module.def("gittins_index", &gittins_index, py::arg("known"), py::arg("attained"),
             py::arg("quantum"));
  py::class_<GangSimulation>(module, "GangSimulation")
      .def(py::init<const std::vector<Gang>&, std::vector<int>, const std::string&, GangRules>(),
           py::arg("gangs"), py::arg("hosts"), py::arg("policy") = "las",
           py::arg("rules") = GangRules{})
      .def("run", &GangSimulation::run, py::arg("until") = kNever,
           py::call_guard<py::gil_scoped_release>())
      .def("is_valid", &GangSimulation::is_valid)
      .def_property_readonly("now", &GangSimulation::now)
      .def_property_readonly("outcomes", &GangSimulation::outcomes)
      .def_property_readonly("turns", &GangSimulation::turns);
}

}  // namespace gpushare
