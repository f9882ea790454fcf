// The scheduler and the lanes for Python. Calls take microseconds, so the GIL stays held.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/register.h"
#include "bindings/whole.h"
#include "core/lane_allocator.h"
#include "core/policy.h"
#include "core/scheduler.h"

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
    case State::held:
      return "held";
  }
  return "";
}

// Lanes keyed by text, for Python code that inspects them; the core numbers its sessions.
class NamedLanes {
 public:
  explicit NamedLanes(Bytes capacity) : lanes_(capacity) {}

  std::optional<LaneId> place(const std::string& id, const Demand& demand, int max_lanes) {
    if (numbers_.contains(id)) throw std::invalid_argument("'" + id + "' has a place already");
    const auto lane = lanes_.place(last_ + 1, demand, max_lanes);
    if (!lane) return lane;
    numbers_[id] = ++last_;
    ids_[last_] = id;
    return lanes_.lane_of(last_);
  }
  bool resize(const std::string& id, const Demand& demand) {
    return lanes_.resize(number(id), demand);
  }
  void remove(const std::string& id) {
    lanes_.remove(number(id));
    ids_.erase(number(id));
    numbers_.erase(id);
  }
  std::vector<LaneState> lanes() const {
    std::vector<LaneState> states;
    for (const auto& [id, lane] : lanes_.lanes()) {
      states.push_back({id, lane.bytes(), std::nullopt, {}});
      for (const auto& [bytes, member] : lane.members)
        states.back().members.push_back(ids_.at(member));
    }
    return states;
  }
  const LaneAllocator& allocator() const { return lanes_; }

 private:
  SessionNumber number(const std::string& id) const {
    const auto number = numbers_.find(id);
    if (number == numbers_.end()) throw UnknownSession("'" + id + "' has no place");
    return number->second;
  }

  LaneAllocator lanes_;
  std::map<std::string, SessionNumber> numbers_;
  std::map<SessionNumber, std::string> ids_;
  SessionNumber last_ = kNobody;
};

void register_types(py::module_& module) {
  py::class_<Demand>(module, "Demand")
      .def(py::init([](const py::int_& persistent, const py::int_& ephemeral, bool measured) {
             return Demand{whole<Bytes>(persistent, "persistent"),
                           whole<Bytes>(ephemeral, "ephemeral"), measured};
           }),
           py::arg("persistent") = 0, py::arg("ephemeral") = 0, py::arg("measured") = true)
      .def_readonly("persistent", &Demand::persistent)
      .def_readonly("ephemeral", &Demand::ephemeral)
      .def_readonly("measured", &Demand::measured)
      .def("__eq__", [](const Demand& a, const Demand& b) { return a == b; });

  py::class_<SessionSpec>(module, "SessionSpec")
      .def(py::init([](std::string user, double weight, const py::int_& priority,
                       const Demand& demand, const std::optional<py::int_>& remaining_iterations,
                       const py::int_& turn, bool holding, bool waiting, bool paused,
                       Seconds device_seconds, Seconds waited_seconds, const py::int_& iterations,
                       const py::int_& paged_out_bytes, bool busy, std::string group,
                       std::string domain, bool alone) {
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
                                alone};
           }),
           py::arg("user"), py::arg("weight") = 1.0, py::arg("priority") = 0,
           py::arg("demand") = Demand{}, py::arg("remaining_iterations") = py::none(),
           py::arg("turn") = 0, py::arg("holding") = false, py::arg("waiting") = false,
           py::arg("paused") = false, py::arg("device_seconds") = 0.0,
           py::arg("waited_seconds") = 0.0, py::arg("iterations") = 0,
           py::arg("paged_out_bytes") = 0, py::arg("busy") = true, py::arg("group") = "",
           py::arg("domain") = "", py::arg("alone") = false);

  py::class_<Grant>(module, "Grant")
      .def_readonly("session", &Grant::session)
      .def_readonly("turn", &Grant::turn)
      .def_readonly("lane", &Grant::lane);
  py::class_<Yield>(module, "Yield")
      .def_readonly("session", &Yield::session)
      .def_readonly("turn", &Yield::turn)
      .def_readonly("successor", &Yield::successor);
  py::class_<Decision>(module, "Decision")
      .def_readonly("grants", &Decision::grants)
      .def_readonly("yields", &Decision::yields)
      .def_readonly("page_outs", &Decision::page_outs)
      .def_readonly("page_ins", &Decision::page_ins)
      .def("__bool__", [](const Decision& d) {
        return !d.grants.empty() || !d.yields.empty() || !d.page_outs.empty() ||
               !d.page_ins.empty();
      });
}

