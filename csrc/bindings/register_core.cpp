// The inputs and outputs of a scheduler, for Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>

#include "bindings/errors.h"
#include "bindings/register.h"
#include "bindings/whole.h"
#include "core/model/types.h"
#include "core/policies/policy.h"

namespace py = pybind11;

namespace gpushare {
namespace {

const char* name(State state) {
  switch (state) {
    case State::idle:
      return "idle";
    case State::waiting:
      return "waiting";
    case State::running:
      return "running";
    case State::overdue:
      return "overdue";
    case State::paused:
      return "paused";
    case State::paged_out:
      return "paged_out";
    case State::throttled:
      return "throttled";
  }
  return "";
}

void register_types(py::module_& module) {
  py::class_<SqueezeOption>(
      module, "SqueezeOption",
      "An iteration with a peak of `bytes` takes `slowdown` times as long as unsqueezed.")
      .def(py::init([](const py::int_& bytes, double slowdown) {
             return SqueezeOption{whole<Bytes>(bytes, "bytes"), slowdown};
           }),
           py::arg("bytes"), py::arg("slowdown"))
      .def_readonly("bytes", &SqueezeOption::bytes)
      .def_readonly("slowdown", &SqueezeOption::slowdown)
      .def("__eq__", [](const SqueezeOption& a, const SqueezeOption& b) { return a == b; });

  py::class_<Demand>(module, "Demand",
                     "The memory of a session in bytes: persistent, and the ephemeral peak inside "
                     "one iteration.\n\n"
                     "A session whose demand is not `measured` runs alone. "
                     "`options` say how far it can be squeezed: from all of `ephemeral` at a "
                     "slowdown of 1 down to the floor; none, if it cannot be.")
      .def(py::init([](const py::int_& persistent, const py::int_& ephemeral, bool measured,
                       std::vector<SqueezeOption> options) {
             return Demand{whole<Bytes>(persistent, "persistent"),
                           whole<Bytes>(ephemeral, "ephemeral"), measured, std::move(options)};
           }),
           py::arg("persistent") = 0, py::arg("ephemeral") = 0, py::arg("measured") = true,
           py::arg("options") = std::vector<SqueezeOption>{})
      .def_readonly("options", &Demand::options)
      .def_readonly("persistent", &Demand::persistent)
      .def_readonly("ephemeral", &Demand::ephemeral)
      .def_readonly("measured", &Demand::measured)
      .def("__eq__", [](const Demand& a, const Demand& b) { return a == b; });

  py::class_<SessionSpec>(
      module, "SessionSpec",
      "The statements of a session when it opens. `holding`: it comes back from a lost "
      "broker.\n\n"
      "Time is shared over groups, then users, then notebooks; \"\" is a group like any "
      "other. Sessions of one trust domain pass turns by direct handoff; \"\" is the user's own "
      "domain. A session that is `alone` has the whole device in its turn, and is not paged out. "
      "It may be squeezed for others until it is slowed by a factor of `bears`. In the turn that "
      "it brings back, an iteration takes `squeezed_bytes` at most, one of its options; 0: it is "
      "not squeezed. One that `shares` can fill a lane from one end while another session fills it "
      "from the other.")
      .def(py::init([](std::string user, double weight, const py::int_& priority,
                       const Demand& demand, const std::optional<py::int_>& remaining_iterations,
                       const py::int_& turn, bool holding, bool waiting, bool paused,
                       Seconds device_seconds, Seconds waited_seconds, const py::int_& iterations,
                       const py::int_& paged_out_bytes, bool busy, std::string group,
                       std::string domain, bool alone, double bears, const py::int_& squeezed_bytes,
                       bool shares) {
             return SessionSpec{std::move(user),
                                weight,
                                whole<int>(priority, "priority"),
                                demand,
                                whole<std::int64_t>(remaining_iterations, "remaining_iterations"),
                                whole<TurnNumber>(turn, "turn"),
                                holding,
                                waiting,
                                paused,
                                device_seconds,
                                waited_seconds,
                                whole<std::int64_t>(iterations, "iterations"),
                                whole<Bytes>(paged_out_bytes, "paged_out_bytes"),
                                busy,
                                std::move(group),
                                std::move(domain),
                                alone,
                                bears,
                                whole<Bytes>(squeezed_bytes, "squeezed_bytes"),
                                shares};
           }),
           py::arg("user"), py::arg("weight") = 1.0, py::arg("priority") = 0,
           py::arg("demand") = Demand{}, py::arg("remaining_iterations") = py::none(),
           py::arg("turn") = 0, py::arg("holding") = false, py::arg("waiting") = false,
           py::arg("paused") = false, py::arg("device_seconds") = 0.0,
           py::arg("waited_seconds") = 0.0, py::arg("iterations") = 0,
           py::arg("paged_out_bytes") = 0, py::arg("busy") = true, py::arg("group") = "",
           py::arg("domain") = "", py::arg("alone") = false, py::arg("bears") = 1.0,
           py::arg("squeezed_bytes") = 0, py::arg("shares") = false);

  py::class_<Grant>(
      module, "Grant",
      "A turn in a lane, at one `end` of it, 0 or 1, where it has two; else that is -1.")
      .def_readonly("session", &Grant::session)
      .def_readonly("turn", &Grant::turn)
      .def_readonly("lane", &Grant::lane)
      .def_readonly("end", &Grant::end);
  py::class_<Yield>(module, "Yield")
      .def_readonly("session", &Yield::session)
      .def_readonly("turn", &Yield::turn)
      .def_readonly("successor", &Yield::successor)
      .def_readonly("until_cell_ends", &Yield::until_cell_ends);
  py::class_<Decision>(
      module, "Decision",
      "The effects of one event. All of them have to be enacted; an empty Decision is "
      "falsy.\n\n"
      "`page_outs` and `page_ins` are ids of sessions: the former are asked to page out; "
      "the latter have their place again, and page in before anything else.")
      .def_readonly("grants", &Decision::grants)
      .def_readonly("yields", &Decision::yields)
      .def_readonly("page_outs", &Decision::page_outs)
      .def_readonly("page_ins", &Decision::page_ins)
      .def("__bool__", [](const Decision& d) {
        return !d.grants.empty() || !d.yields.empty() || !d.page_outs.empty() ||
               !d.page_ins.empty();
      });
}

// The core makes all reasons but those that rules give.
Reason reason_of_rule(const std::string& code, std::string who, std::string rule,
                      const py::int_& count, Seconds seconds, Seconds until, const py::int_& bytes,
                      const py::int_& allowed) {
  return {.code = code_named(code),
          .bytes = whole<std::int64_t>(bytes, "bytes"),
          .count = whole<int>(count, "count"),
          .whole = whole<std::int64_t>(allowed, "whole"),
          .who = std::move(who),
          .rule = std::move(rule),
          .seconds = seconds,
          .until = until};
}

void register_reasons(py::module_& module) {
  py::class_<Reason>(module, "Reason",
                     "One part of the reason for the state of a session; reasons.py says what its "
                     "fields mean.\n\n"
                     "The core makes all of them but those that a rule gives. "
                     "Raises ValueError for an unknown code.")
      .def(py::init(&reason_of_rule), py::arg("code"), py::kw_only(), py::arg("who") = "",
           py::arg("rule") = "", py::arg("count") = 0, py::arg("seconds") = 0.0,
           py::arg("until") = 0.0, py::arg("bytes") = 0, py::arg("whole") = 0)
      .def_property_readonly("code", [](const Reason& reason) { return name(reason.code); })
      .def_readonly("other", &Reason::other)
      .def_readonly("bytes", &Reason::bytes)
      .def_readonly("free", &Reason::free)
      .def_readonly("count", &Reason::count)
      .def_readonly("percent", &Reason::percent)
      .def_readonly("device", &Reason::device)
      .def_readonly("text", &Reason::text)
      .def_readonly("whole", &Reason::whole)
      .def_readonly("who", &Reason::who)
      .def_readonly("rule", &Reason::rule)
      .def_readonly("seconds", &Reason::seconds)
      .def_readonly("until", &Reason::until)
      .def("__eq__", [](const Reason& one, const Reason& other) { return one == other; });
  module.def(
      "reason_codes",
      [] {
        std::vector<std::string> codes;
        for (std::size_t i = 0; i < kCodes; ++i) codes.emplace_back(name(static_cast<Code>(i)));
        return codes;
      },
      "All codes that a Reason may have.");
}

void register_device_snapshot(py::module_& module) {
  py::class_<SessionState>(
      module, "SessionState",
      "One session in a DeviceSnapshot; its fields are among those of wire.snapshot.SessionView.")
      .def_readonly("id", &SessionState::id)
      .def_readonly("user", &SessionState::user)
      .def_property_readonly("state", [](const SessionState& s) { return name(s.state); })
      .def_readonly("demand", &SessionState::demand)
      .def_readonly("lane", &SessionState::lane)
      .def_readonly("turn", &SessionState::turn)
      .def_readonly("position", &SessionState::position)
      .def_readonly("waiting", &SessionState::waiting)
      .def_readonly("expected_wait", &SessionState::expected_wait)
      .def_readonly("is_bound", &SessionState::is_bound)
      .def_readonly("why", &SessionState::why)
      .def_readonly("device_seconds", &SessionState::device_seconds)
      .def_readonly("waited_seconds", &SessionState::waited_seconds)
      .def_readonly("iterations", &SessionState::iterations)
      .def_readonly("remaining_iterations", &SessionState::remaining_iterations)
      .def_readonly("weight", &SessionState::weight)
      .def_readonly("priority", &SessionState::priority)
      .def_readonly("paged_out_bytes", &SessionState::paged_out_bytes)
      .def_readonly("busy", &SessionState::busy)
      .def_readonly("squeezed", &SessionState::squeezed)
      .def_readonly("slowdown", &SessionState::slowdown)
      .def_readonly("in_iteration", &SessionState::in_iteration);
  py::class_<LaneState>(
      module, "LaneState",
      "A lane; while two sessions use it at once, `beside` has its other end, and `width` is not "
      "0.\n\n"
      "A lane keeps its width, to which both go, until none of the two holds it any more.")
      .def_readonly("id", &LaneState::id)
      .def_readonly("bytes", &LaneState::bytes)
      .def_readonly("holder", &LaneState::holder)
      .def_readonly("members", &LaneState::members)
      .def_readonly("beside", &LaneState::beside)
      .def_readonly("width", &LaneState::width);
  py::class_<DeviceSnapshot>(
      module, "DeviceSnapshot",
      "The state of the scheduler at one moment; sessions are in the order in which they "
      "opened.\n\n"
      "`running_lanes` is the setting; 0 means that the policy decides. `unmanaged` is "
      "the unmanaged memory in bytes, used by programs that are not sessions, and `free` is what "
      "is left of the other bytes. `concurrency_tuner` says what several lanes at once were found "
      "to gain, if that is known.")
      .def_readonly("policy", &DeviceSnapshot::policy)
      .def_readonly("capacity", &DeviceSnapshot::capacity)
      .def_readonly("persistent", &DeviceSnapshot::persistent)
      .def_readonly("free", &DeviceSnapshot::free)
      .def_readonly("unmanaged", &DeviceSnapshot::unmanaged)
      .def_readonly("running_lanes", &DeviceSnapshot::running_lanes)
      .def_readonly("concurrency_tuner", &DeviceSnapshot::concurrency_tuner)
      .def_readonly("lanes", &DeviceSnapshot::lanes)
      .def_readonly("sessions", &DeviceSnapshot::sessions);
}

}  // namespace

void register_core(py::module_& module) {
  translate_errors();
  register_types(module);
  register_reasons(module);
  register_device_snapshot(module);
  module.def(
      "policies",
      [] {
        std::vector<std::pair<std::string, std::string>> rows;
        for (const Policy& policy : policies()) rows.emplace_back(policy.name, policy.sentence);
        return rows;
      },
      "Return the name and one sentence of each policy, in the order of the table.");
  module.def(
      "policy_named", [](const std::string& name) { return policy_named(name).name; },
      py::arg("name"),
      "Return the name of a policy as the table has it; the case of `name` does not count. Raises "
      "ValueError where there is none.");
}

}  // namespace gpushare
