// Gangs in virtual time, for Python. A run may take long, so it releases the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/register.h"
#include "core/gangs.h"

namespace py = pybind11;

namespace gpushare {
namespace {

void register_jobs(py::module_& module) {
  const Gang gang;
  py::class_<Gang>(module, "Gang")
      .def(
          py::init([](std::string id, int devices, Seconds duration, Seconds arrival, double skew) {
            return Gang{std::move(id), devices, duration, arrival, skew};
          }),
          py::arg("id"), py::arg("devices") = gang.devices, py::arg("duration") = gang.duration,
          py::kw_only(), py::arg("arrival") = gang.arrival, py::arg("skew") = gang.skew)
      .def_readonly("id", &Gang::id)
      .def_readonly("devices", &Gang::devices)
      .def_readonly("duration", &Gang::duration)
      .def_readonly("arrival", &Gang::arrival)
      .def_readonly("skew", &Gang::skew);

  const GangRules rules;
  py::class_<GangRules>(module, "GangRules")
      .def(py::init([](std::vector<Service> thresholds, double knob, Seconds tick,
                       std::vector<Service> known, Service quantum, double consolidates,
                       Seconds resume) {
             return GangRules{std::move(thresholds), knob,  tick, std::move(known), quantum,
                              consolidates,          resume};
           }),
           py::kw_only(), py::arg("thresholds") = rules.thresholds, py::arg("knob") = rules.knob,
           py::arg("tick") = rules.tick, py::arg("known") = rules.known,
           py::arg("quantum") = rules.quantum, py::arg("consolidates") = rules.consolidates,
           py::arg("resume") = rules.resume);
}

void register_results(py::module_& module) {
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
  register_jobs(module);
  register_results(module);
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
