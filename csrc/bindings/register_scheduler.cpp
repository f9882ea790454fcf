// The scheduler of one device by itself, for tests and benchmarks.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/events.h"
#include "bindings/register.h"
#include "bindings/whole.h"
#include "core/device/fitting.h"
#include "core/host/scheduler.h"

namespace py = pybind11;

namespace gpushare {
namespace {

std::unique_ptr<Scheduler> make_scheduler(const py::int_& capacity, const std::string& policy,
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
      .def(py::init(&make_scheduler), py::arg("capacity"), py::arg("policy") = "fair",
           py::arg("rules") = Rules{})
      .def("open", &Scheduler::open, now, id, py::arg("spec"))
      .def("throttle", &Scheduler::throttle, now, py::arg("reasons"))
      .def("set_shares", &Scheduler::set_shares, now, py::arg("groups"), py::arg("users"))
      .def("set_policy", &Scheduler::set_policy, now, py::arg("name"))
      .def(
          "set_running_lanes",
          [](Scheduler& self, Seconds now, const py::int_& lanes) {
            return self.set_running_lanes(now, whole<int>(lanes, "lanes"));
          },
          now, py::arg("lanes"))
      .def(
          "set_unmanaged",
          [](Scheduler& self, Seconds now, const py::int_& bytes) {
            return self.set_unmanaged(now, whole<Bytes>(bytes, "bytes"));
          },
          now, py::arg("bytes"))
      .def("snapshot", &Scheduler::snapshot, now)
      .def(
          "has_place",
          [](const Scheduler& self, const std::string& id) {
            return self.state().has_place(self.state().sessions.of(id));
          },
          id)
      .def(
          "lane_bytes",
          [](const Scheduler& self, LaneId lane) {
            return self.state().lanes.table().bytes_of(lane);
          },
          py::arg("lane"))
      .def(
          "squeezed",
          [](const Scheduler& self, const std::string& session) {
            return squeezed(self.state(), self.state().sessions.of(session))
                .value_or(SqueezeOption{})
                .bytes;
          },
          py::arg("session"))
      .def_property_readonly("policy",
                             [](const Scheduler& self) { return self.state().policy->name; })
      .def_property_readonly("free",
                             [](const Scheduler& self) { return self.state().lanes.free(); })
      .def_property_readonly("unmanaged",
                             [](const Scheduler& self) { return self.state().lanes.unmanaged(); })
      .def("__len__", [](const Scheduler& self) { return self.state().sessions.size(); });
}

}  // namespace gpushare
