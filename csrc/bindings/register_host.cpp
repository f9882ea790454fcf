// All devices of a host, for Python. Calls take microseconds, so the GIL stays held.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/events.h"
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
  const auto id = py::arg("id");
  py::class_<Host> host(module, "Host");
  host.def(py::init(&make), py::arg("devices"), py::arg("policy") = "fair",
           py::arg("rules") = Rules{})
      .def("open", &Host::open, now, id, py::arg("devices"), py::arg("spec"))
      .def("has_turn", &Host::has_turn, id);
  register_events(host);
  register_devices(host);
}

}  // namespace gpushare
