// The scheduler of one device by itself, for tests and benchmarks.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/events.h"
#include "bindings/register.h"
#include "bindings/whole.h"
#include "core/scheduler.h"

namespace py = pybind11;

namespace gpushare {
namespace {

std::unique_ptr<Scheduler> make(const py::int_& capacity, const std::string& policy,
                                const Rules& rules) {
  return std::make_unique<Scheduler>(whole<Bytes>(capacity, "capacity"), policy, rules);
}

}  // namespace

void register_scheduler(py::module_& module) {
  const auto now = py::arg("now");
  const auto id = py::arg("id");
  py::class_<Scheduler> scheduler(module, "Scheduler");
  register_events(scheduler);
  scheduler
      .def(py::init(&make), py::arg("capacity"), py::arg("policy") = "fair",
           py::arg("rules") = Rules{})
      .def("open", &Scheduler::open, now, id, py::arg("spec"))
      .def("hold_back", &Scheduler::hold_back, now, py::arg("sentences"))
      .def("set_shares", &Scheduler::set_shares, now, py::arg("groups"), py::arg("users"))
      .def("set_policy", &Scheduler::set_policy, now, py::arg("name"))
      .def(
          "set_running_lanes",
          [](Scheduler& self, Seconds now, const py::int_& lanes) {
            return self.set_running_lanes(now, whole<int>(lanes, "lanes"));
          },
          now, py::arg("lanes"))
      .def(
          "set_foreign",
          [](Scheduler& self, Seconds now, const py::int_& bytes) {
            return self.set_foreign(now, whole<Bytes>(bytes, "bytes"));
          },
          now, py::arg("bytes"))
      .def("picture", &Scheduler::picture, now)
      .def("has_place", &Scheduler::has_place, id)
      .def("lane_bytes", &Scheduler::lane_bytes, py::arg("lane"))
      .def_property_readonly("policy", &Scheduler::policy)
      .def_property_readonly("free", &Scheduler::free)
      .def_property_readonly("foreign", &Scheduler::foreign)
      .def("__len__", &Scheduler::size);
}

}  // namespace gpushare