void register_reasons(py::module_& module) {
  py::class_<Reason>(module, "Reason")
      .def_property_readonly("code", [](const Reason& reason) { return name(reason.code); })
      .def_readonly("other", &Reason::other)
      .def_readonly("bytes", &Reason::bytes)
      .def_readonly("free", &Reason::free)
      .def_readonly("count", &Reason::count)
      .def_readonly("percent", &Reason::percent)
      .def_readonly("device", &Reason::device)
      .def_readonly("text", &Reason::text)
      .def("__eq__", [](const Reason& one, const Reason& other) { return one == other; });
  module.def("reason_codes", [] {
    std::vector<std::string> codes;
    for (std::size_t i = 0; i < kCodes; ++i) codes.emplace_back(name(static_cast<Code>(i)));
    return codes;
  });
}

void register_picture(py::module_& module) {
  py::class_<SessionState>(module, "SessionState")
      .def_readonly("id", &SessionState::id)
      .def_readonly("user", &SessionState::user)
      .def_property_readonly("state", [](const SessionState& s) { return name(s.state); })
      .def_readonly("demand", &SessionState::demand)
      .def_readonly("lane", &SessionState::lane)
      .def_readonly("turn", &SessionState::turn)
      .def_readonly("place", &SessionState::place)
      .def_readonly("waiting", &SessionState::waiting)
      .def_readonly("expected_wait", &SessionState::expected_wait)
      .def_readonly("why", &SessionState::why)
      .def_readonly("device_seconds", &SessionState::device_seconds)
      .def_readonly("waited_seconds", &SessionState::waited_seconds)
      .def_readonly("iterations", &SessionState::iterations)
      .def_readonly("remaining_iterations", &SessionState::remaining_iterations)
      .def_readonly("weight", &SessionState::weight)
      .def_readonly("priority", &SessionState::priority)
      .def_readonly("paged_out_bytes", &SessionState::paged_out_bytes)
      .def_readonly("busy", &SessionState::busy);
  py::class_<LaneState>(module, "LaneState")
      .def_readonly("id", &LaneState::id)
      .def_readonly("bytes", &LaneState::bytes)
      .def_readonly("holder", &LaneState::holder)
      .def_readonly("members", &LaneState::members);
  py::class_<Picture>(module, "Picture")
      .def_readonly("policy", &Picture::policy)
      .def_readonly("capacity", &Picture::capacity)
      .def_readonly("persistent", &Picture::persistent)
      .def_readonly("free", &Picture::free)
      .def_readonly("foreign", &Picture::foreign)
      .def_readonly("running_lanes", &Picture::running_lanes)
      .def_readonly("probation", &Picture::probation)
      .def_readonly("lanes", &Picture::lanes)
      .def_readonly("sessions", &Picture::sessions);
}

