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
             "A descriptor of a new ledger of a lane with two ends, which the caller closes.");
  module.def(
      "reap_end", [](int ledger, int end) { return Ledger::reap(ledger, end); }, py::arg("ledger"),
      py::arg("end"), "Free an end whose process has ended.");
  module.def(
      "spoil_ledger", [](int ledger) { Ledger::spoil(ledger); }, py::arg("ledger"),
      "Neither of the two processes goes by this ledger any more.");
  module.def(
      "is_ledger_whole", [](int ledger) { return Ledger::is_whole(ledger); }, py::arg("ledger"),
      "Whether the two processes go by it.");
  module.def("let_go_of_end", &Ledger::let_go, py::arg("ledger"), py::arg("end"),
             "This end is held no more by this descriptor.");
  module.attr("LEAST_CHUNK") = kLeastChunk;
  module.def("chunk_bytes", &chunk_bytes, py::arg("lane_bytes"));
  py::class_<HeldEnd>(module, "HeldEnd",
                      "An end that is held for a process which has not got the ledger yet.")
      .def(py::init(&hold_end), py::arg("ledger"), py::arg("end"), py::arg("bytes"),
           py::arg("lane_bytes"))
      .def_property_readonly("descriptor", &HeldEnd::descriptor)
      .def("release", &HeldEnd::release);
}

void register_co_lane(py::module_& module) {
  py::class_<LaneEnd>(module, "LaneEnd", "One end of a lane that two processes fill at once.")
      .def(py::init([](int ledger, int end, const std::string& page_directory) {
             return LaneEnd{ledger, end, page_directory, &is_without_gil};
           }),
           py::arg("ledger"), py::arg("end"), py::arg("page_directory") = "");
  py::class_<CoLaneUsage>(module, "CoLaneUsage", "How this process has shared its lane.")
      .def_readonly("wait_seconds", &CoLaneUsage::wait_seconds,
                    "That allocations have waited for the other process, so far.")
      .def_readonly("is_lost", &CoLaneUsage::is_lost,
                    "What the ledger says cannot be true, so the lane is not used any more.");
}

void register_usage(py::module_& module) {
  py::class_<LaneUsage>(module, "LaneUsage", "What the lane of this process was used for.")
      .def_readonly("footprint", &LaneUsage::footprint,
                    "Bytes that the lane had to have in the last iteration.")
      .def_readonly("overflow_bytes", &LaneUsage::overflow_bytes,
                    "The most bytes of blocks that did not fit, at one time in it.")
      .def_readonly("living_promoted_bytes", &LaneUsage::living_promoted_bytes,
                    "Promoted blocks that are alive now.");
  using Curve = TimeCurve::Known;
  py::class_<Curve>(module, "LaneCurve", "What a usual iteration has in the lane.")
      .def_readonly("seconds", &Curve::seconds, "Of an iteration, without waits; 0: unknown.")
      .def_readonly("bytes", &Curve::bytes, "The most in each of equal parts of that time.");
}

void register_host_lane_memory(py::module_& module) {
  py::class_<HostLaneMemory>(module, "HostLaneMemory",
                             "The memory of a lane on the host, as the broker keeps it.")
      .def(py::init<size_t>(), py::arg("capacity_bytes"))
      .def_property_readonly("descriptor", &HostLaneMemory::descriptor)
      .def_property_readonly(
          "descriptors",
          [](const HostLaneMemory& memory) { return std::vector<int>{memory.descriptor()}; })
      .def("shrink", &HostLaneMemory::shrink, py::arg("bytes"),
           "Give what lies above `bytes` back to the system; it reads as zeros from then on.");
}

}  // namespace

void register_lane(py::module_& module) {
  register_usage(module);
  register_ledger(module);
  register_co_lane(module);
  register_host_lane_memory(module);
  py::class_<ProcessLane>(
      module, "Lane",
      "The lane of this process: memory that it has in turn with others, for what lives inside one "
      "iteration. A method that returns a string returns an empty one, or the sentence that says "
      "why not.")
      .def_static(
          "open", [](size_t window_bytes) { return lane().open(window_bytes); },
          py::arg("window_bytes"),
          "Reserve addresses, more than a lane will have bytes. Once per process.")
      .def_static(
          "attach",
          [](int descriptor, size_t bytes, const std::optional<LaneEnd>& end) {
            return end ? lane().attach(descriptor, bytes, *end) : lane().attach(descriptor, bytes);
          },
          py::arg("descriptor"), py::arg("bytes"), py::arg("end") = std::nullopt, Unlocked(),
          "Use `bytes` of this memory, all of it or from one end; a further call changes the size "
          "or replaces the memory.")
      .def_static(
          "detach", [] { return lane().detach(); }, Unlocked())
      .def_static(
          "forget", [] { lane().forget(); }, "Forget what was learned about survivors.")
      .def_static(
          "enter", [] { lane().enter(); },
          "An iteration begins: this thread, and no other, allocates from the lane.")
      .def_static(
          "leave", [] { lane().leave(); }, "The iteration ends.")
      .def_static(
          "survivors", [] { return lane().survivor_bytes(); }, "Bytes that are alive in the lane.")
      .def_static(
          "promote", [] { return lane().promote(); }, Unlocked(),
          "Empty the lane before it is another's; returns the bytes that were alive in it.")
      .def_static(
          "pass_on", [] { lane().pass_on(); },
          "The turn has ended: the next process may take this one's end of the lane.")
      .def_static("usage", [] { return lane().usage(); })
      .def_static(
          "curve", [] { return lane().curve(); },
          "What a usual iteration has in the lane against its time.")
      .def_static("co_lane_usage", [] { return lane().co_lane_usage(); })
      .def_static(
          "is_valid", [] { return lane().is_valid(); },
          "Empty, or the first broken invariant in words.");
}

}  // namespace gpushare
