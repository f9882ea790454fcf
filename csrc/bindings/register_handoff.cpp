#include <pybind11/pybind11.h>

#include "bindings/register.h"
#include "handoff/mailbox.h"

namespace py = pybind11;

namespace gpushare {
namespace {

py::object await(const Mailbox& mailbox, int connection, uint64_t number) {
  std::optional<Turn> turn;
  {
    const py::gil_scoped_release others_run;
    turn = mailbox.await(connection, number);
  }
  if (!turn) return py::none();
  return py::make_tuple(turn->number, turn->lane, turn->bytes, turn->memory, turn->chunks);
}

void send(const Mailbox& mailbox, std::string name, std::string letter) {
  mailbox.send({std::move(name), std::move(letter)});
}

}  // namespace

void register_handoff(py::module_& module) {
  py::class_<Mailbox>(module, "Mailbox",
                      "Where a session finds a turn that is handed on, and hands its own on.")
      .def(py::init<const std::string&>(), py::arg("name"),
           "Closed from the start where there is none to be had.")
      .def_property_readonly("is_open", &Mailbox::is_open)
      .def("close", &Mailbox::close)
      .def("renew", &Mailbox::renew, py::arg("key"), "From now on letters with this key count.")
      .def("look", &Mailbox::look, py::arg("connection"), py::arg("turn"),
           "Whether there is something to be received, of which nothing is taken.")
      .def("has_successor", &Mailbox::has_successor,
           "Whether the last look found who is next after its turn.")
      .def("hand_on", &Mailbox::hand_on, "Give it the turn.")
      .def("send", &send, py::arg("mailbox"), py::arg("letter"))
      .def("wait", &await, py::arg("connection"), py::arg("turn"),
           "Wait for a letter that gives `turn`: what its Grant says. None where something else "
           "came first, as a message or a signal.");
}

}  // namespace gpushare
