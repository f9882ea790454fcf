// The places of sessions in lanes for Python, by themselves.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>

#include "bindings/register.h"
#include "bindings/whole.h"
#include "core/lanes/lane_allocator.h"

namespace py = pybind11;

namespace gpushare {
namespace {

// Lanes keyed by text for those who look at them from Python; the core counts its sessions.
class NamedLanes {
 public:
  explicit NamedLanes(Bytes capacity) : lanes_(capacity) {}

  std::optional<LaneId> place(const std::string& id, const Demand& demand, int max_lanes) {
    if (numbers_.contains(id)) throw std::invalid_argument("'" + id + "' has a place already");
    const auto lane = lanes_.place(last_ + 1, demand, max_lanes);
    if (!lane) return lane;
    numbers_[id] = ++last_;
    ids_[last_] = id;
    return lanes_.table().lane_of(last_);
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
    for (const auto& [id, lane] : lanes_.table().lanes()) {
      states.push_back({id, lane.bytes(), std::nullopt, {}, std::nullopt, lane.width});
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
  SessionNumber last_ = kNoSession;
};

}  // namespace

void register_lane_allocator(py::module_& module) {
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

}  // namespace gpushare
