#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "bindings/register.h"
#include "claims/chunk.h"
#include "memory/co_lane/held_end.h"
#include "memory/host/allocation_hook.h"
#include "memory/host/host_lane_memory.h"

namespace py = pybind11;

namespace gpushare {
namespace {

struct ProcessLane {};  // the Python name for an object that a process has only once

using Unlocked = py::call_guard<py::gil_scoped_release>;

// Other threads of this process may need Python's lock, so the thread that has it does not wait for
// another process; and it cannot give it back in an allocation, since it may have locks of PyTorch
// as well.
bool is_without_gil() { return PyGILState_Check() == 0; }

int make_ledger() {
  const int descriptor = Ledger::make();
  if (descriptor >= 0) return descriptor;
  PyErr_SetFromErrno(PyExc_OSError);
  throw py::error_already_set();
}

std::unique_ptr<HeldEnd> hold_end(int ledger, int end, size_t bytes, size_t lane_bytes) {
  auto held = std::make_unique<HeldEnd>();
  const std::string reason = held->open(ledger, end, bytes, lane_bytes);
  if (!reason.empty()) throw std::runtime_error(reason);
  return held;
}

void register_ledger(py::module_& module) {
  module.def("make_ledger", &make_ledger,
             "Return the descriptor of a new ledger of a lane with two ends. Raises OSError.");
  module.def(
      "reap_end", [](int ledger, int end) { return Ledger::reap(ledger, end); }, py::arg("ledger"),
      py::arg("end"),
      "Free an end of a lane whose process has ended in an iteration; return whether it had.");
  module.def(
      "spoil_ledger", [](int ledger) { Ledger::spoil(ledger); }, py::arg("ledger"),
      "Let neither of the two processes go by this ledger any more: what they allocate from now on "
      "is private, until each has another ledger.");
  module.def(
      "is_ledger_whole", [](int ledger) { return Ledger::is_whole(ledger); }, py::arg("ledger"),
      "Return whether the two processes go by this ledger; False once one of them, or the broker, "
      "has spoiled it.");
  module.def("let_go_of_end", &Ledger::let_go, py::arg("ledger"), py::arg("end"),
             "Note that this process uses nothing of the lane, where the descriptor of the ledger "
             "came from a `HeldEnd`.");
  module.attr("LEAST_CHUNK") = kLeastChunk;
  module.def("chunk_bytes", &chunk_bytes, py::arg("lane_bytes"),
             "Return the bytes of a chunk of a lane with two ends. Such a lane has whole chunks.");
  py::class_<HeldEnd>(
      module, "HeldEnd",
      "An end of a lane that is held for a process which uses this part of the lane already, and "
      "has not got the ledger yet.\n\n"
      "`bytes` of the `lane_bytes` count as that process's, until "
      "it has opened the ledger by the `descriptor`, or `release` is called, or all descriptors of "
      "it are closed because processes have ended. Raises RuntimeError where the end cannot be "
      "held.")
      .def(py::init(&hold_end), py::arg("ledger"), py::arg("end"), py::arg("bytes"),
           py::arg("lane_bytes"))
      .def_property_readonly("descriptor", &HeldEnd::descriptor,
                             "The one to be sent to that process. It stays this object's.")
      .def("release", &HeldEnd::release,
           "Free the end, unless a process has opened it. Idempotent.");
}

void register_co_lane(py::module_& module) {
  py::class_<LaneEnd>(
      module, "LaneEnd",
      "One end of a lane that two processes fill at once.\n\n"
      "`ledger` is a descriptor that both "
      "processes have, and stays the caller's. What has to leave the lane in the middle of an "
      "iteration goes to a file in `page_directory`; where that is empty, to private memory. A "
      "thread that has Python's lock does not wait for the other process: what it allocates is "
      "private where there is no room.")
      .def(py::init([](int ledger, int end, const std::string& page_directory) {
             return LaneEnd{ledger, end, page_directory, &is_without_gil};
           }),
           py::arg("ledger"), py::arg("end"), py::arg("page_directory") = "");
  py::class_<CoLaneUsage>(
      module, "CoLaneUsage",
      "How this process has shared its lane with another one that computes at the same time.")
      .def_readonly("is_lost", &CoLaneUsage::is_lost,
                    "The ledger is inconsistent, so the lane is not used any more.");
}

void register_usage(py::module_& module) {
  py::class_<LaneUsage>(module, "LaneUsage", "The use of this process's lane.")
      .def_readonly("footprint", &LaneUsage::footprint,
                    "Bytes that the lane needed in the last iteration.")
      .def_readonly("overflow_bytes", &LaneUsage::overflow_bytes,
                    "The most bytes of blocks that did not fit, at one time in the last iteration.")
      .def_readonly("living_promoted_bytes", &LaneUsage::living_promoted_bytes,
                    "Promoted blocks that are alive now.");
  using Curve = TimeCurve::Known;
  py::class_<Curve>(module, "LaneCurve",
                    "The bytes of a usual iteration of this process in its lane, against its time.")
      .def_readonly("seconds", &Curve::seconds,
                    "Of an iteration, without waits for another process; 0: none has ended.")
      .def_readonly("bytes", &Curve::bytes, "The most in each of equal parts of that time.");
}

void register_host_lane_memory(py::module_& module) {
  py::class_<HostLaneMemory>(module, "HostLaneMemory",
                             "The memory of a lane on the host, as the broker keeps it. Raises "
                             "RuntimeError if the system has none.")
      .def(py::init<size_t>(), py::arg("capacity_bytes"))
      .def_property_readonly("descriptor", &HostLaneMemory::descriptor)
      .def_property_readonly(
          "descriptors",
          [](const HostLaneMemory& memory) { return std::vector<int>{memory.descriptor()}; },
          "The one descriptor, in a list as for the memory of every device.")
      .def("shrink", &HostLaneMemory::shrink, py::arg("bytes"),
           "Give the memory above `bytes` back to the system; it reads as zeros from then on.");
}

}  // namespace

void register_lane(py::module_& module) {
  register_usage(module);
  register_ledger(module);
  register_co_lane(module);
  register_host_lane_memory(module);
  py::class_<ProcessLane>(
      module, "Lane",
      "The lane of this process: memory that it uses in turn with others, for blocks of 64 KiB and "
      "more that live inside one iteration.\n\n"
      "A method that returns a string returns an empty one "
      "on success, or a sentence that says why it failed. From `promote` to `enter` the lane may "
      "belong to another process.")
      .def_static(
          "open", [](size_t window_bytes) { return lane().open(window_bytes); },
          py::arg("window_bytes"),
          "Reserve addresses, more than a lane will have bytes. It may be called once per process.")
      .def_static(
          "attach",
          [](int descriptor, size_t bytes, const std::optional<LaneEnd>& end) {
            return end ? lane().attach(descriptor, bytes, *end) : lane().attach(descriptor, bytes);
          },
          py::arg("descriptor"), py::arg("bytes"), py::arg("end") = std::nullopt, Unlocked(),
          "Use `bytes` of this memory, all of it or from one end; a further call changes the size "
          "or replaces the memory.\n\n"
          "It may be called between iterations only, and with nothing "
          "alive in the lane. The descriptor stays the caller's.")
      .def_static(
          "detach", [] { return lane().detach(); }, Unlocked(),
          "Give the memory up, between iterations and with nothing alive in the lane. What was "
          "learned about survivors stays.")
      .def_static(
          "forget", [] { lane().forget(); }, "Forget what was learned about survivors.")
      .def_static(
          "enter", [] { lane().enter(); },
          "An iteration begins: this thread, and no other, allocates from the lane.")
      .def_static(
          "leave", [] { lane().leave(); },
          "The iteration ends: no thread allocates from the lane any more.")
      .def_static(
          "survivors", [] { return lane().survivor_bytes(); },
          "Return the bytes that are alive in the lane.")
      .def_static(
          "promote", [] { return lane().promote(); }, Unlocked(),
          "Empty the lane, after leaving it if need be. Returns the bytes that were alive in "
          "it.\n\n"
          "Raises MemoryError where there is no room for them: then the lane must not pass "
          "to another process.")
      .def_static(
          "pass_on", [] { lane().pass_on(); },
          "Let the next process take this end of the lane, until `enter`: the turn ends, and the "
          "lane is empty.")
      .def_static("usage", [] { return lane().usage(); })
      .def_static(
          "curve", [] { return lane().curve(); },
          "Memory of a usual iteration in the lane over its time.")
      .def_static("co_lane_usage", [] { return lane().co_lane_usage(); })
      .def_static(
          "is_valid", [] { return lane().is_valid(); },
          "Empty, or the first broken invariant in words.");
}

}  // namespace gpushare