void register_scheduler(py::module_& module) {
  const auto now = py::arg("now");
  const auto id = py::arg("id");
  py::class_<Scheduler>(module, "Scheduler")
      .def(py::init([](const py::int_& capacity, const std::string& policy, const Rules& rules) {
             return std::make_unique<Scheduler>(whole<Bytes>(capacity, "capacity"), policy, rules);
           }),
           py::arg("capacity"), py::arg("policy") = "fair", py::arg("rules") = Rules{})
      .def("open", &Scheduler::open, now, id, py::arg("spec"))
      .def("close", &Scheduler::close, now, id)
      .def(
          "request",
          [](Scheduler& self, Seconds now, const std::string& id, const py::int_& turn) {
            return self.request(now, id, whole<TurnNumber>(turn, "turn"));
          },
          now, id, py::arg("turn"))
      .def(
          "finish",
          [](Scheduler& self, Seconds now, const std::string& id, const py::int_& turn) {
            return self.finish(now, id, whole<TurnNumber>(turn, "turn"));
          },
          now, id, py::arg("turn"))
      .def(
          "report",
          [](Scheduler& self, Seconds now, const std::string& id, const py::int_& iterations,
             const Demand& demand, const std::optional<py::int_>& remaining_iterations) {
            return self.report(now, id, whole<std::int64_t>(iterations, "iterations"), demand,
                               whole<std::int64_t>(remaining_iterations, "remaining_iterations"));
          },
          now, id, py::arg("iterations"), py::arg("demand"),
          py::arg("remaining_iterations") = py::none())
      .def(
          "change",
          [](Scheduler& self, Seconds now, const std::string& id, std::optional<double> weight,
             const std::optional<py::int_>& priority, std::optional<bool> paused) {
            return self.change(now, id, weight, whole<int>(priority, "priority"), paused);
          },
          now, id, py::arg("weight") = py::none(), py::arg("priority") = py::none(),
          py::arg("paused") = py::none())
      .def("set_busy", &Scheduler::set_busy, now, id, py::arg("busy"))
      .def(
          "paged_out",
          [](Scheduler& self, Seconds now, const std::string& id, const py::int_& bytes) {
            return self.paged_out(now, id, whole<Bytes>(bytes, "bytes"));
          },
          now, id, py::arg("bytes"))
      .def("page_out_failed", &Scheduler::page_out_failed, now, id, py::arg("why") = "")
      .def("recall", &Scheduler::recall, now, id)
      .def("dismiss", &Scheduler::dismiss, now, id)
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
      .def("set_recovering", &Scheduler::set_recovering, now, py::arg("recovering"))
      .def("assign", &Scheduler::assign, now)
      .def(
          "may_keep",
          [](const Scheduler& self, const std::string& id, const py::int_& persistent) {
            return self.may_keep(id, whole<Bytes>(persistent, "persistent"));
          },
          id, py::arg("persistent"))
      .def("next_event", &Scheduler::next_event, now)
      .def("picture", &Scheduler::picture, now)
      .def("has_place", &Scheduler::has_place, id)
      .def("lane_bytes", &Scheduler::lane_bytes, py::arg("lane"))
      .def("is_valid", &Scheduler::is_valid)
      .def_property_readonly("policy", &Scheduler::policy)
      .def_property_readonly("free", &Scheduler::free)
      .def_property_readonly("foreign", &Scheduler::foreign)
      .def_property_readonly("recovering", &Scheduler::recovering)
      .def("__contains__", &Scheduler::contains)
      .def("__len__", &Scheduler::size);
}

void register_lanes(py::module_& module) {
  const auto id = py::arg("id");
  const auto demand = py::arg("demand");
  py::class_<NamedLanes>(module, "LaneAllocator")
      .def(py::init([](const py::int_& capacity) {
             return NamedLanes(whole<Bytes>(capacity, "capacity"));
           }),
           py::arg("capacity"))
      .def("place", &NamedLanes::place, id, demand, py::arg("max_lanes") = 0)
      .def("resize", &NamedLanes::resize, id, demand)
      .def("remove", &NamedLanes::remove, id)
      .def("lanes", &NamedLanes::lanes)
      .def_property_readonly("used", [](const NamedLanes& l) { return l.allocator().used(); })
      .def_property_readonly("capacity",
                             [](const NamedLanes& l) { return l.allocator().capacity(); })
      .def("is_valid", [](const NamedLanes& l) { return l.allocator().is_valid(); });
}

}  // namespace

void register_core(py::module_& module) {
  py::register_local_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const UnknownSession& error) {
      PyErr_SetString(PyExc_KeyError, error.what());
    }
  });
  register_types(module);
  register_reasons(module);
  register_picture(module);
  register_lanes(module);
  register_scheduler(module);
  module.def("policies", [] {
    std::vector<std::pair<std::string, std::string>> rows;
    for (const Policy& policy : policies()) rows.emplace_back(policy.name, policy.sentence);
    return rows;
  });
}

}  // namespace gpushare
