#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>

#include "bindings/register.h"
#include "handoff/handoff_slot.h"
#include "handoff/idle_turn.h"
#include "memory/host/allocation_hook.h"

namespace py = pybind11;

namespace gpushare {
namespace {

using Received = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, int, int>;

std::optional<Received> await(const HandoffSlot& handoff_slot, int connection, uint64_t number) {
  std::optional<Turn> turn;
  {
    const py::gil_scoped_release others_run;
    turn = handoff_slot.await(connection, number);
  }
  if (!turn) return std::nullopt;
  constexpr int kUnsqueezed = 0;  // otherwise only the broker's own Grant comes
  return Received(turn->number, turn->lane, turn->bytes, turn->memory, turn->chunks, kUnsqueezed,
                  turn->end);
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
  py::class_<IdleTurn>(module, "IdleTurn",
                       "The turn of this process, which a thread without Python's lock gives back "
                       "while the process is between two iterations, the broker asks for it and "
                       "nothing is alive in the host's lane.\n\n"
                       "One thread at a time may call "
                       "`prepare`, `lend`, `want` and `keep`; any thread may call the others.")
      .def(py::init([](bool watches) { return std::make_unique<IdleTurn>(host_lane(), watches); }),
           py::arg("watches") = true,
           "Where `watches` is False there is no thread, and the turn goes when `look` is called.")
      .def("watch", &IdleTurn::watch, py::arg("connection"), Unlocked(),
           "Set the connection to the broker, by its descriptor; -1 where there is none.")
      .def(
          "prepare",
          [](IdleTurn& turn, uint64_t number, const py::bytes& finish) {
            std::string frame = finish;
            const py::gil_scoped_release others_run;
            turn.prepare(number, std::move(frame));
          },
          py::arg("turn"), py::arg("finish"),
          "Set the turn to lend next, while there is none; `finish` is sent when it goes.")
      .def("lend", &IdleTurn::lend,
           "Allow the turn to go that was prepared; without one nothing changes. Returns False "
           "where the system has no thread.")
      .def("want", &IdleTurn::want, Unlocked(),
           "The broker has asked for the turn, in a message that has been received.")
      .def("keep", &IdleTurn::keep,
           "The turn may not go any more, or has ended. Returns False if it has gone before.")
      .def("look", &IdleTurn::look, Unlocked(),
           "Do what the thread does again and again: the turn goes if it may go and the broker "
           "wants it.")
      .def("enter", &IdleTurn::enter,
           "An iteration begins: no turn goes before `leave`. Returns False if the turn has gone.")
      .def("leave", &IdleTurn::leave)
      .def("gone_at", &IdleTurn::gone_at, Unlocked(),
           "Return when the turn has gone, in seconds of `time.monotonic`; 0.0 if it has not.")
      .def("close", &IdleTurn::close)
      .def("forget", &IdleTurn::forget,
           "Give up the descriptor in a forked child, where nothing else happens.");
}

}  // namespace

void register_handoff(py::module_& module) {
  register_idle_turn(module);
  py::class_<HandoffSlot>(
      module, "HandoffSlot",
      "The handoff slot, by which a session receives a direct handoff and sends its own turn. One "
      "thread at a time may use it, but any thread may close it.")
      .def(py::init<const std::string&>(), py::arg("name"),
           "It is closed from the start where no slot is available, or `name` is empty.")
      .def_property_readonly("is_open", &HandoffSlot::is_open)
      .def("close", &HandoffSlot::close)
      .def("renew", &HandoffSlot::renew, py::arg("key"),
           "Accept direct handoffs with this key from now on; with the empty key, none.")
      .def("look", &HandoffSlot::look, py::arg("connection"), py::arg("turn"),
           "Whether there is something to receive from this descriptor; nothing is taken.")
      .def("has_successor", &HandoffSlot::has_successor,
           "Whether the last look found the successor after its turn.")
      .def("hand_off", &HandoffSlot::hand_off, py::call_guard<py::gil_scoped_release>(),
           "Give the turn to the successor.")
      .def("send", &send, py::arg("handoff_slot"), py::arg("handoff_token"))
      .def("wait", &await, py::arg("connection"), py::arg("turn"),
           "Wait for a direct handoff of `turn`: the fields of its Grant. None where something "
           "else came first, such as a message or a signal.");
}

}  // namespace gpushare
