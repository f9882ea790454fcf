// All devices of a host, for Python. Calls take microseconds, so the GIL stays held.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/events.h"
#include "bindings/register.h"
#include "bindings/whole.h"
#include "core/device/fitting.h"
#include "core/host/host.h"

namespace py = pybind11;

namespace gpushare {
namespace {

std::unique_ptr<Host> make_host(const std::vector<std::pair<std::string, py::int_>>& devices,
                                const std::string& policy, const Rules& rules,
                                const py::int_& least_chunk) {
  std::vector<DeviceSpec> specs;
  for (const auto& [name, capacity] : devices)
    specs.push_back(
        {name, whole<Bytes>(capacity, "capacity"), whole<Bytes>(least_chunk, "least_chunk")});
  return std::make_unique<Host>(specs, policy, rules);
}

const DeviceState& known(const Host& host, const std::string& device) {
  return host.devices().state(host.devices().number_of(device));
}

void register_devices(py::class_<Host>& host) {
  const auto now = py::arg("now");
  const auto device = py::arg("device");
  host.def(
          "place",
          [](const Host& self, const std::vector<std::string>& among, const Demand& demand,
             const py::int_& count) {
            return self.devices().place(among, demand, whole<std::size_t>(count, "count"));
          },
          py::arg("among"), py::arg("demand"), py::arg("count") = 1)
      .def("throttle", &Host::throttle, now, device, py::arg("reasons"))
      .def("set_shares", &Host::set_shares, now, device, py::arg("groups"), py::arg("users"))
      .def("set_policy", &Host::set_policy, now, device, py::arg("name"))
      .def(
          "set_running_lanes",
          [](Host& self, Seconds now, const std::string& device, const py::int_& lanes) {
            return self.set_running_lanes(now, device, whole<int>(lanes, "lanes"));
          },
          now, device, py::arg("lanes"))
      .def(
          "set_unmanaged",
          [](Host& self, Seconds now, const std::string& device, const py::int_& bytes) {
            return self.set_unmanaged(now, device, whole<Bytes>(bytes, "bytes"));
          },
          now, device, py::arg("bytes"))
      .def(
          "policy",
          [](const Host& self, const std::string& name) { return known(self, name).policy->name; },
          device)
      .def(
          "free",
          [](const Host& self, const std::string& name) { return known(self, name).lanes.free(); },
          device)
      .def(
          "unmanaged",
          [](const Host& self, const std::string& name) {
            return known(self, name).lanes.unmanaged();
          },
          device)
      .def(
          "sessions",
          [](const Host& self, const std::string& name) {
            return known(self, name).sessions.size();
          },
          device)
      .def(
          "lane_bytes",
          [](const Host& self, const std::string& name, LaneId lane) {
            return known(self, name).lanes.table().bytes_of(lane);
          },
          device, py::arg("lane"))
      .def(
          "lane_width",
          [](const Host& self, const std::string& name, LaneId lane) {
            return known(self, name).lanes.table().width_of(lane);
          },
          device, py::arg("lane"))
      .def(
          "end_of",
          [](const Host& self, const std::string& name, const std::string& session) {
            const DeviceState& state = known(self, name);
            return state.lanes.table().end_of(state.sessions.of(session).number);
          },
          device, py::arg("session"))
      .def(
          "squeezed",
          [](const Host& self, const std::string& name, const std::string& session) {
            const DeviceState& state = known(self, name);
            return squeezed(state, state.sessions.of(session)).value_or(SqueezeOption{}).bytes;
          },
          device, py::arg("session"))
      .def("snapshot", &Host::snapshot, device, now);
}

}  // namespace

void register_host(py::module_& module) {
  const auto now = py::arg("now");
  const auto id = py::arg("id");
  py::class_<Host> host(module, "Host");
  host.def(py::init(&make_host), py::arg("devices"), py::arg("policy") = "fair",
           py::arg("rules") = Rules{}, py::arg("least_chunk") = 1)
      .def("open", &Host::open, now, id, py::arg("devices"), py::arg("spec"));
  register_events(host);
  register_devices(host);
}

}  // namespace gpushare
