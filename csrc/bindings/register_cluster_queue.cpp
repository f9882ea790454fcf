// The queue of the gangs of a cluster, for Python. A decision takes milliseconds at most, so the
// GIL stays held.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "bindings/register.h"
#include "core/cluster/cluster_queue.h"

namespace py = pybind11;

namespace gpushare {
namespace {

void register_gang(py::module_& module) {
  const Gang gang;
  py::class_<Gang>(module, "Gang")
      .def(py::init([](std::string id, int devices, Seconds duration, Seconds arrival, double skew,
                       int hosts, bool stays) {
             return Gang{std::move(id), devices, duration, arrival, skew, hosts, stays};
           }),
           py::arg("id"), py::arg("devices") = gang.devices, py::arg("duration") = gang.duration,
           py::kw_only(), py::arg("arrival") = gang.arrival, py::arg("skew") = gang.skew,
           py::arg("hosts") = gang.hosts, py::arg("stays") = gang.stays)
      .def_readonly("id", &Gang::id)
      .def_readonly("devices", &Gang::devices)
      .def_readonly("duration", &Gang::duration)
      .def_readonly("arrival", &Gang::arrival)
      .def_readonly("skew", &Gang::skew)
      .def_readonly("hosts", &Gang::hosts)
      .def_readonly("stays", &Gang::stays);
}

void register_gang_rules(py::module_& module) {
  const GangRules rules;
  py::class_<GangRules>(module, "GangRules")
      .def(py::init([](std::vector<Service> thresholds, double knob, Seconds tick,
                       std::vector<Service> known, Service quantum, double consolidates,
                       Seconds start, Seconds resume, bool told, Seconds least) {
             return GangRules{std::move(thresholds),
                              knob,
                              tick,
                              std::move(known),
                              quantum,
                              consolidates,
                              start,
                              resume,
                              told,
                              least};
           }),
           py::kw_only(), py::arg("thresholds") = rules.thresholds, py::arg("knob") = rules.knob,
           py::arg("tick") = rules.tick, py::arg("known") = rules.known,
           py::arg("quantum") = rules.quantum, py::arg("consolidates") = rules.consolidates,
           py::arg("start") = rules.start, py::arg("resume") = rules.resume,
           py::arg("told") = rules.told, py::arg("least") = rules.least)
      .def("in_parts", &GangRules::in_parts, py::arg("parts"));
}

void register_progress(py::module_& module) {
  const GangProgress made;
  py::class_<GangProgress>(module, "GangProgress")
      .def(py::init([](Gang gang, std::size_t queue, std::uint64_t ticket, Seconds executed,
                       Seconds run, Seconds waited, Seconds granted, Seconds served,
                       Seconds resumes, DeviceCounts holds, bool wants, bool asked, bool started,
                       bool keeps_free, Seconds kept_free, Seconds waited_in_all, int promoted) {
             return GangProgress{std::move(gang), queue,   ticket,  executed,   run,
                                 waited,          granted, served,  resumes,    std::move(holds),
                                 wants,           asked,   started, keeps_free, kept_free,
                                 waited_in_all,   promoted};
           }),
           py::arg("gang"), py::kw_only(), py::arg("queue") = made.queue,
           py::arg("ticket") = made.ticket, py::arg("executed") = made.executed,
           py::arg("run") = made.run, py::arg("waited") = made.waited,
           py::arg("granted") = made.granted, py::arg("served") = made.served,
           py::arg("resumes") = made.resumes, py::arg("holds") = made.holds,
           py::arg("wants") = made.wants, py::arg("asked") = made.asked,
           py::arg("started") = made.started, py::arg("keeps_free") = made.keeps_free,
           py::arg("kept_free") = made.kept_free, py::arg("waited_in_all") = made.waited_in_all,
           py::arg("promoted") = made.promoted)
      .def_readonly("gang", &GangProgress::gang)
      .def_readonly("queue", &GangProgress::queue)
      .def_readonly("ticket", &GangProgress::ticket)
      .def_readonly("executed", &GangProgress::executed)
      .def_readonly("run", &GangProgress::run)
      .def_readonly("waited", &GangProgress::waited)
      .def_readonly("granted", &GangProgress::granted)
      .def_readonly("served", &GangProgress::served)
      .def_readonly("resumes", &GangProgress::resumes)
      .def_readonly("holds", &GangProgress::holds)
      .def_readonly("wants", &GangProgress::wants)
      .def_readonly("asked", &GangProgress::asked)
      .def_readonly("started", &GangProgress::started)
      .def_readonly("keeps_free", &GangProgress::keeps_free)
      .def_readonly("kept_free", &GangProgress::kept_free)
      .def_readonly("waited_in_all", &GangProgress::waited_in_all)
      .def_readonly("promoted", &GangProgress::promoted)
      .def_property_readonly("attained", &GangProgress::attained);
}

void register_decision(py::module_& module) {
  py::class_<GangGrant>(module, "GangGrant")
      .def_readonly("gang", &GangGrant::gang)
      .def_readonly("devices", &GangGrant::devices);
  py::class_<GangDecision>(module, "GangDecision")
      .def_readonly("grants", &GangDecision::grants)
      .def_readonly("yields", &GangDecision::yields);
}

std::optional<Seconds> next_event(const ClusterQueue& queue) {
  const Seconds next = queue.next_event();
  return next == kNever ? std::nullopt : std::optional(next);
}

}  // namespace

void register_cluster_queue(py::module_& module) {
  register_gang(module);
  register_gang_rules(module);
  register_progress(module);
  register_decision(module);
  const auto now = py::arg("now");
  const auto id = py::arg("id");
  py::class_<ClusterQueue>(module, "ClusterQueue")
      .def(py::init<std::vector<int>, const std::string&, GangRules>(), py::arg("hosts"),
           py::arg("policy") = "las", py::arg("rules") = GangRules{})
      .def("request", &ClusterQueue::request, now, py::arg("gang"))
      .def("set_hosts", &ClusterQueue::set_hosts, now, py::arg("hosts"))
      .def("served", &ClusterQueue::served, now, id, py::arg("more"))
      .def("may_stop", &ClusterQueue::may_stop, now, id)
      .def("moved", &ClusterQueue::moved, now, id, py::arg("holds"))
      .def("restore", &ClusterQueue::restore, now, py::arg("progress"))
      .def("finish", &ClusterQueue::finish, now, id)
      .def("close", &ClusterQueue::close, now, id)
      .def("assign", &ClusterQueue::assign, now)
      .def("next_event", &next_event)
      .def("progress", &ClusterQueue::progress, id)
      .def("waiting", &ClusterQueue::waiting)
      .def("is_valid", &ClusterQueue::is_valid)
      .def("__contains__", &ClusterQueue::contains, id);
}

}  // namespace gpushare
