// All devices of a host, for Python. Calls take microseconds, so the GIL stays held.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

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

void register_events(py::class_<Host>& host) {
  const auto now = py::arg("now");
  const auto id = py::arg("id");
  host.def("close", &Host::close, now, id)
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
      .def("set_busy", &Host::set_busy, now, id, py::arg("busy"),
           "A cell begins or ends. A session that is out begins or ceases to wait to come back.")
      .def(
          "paged_out",
          [](Host& self, Seconds now, const std::string& id, const py::int_& bytes) {
            return self.paged_out(now, id, whole<Bytes>(bytes, "bytes"));
          },
          now, id, py::arg("bytes"),
          "The session is out, whether it was asked or not; if it is busy or wants a turn, it "
          "waits to come back.")
      .def("page_out_failed", &Host::page_out_failed, now, id, py::arg("why") = "",
           "The session stays, and is not asked again before it has been busy; its user is told "
           "`why`.")
      .def("preempt", &Host::preempt, now, id,
           "Ask a holder to yield, whether its time has passed or not. Raises ValueError if it has "
           "no turn.")
      .def("evict", &Host::evict, now, id,
           "Ask an idle session to page out, whether that is needed or not. Raises ValueError if "
           "it is not idle.")
      .def(
          "may_keep",
          [](const Host& self, const std::string& id, const py::int_& persistent) {
            return self.may_keep(id, whole<Bytes>(persistent, "persistent"));
          },
          id, py::arg("persistent"),
          "Whether the session would keep its place, or find one, if its persistent bytes were at "
          "least these.")
      .def("set_recovering", &Host::set_recovering, now, py::arg("recovering"),
           "Begin or end the recovery of all devices. During recovery no turn is granted, but a "
           "session that comes with one keeps it.")
      .def("assign", &Host::assign, now,
           "Make a scheduling pass; it has to be called when `next_event` has come. The events "
           "above end in one.")
      .def("next_event", &Host::next_event, now,
           "Return when time alone changes something (a quantum, a lease, aging), or None.")
      .def("is_valid", &Host::is_valid, "Empty, or the first broken invariant in words.")
      .def_property_readonly("recovering", &Host::recovering)
      .def("__contains__", &Host::contains);
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
          py::arg("among"), py::arg("demand"), py::arg("count") = 1,
          "Return the `count` best devices for a newcomer: those where there is room now, and most "
          "for each session.\n\n"
          "Raises ValueError where there are fewer devices than `count`.")
      .def("throttle", &Host::throttle, now, device, py::arg("reasons"),
           "Throttle these sessions and no others; `reasons` tells people why, by session "
           "id.\n\n"
           "One that runs is asked to yield; one that waits is granted nothing, and requests "
           "again once it is no longer throttled. Raises ValueError where there is no reason.")
      .def("set_shares", &Host::set_shares, now, device, py::arg("groups"), py::arg("users"),
           "Set the weights by name, in place of those before; a name that is absent has 1. Among "
           "gangs, each group and user has the mean of its weights on all devices.")
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
          now, device, py::arg("bytes"),
          "Set the bytes of unmanaged memory, used by programs that are not sessions. No session "
          "loses its place to them.")
      .def(
          "policy",
          [](const Host& self, const std::string& name) { return known(self, name).policy->name; },
          device)
      .def(
          "free",
          [](const Host& self, const std::string& name) { return known(self, name).lanes.free(); },
          device,
          "Return the bytes of the device beside persistent memory, lanes and unmanaged memory.")
      .def(
          "unmanaged",
          [](const Host& self, const std::string& name) {
            return known(self, name).lanes.unmanaged();
          },
          device, "Return the bytes of unmanaged memory, used by programs that are not sessions.")
      .def(
          "sessions",
          [](const Host& self, const std::string& name) {
            return known(self, name).sessions.size();
          },
          device, "Return the number of sessions that are open there.")
      .def(
          "lane_bytes",
          [](const Host& self, const std::string& name, LaneId lane) {
            return known(self, name).lanes.table().bytes_of(lane);
          },
          device, py::arg("lane"), "Return the bytes of the lane, or 0 if there is no such lane.")
      .def(
          "lane_width",
          [](const Host& self, const std::string& name, LaneId lane) {
            return known(self, name).lanes.table().width_of(lane);
          },
          device, py::arg("lane"),
          "Return the bytes that sessions go by which use the lane from its ends; 0: it has none.")
      .def(
          "end_of",
          [](const Host& self, const std::string& name, const std::string& session) {
            const DeviceState& state = known(self, name);
            return state.lanes.table().end_of(state.sessions.of(session).number);
          },
          device, py::arg("session"),
          "Return the end of its lane that a session has in its turn; -1: none.")
      .def(
          "squeezed",
          [](const Host& self, const std::string& name, const std::string& session) {
            const DeviceState& state = known(self, name);
            return squeezed(state, state.sessions.of(session)).value_or(SqueezeOption{}).bytes;
          },
          device, py::arg("session"),
          "Return the bytes that an iteration may take; 0, if the session is not squeezed.")
      .def("snapshot", &Host::snapshot, device, now);
}

}  // namespace

void register_host(py::module_& module) {
  const auto now = py::arg("now");
  const auto id = py::arg("id");
  py::class_<Host> host(
      module, "Host",
      "Schedules turns on all devices of a host, and chooses the devices of each session.\n\n"
      "A "
      "session on several devices is a gang: it has all of them to itself, or none, and is told "
      "once for all. A session on one device is scheduled as if that device were the only one. "
      "Each event has its time (seconds, never decreasing). Raises ValueError for a value out of "
      "range or an unknown device, KeyError for an unknown session, and, for a demand larger than "
      "the device, OverflowError(persistent, ephemeral, capacity, is_squeezed) with the bytes of "
      "the demand, squeezed as far as it can be, and of the device. A call that raises has "
      "changed nothing.");
  host.def(py::init(&make_host), py::arg("devices"), py::arg("policy") = "fair",
           py::arg("rules") = Rules{}, py::arg("least_chunk") = 1,
           "`devices` are their names and capacities in bytes. A lane that two sessions use at "
           "once consists of whole chunks of at least `least_chunk` bytes.")
      .def(
          "open", &Host::open, now, id, py::arg("devices"), py::arg("spec"),
          "Open a session. Raises ValueError where one that opens again is not on the same "
          "devices. A gang runs alone on each of its devices; its demand is that on each of them.");
  register_events(host);
  register_devices(host);
}

}  // namespace gpushare
