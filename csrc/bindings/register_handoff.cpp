#include <pybind11/pybind11.h>

#include "bindings/register.h"
#include "handoff/handoff_slot.h"
#include "handoff/idle_turn.h"
#include "memory/host/allocation_hook.h"

namespace py = pybind11;

namespace gpushare {
namespace {

py::object await(const HandoffSlot& handoff_slot, int connection, uint64_t number) {
  std::optional<Turn> turn;
  {
    const py::gil_scoped_release others_run;
    turn = handoff_slot.await(connection, number);
  }
  if (!turn) return py::none();
  constexpr int kUnsqueezed = 0;  // else the broker's own Grant comes alone
  return py::make_tuple(turn->number, turn->lane, turn->bytes, turn->memory, turn->chunks,
                        kUnsqueezed, turn->end);
}

void send(const HandoffSlot& handoff_slot, std::string name, std::string handoff_token) {
  handoff_slot.send({std::move(name), std::move(handoff_token)});
}

// The lane of this process on the host.
IdleTurn::Lane host_lane() {
  return {[] { return lane().survivor_bytes() == 0; },
          [] {
            return_memory_of_iterations();
            lane().pass_on();
          }};
}

void register_idle_turn(py::module_& module) {
  using Unlocked =
      py::call_guard<py::gil_scoped_release>;  // for calls that wait for another thread
  py::class_<IdleTurn>(
      module, "IdleTurn",
      "The turn of this process, which goes between two iterations without Python.")
      .def(py::init([](bool watches) { return std::make_unique<IdleTurn>(host_lane(), watches); }),
           py::arg("watches") = true)
      .def("watch", &IdleTurn::watch, py::arg("connection"), Unlocked())
      .def(
          "prepare",
          [](IdleTurn& turn, uint64_t number, const py::bytes& finish) {
            std::string frame = finish;
            const py::gil_scoped_release others_run;
            turn.prepare(number, std::move(frame));
          },
          py::arg("turn"), py::arg("finish"))
      .def("lend", &IdleTurn::lend)
      .def("want", &IdleTurn::want, Unlocked())
      .def("keep", &IdleTurn::keep)
      .def("look", &IdleTurn::look, Unlocked())
      .def("enter", &IdleTurn::enter)
      .def("leave", &IdleTurn::leave)
      .def("gone_at", &IdleTurn::gone_at, Unlocked())
      .def("close", &IdleTurn::close)
      .def("forget", &IdleTurn::forget);
}

}  // namespace

void register_handoff(py::module_& module) {
  register_idle_turn(module);
  py::class_<HandoffSlot>(
      module, "HandoffSlot",
      "The handoff slot, by which a session receives a direct handoff and sends its own turn.")
      .def(py::init<const std::string&>(), py::arg("name"),
           "It is closed from the start where no slot is available.")
      .def_property_readonly("is_open", &HandoffSlot::is_open)
      .def("close", &HandoffSlot::close)
      .def("renew", &HandoffSlot::renew, py::arg("key"),
           "From now on direct handoffs with this key count.")
      .def("look", &HandoffSlot::look, py::arg("connection"), py::arg("turn"),
           "Whether there is something to receive; nothing is taken.")
      .def("has_successor", &HandoffSlot::has_successor,
           "Whether the last look found the successor after its turn.")
      .def("hand_off", &HandoffSlot::hand_off, py::call_guard<py::gil_scoped_release>(),
           "Give the turn to the successor, and let it wake.")
      .def("send", &send, py::arg("handoff_slot"), py::arg("handoff_token"))
      .def("wait", &await, py::arg("connection"), py::arg("turn"),
           "Wait for a direct handoff of `turn`: what its Grant says. None where something else "
           "came first, as a message or a signal.");
}

}  // namespace gpushare
