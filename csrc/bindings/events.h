// The events of sessions and of time, which a scheduler and a host have alike.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bindings/whole.h"
#include "core/model/types.h"

namespace gpushare {

template <class Decides>
void register_events(pybind11::class_<Decides>& bound) {
  namespace py = pybind11;
  const auto now = py::arg("now");
  const auto id = py::arg("id");
  bound.def("close", &Decides::close, now, id)
      .def(
          "request",
          [](Decides& self, Seconds now, const std::string& id, const py::int_& turn) {
            return self.request(now, id, whole<TurnNumber>(turn, "turn"));
          },
          now, id, py::arg("turn"))
      .def(
          "finish",
          [](Decides& self, Seconds now, const std::string& id, const py::int_& turn) {
            return self.finish(now, id, whole<TurnNumber>(turn, "turn"));
          },
          now, id, py::arg("turn"))
      .def(
          "report",
          [](Decides& self, Seconds now, const std::string& id, const py::int_& iterations,
             const Demand& demand, const std::optional<py::int_>& remaining_iterations) {
            return self.report(now, id, whole<std::int64_t>(iterations, "iterations"), demand,
                               whole<std::int64_t>(remaining_iterations, "remaining_iterations"));
          },
          now, id, py::arg("iterations"), py::arg("demand"),
          py::arg("remaining_iterations") = py::none())
      .def(
          "change",
          [](Decides& self, Seconds now, const std::string& id, std::optional<double> weight,
             const std::optional<py::int_>& priority, std::optional<bool> paused) {
            return self.change(now, id, weight, whole<int>(priority, "priority"), paused);
          },
          now, id, py::arg("weight") = py::none(), py::arg("priority") = py::none(),
          py::arg("paused") = py::none())
      .def("set_busy", &Decides::set_busy, now, id, py::arg("busy"))
      .def(
          "paged_out",
          [](Decides& self, Seconds now, const std::string& id, const py::int_& bytes) {
            return self.paged_out(now, id, whole<Bytes>(bytes, "bytes"));
          },
          now, id, py::arg("bytes"))
      .def("page_out_failed", &Decides::page_out_failed, now, id, py::arg("why") = "")
      .def("preempt", &Decides::preempt, now, id)
      .def("evict", &Decides::evict, now, id)
      .def(
          "may_keep",
          [](const Decides& self, const std::string& id, const py::int_& persistent) {
            return self.may_keep(id, whole<Bytes>(persistent, "persistent"));
          },
          id, py::arg("persistent"))
      .def("set_recovering", &Decides::set_recovering, now, py::arg("recovering"))
      .def("assign", &Decides::assign, now)
      .def("next_event", &Decides::next_event, now)
      .def("is_valid", &Decides::is_valid)
      .def_property_readonly("recovering", &Decides::recovering)
      .def("__contains__", &Decides::contains);
}

}  // namespace gpushare
