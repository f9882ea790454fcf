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
  py::class_<Gang>(
      module, "Gang",
      "A job of `duration` seconds on this number of whole `devices` at once.\n\n"
      "`skew` is the "
      "size of its largest tensor, as a part of its model. Its devices are of at most this number "
      "of `hosts`, even if it waits for them; 0: of any. A gang that `stays` cannot be stopped and "
      "resumed, so it keeps its devices until it ends.")
      .def(py::init<std::string, int, Seconds, Seconds, double, int, bool>(), py::arg("id"),
           py::arg("devices") = gang.devices, py::arg("duration") = gang.duration, py::kw_only(),
           py::arg("arrival") = gang.arrival, py::arg("skew") = gang.skew,
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
  py::class_<GangRules>(
      module, "GangRules",
      "The tunables of the queue of a cluster. Service is devices times seconds.\n\n"
      "A gang whose "
      "attained service crosses one of the `thresholds` goes to the tail of the next queue; one "
      "that has waited `knob` times as long as it has run goes to the tail of the first one (0: "
      "none does). The order is computed whenever a gang comes, ends or changes its queue, and "
      "each `tick` seconds while one waits. The policy `gittins` takes the service that `known` "
      "former jobs took, infinite where one did not end, and looks a `quantum` of service ahead. "
      "Gangs with more skew than `consolidates` get as few hosts as can be. A gang computes "
      "`start` seconds after it first has its devices, and `resume` seconds after it has them "
      "again.\n\n"
      "With `told`, service is what `ClusterQueue.served` has been told, and time alone "
      "makes no gang older. A turn computes for `least` seconds before the gang is asked to yield. "
      "For as long, in each of its waits, free devices are kept for the first gang that waits, "
      "from those behind it that were stopped.")
      .def(py::init<std::vector<Service>, double, Seconds, std::vector<Service>, Service, double,
                    Seconds, Seconds, bool, Seconds>(),
           py::kw_only(), py::arg("thresholds") = rules.thresholds, py::arg("knob") = rules.knob,
           py::arg("tick") = rules.tick, py::arg("known") = rules.known,
           py::arg("quantum") = rules.quantum, py::arg("consolidates") = rules.consolidates,
           py::arg("start") = rules.start, py::arg("resume") = rules.resume,
           py::arg("told") = rules.told, py::arg("least") = rules.least)
      .def_readonly("least", &GangRules::least)
      .def("in_parts", &GangRules::in_parts, py::arg("parts"),
           "Return the same rules for hosts whose devices are counted in that number of parts "
           "each. Raises ValueError for less than one part.");
}

void register_progress(py::module_& module) {
  const GangProgress made;
  py::class_<GangProgress>(
      module, "GangProgress",
      "The state of a gang.\n\n"
      "`run` and `waited` are seconds since it came into the first "
      "`queue`, and `attained` is `run` on all its devices; it has `served` seconds in its turn. "
      "`ticket` counts entries into queues. `holds` has its devices of each host, and is empty "
      "where it has none. It `keeps_free` devices that a gang behind it could have, and has done "
      "so for `kept_free` seconds of this wait.")
      .def(py::init<Gang, std::size_t, std::uint64_t, Seconds, Seconds, Seconds, Seconds, Seconds,
                    Seconds, DeviceCounts, bool, bool, bool, bool, Seconds, Seconds, int>(),
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
  py::class_<GangGrant>(module, "GangGrant",
                        "The gang of this id has these devices of each host from now on.")
      .def_readonly("gang", &GangGrant::gang)
      .def_readonly("devices", &GangGrant::devices);
  py::class_<GangDecision>(module, "GangDecision",
                           "`yields` are ids of gangs that are asked to yield, once for each turn.")
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
  py::class_<ClusterQueue>(
      module, "ClusterQueue",
      "The gangs of a cluster, after Tiresias: which of them has its turn, on which "
      "devices.\n\n"
      "`hosts` has the number of devices of each host, 0 of one that is lost. Events "
      "say what has happened, with its time in seconds of any clock; `assign` decides. `policy` is "
      "`srsf` (the least service left first), `las` (the least attained) or `gittins` (the highest "
      "index). Raises ValueError for what cannot be, and KeyError for a gang that is not known; a "
      "call that raises has changed nothing.")
      .def(py::init<std::vector<int>, const std::string&, GangRules>(), py::arg("hosts"),
           py::arg("policy") = "las", py::arg("rules") = GangRules{})
      .def("request", &ClusterQueue::request, now, py::arg("gang"),
           "The gang wants its devices; harmless if it has them. Its earlier service counts.")
      .def("set_hosts", &ClusterQueue::set_hosts, now, py::arg("hosts"),
           "The hosts have these devices from now on; new hosts come last. A gang that has devices "
           "which are there no more is asked to yield, even if it stays.")
      .def("served", &ClusterQueue::served, now, id, py::arg("more"),
           "The gang has computed on its devices for `more` device-seconds, in its turn or in the "
           "one that has ended.")
      .def("may_stop", &ClusterQueue::may_stop, now, id,
           "The gang can be stopped and resumed from now on, so it stays no more.")
      .def("moved", &ClusterQueue::moved, now, id, py::arg("holds"),
           "The program that started the gang gave it these devices, as many as it was granted.")
      .def("set_least", &ClusterQueue::set_least, py::arg("least"),
           "A turn lasts at least `least` seconds from now on.")
      .def("set_known", &ClusterQueue::set_known, py::arg("known"),
           "Former jobs took this service, for `gittins`: device-seconds, infinite for one that "
           "did not end.")
      .def(
          "restore", &ClusterQueue::restore, now, py::arg("progress"),
          "The gang is as it was in a queue before this one. All gangs of that queue are restored "
          "before any of them has an event. One whose hosts are not back yet waits for them, or is "
          "asked to yield. `hosts` of the constructor says what they may want when they ask again.")
      .def("finish", &ClusterQueue::finish, now, id,
           "The gang has its devices no more, or does not want them any more.")
      .def("close", &ClusterQueue::close, now, id, "The same, and the gang is forgotten.")
      .def("assign", &ClusterQueue::assign, now,
           "A gang that is asked to yield keeps its devices until it finishes.")
      .def("next_event", &next_event,
           "When time alone changes something, and `assign` should be called; None: it does not.")
      .def("progress", &ClusterQueue::progress, id)
      .def("waiting", &ClusterQueue::waiting,
           "Return the gangs that want devices, in the order of the last decision; those that came "
           "since are last.")
      .def("is_valid", &ClusterQueue::is_valid, "Return an empty string, or what is wrong.")
      .def("__contains__", &ClusterQueue::contains, id);
}

}  // namespace gpushare
