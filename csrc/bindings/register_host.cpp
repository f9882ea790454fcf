// All devices of a host, for Python. Calls take microseconds, so the GIL stays held.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/register.h"
#include "bindings/whole.h"
#include "core/host.h"

namespace py = pybind11;

namespace gpushare {
namespace {

std::unique_ptr<Host> make(const std::vector<std::pair<std::string, py::int_>>& devices,
                           const std::string& policy, const Rules& rules) {
  std::vector<DeviceSpec> specs;
  for (const auto& [name, capacity] : devices)
    specs.push_back({name, whole<Bytes>(capacity, "capacity")});
  return std::make_unique<Host>(specs, policy, rules);
}

void register_sessions(py::class_<Host>& host) {
  const auto now = py::arg("now");
  const auto id = py::arg("id");
  host.def("open", &Host::open, now, id, py::arg("devices"), py::arg("spec"))
      .def("close", &Host::close, now, id)
      .def(
          "request",
          [](Host& self, Seconds now, const std::string& id, const py::int_& turn) {
            return self.request(now, id, whole<TurnNumber>(turn, "turn"));
          },
          now, id, py::arg("turn"))
      .def(
          "finish",
          [](Host& self, Seconds now, const std::string& id, const py::int_& turn) {
            return self.finish(now, id, whole<TurnNumber>(turn, "turn"));
          },
          now, id, py::arg("turn"))
      .def(
          "report",
          [](Host& self, Seconds now, const std::string& id, const py::int_& iterations,
             const Demand& demand, const std::optional<py::int_>& remaining_iterations) {
            return self.report(now, id, whole<std::int64_t>(iterations, "iterations"), demand,
                               whole<std::int64_t>(remaining_iterations, "remaining_iterations"));
          },
          now, id, py::arg("iterations"), py::arg("demand"),
          py::arg("remaining_iterations") = py::none())
      .def(
          "change",
          [](Host& self, Seconds now, const std::string& id, std::optional<double> weight,
             const std::optional<py::int_>& priority, std::optional<bool> paused) {
            return self.change(now, id, weight, whole<int>(priority, "priority"), paused);
          },
          now, id, py::arg("weight") = py::none(), py::arg("priority") = py::none(),
          py::arg("paused") = py::none())
      .def("set_busy", &Host::set_busy, now, id, py::arg("busy"))
      .def(
          "paged_out",
          [](Host& self, Seconds now, const std::string& id, const py::int_& bytes) {
            return self.paged_out(now, id, whole<Bytes>(bytes, "bytes"));
          },
          now, id, py::arg("bytes"))
      .def("page_out_failed", &Host::page_out_failed, now, id, py::arg("why") = "")
      .def("recall", &Host::recall, now, id)
      .def("dismiss", &Host::dismiss, now, id)
      .def(
          "may_keep",
          [](const Host& self, const std::string& id, const py::int_& persistent) {
            return self.may_keep(id, whole<Bytes>(persistent, "persistent"));
          },
          id, py::arg("persistent"))
      .def("has_turn", &Host::has_turn, id)
      .def("__contains__", &Host::contains);
}

void register_devices(py::class_<Host>& host) {
  const auto now = py::arg("now");
  const auto device = py::arg("device");
  host.def(
          "place",
          [](const Host& self, const std::vector<std::string>& among, const Demand& demand,
             const py::int_& count) {
            return self.place(among, demand, whole<std::size_t>(count, "count"));
          },
          py::arg("among"), py::arg("demand"), py::arg("count") = 1)
      .def("hold_back", &Host::hold_back, now, device, py::arg("sentences"))
      .def("set_shares", &Host::set_shares, now, device, py::arg("groups"), py::arg("users"))
      .def("set_policy", &Host::set_policy, now, device, py::arg("name"))
      .def(
          "set_running_lanes",
          [](Host& self, Seconds now, const std::string& device, const py::int_& lanes) {
            return self.set_running_lanes(now, device, whole<int>(lanes, "lanes"));
          },
          now, device, py::arg("lanes"))
      .def(
          "set_foreign",
          [](Host& self, Seconds now, const std::string& device, const py::int_& bytes) {
            return self.set_foreign(now, device, whole<Bytes>(bytes, "bytes"));
          },
          now, device, py::arg("bytes"))
      .def(
          "policy",
          [](const Host& self, const std::string& name) { return self.scheduler(name).policy(); },
          device)
      .def(
          "free",
          [](const Host& self, const std::string& name) { return self.scheduler(name).free(); },
          device)
      .def(
          "foreign",
          [](const Host& self, const std::string& name) { return self.scheduler(name).foreign(); },
          device)
      .def(
          "sessions",
          [](const Host& self, const std::string& name) { return self.scheduler(name).size(); },
          device)
      .def(
          "lane_bytes",
          [](const Host& self, const std::string& name, LaneId lane) {
            return self.scheduler(name).lane_bytes(lane);
          },
          device, py::arg("lane"))
      .def("picture", &Host::picture, device, now);
}

}  // namespace

void register_host(py::module_& module) {
  const auto now = py::arg("now");
  py::class_<Host> host(module, "Host");
  host.def(py::init(&make), py::arg("devices"), py::arg("policy") = "fair",
           py::arg("rules") = Rules{})
      .def("set_recovering", &Host::set_recovering, now, py::arg("recovering"))
      .def("assign", &Host::assign, now)
      .def("next_event", &Host::next_event, now)
      .def("is_valid", &Host::is_valid)
      .def_property_readonly("recovering", &Host::recovering);
  register_sessions(host);
  register_devices(host);
}

}  // namespace gpushare
