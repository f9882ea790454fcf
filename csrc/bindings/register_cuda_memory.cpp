#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/other_threads.h"
#include "bindings/register.h"
#include "memory/cuda/cuda_hook.h"
#include "memory/cuda/cuda_lane_memory.h"
#include "memory/cuda/cuda_memory.h"

namespace py = pybind11;

namespace gpushare {
namespace {

// The Python name for an object that a process has only once.
struct ProcessCudaLane {};
struct ProcessCudaSegments {};

using Unlocked = py::call_guard<py::gil_scoped_release>;
using AddressAndBytes = std::pair<uintptr_t, size_t>;

Lane& cuda_lane() { return cuda_memory().lane(); }
CudaSegments& segments() { return cuda_memory().segments(); }

void trim(const std::vector<AddressAndBytes>& living) {
  std::vector<Extent> extents;
  for (const auto& [address, bytes] : living) {
    extents.push_back({reinterpret_cast<const void*>(address), bytes});
  }
  cuda_lane().trim(extents);
}

constexpr int kOthersMilliseconds = 20;

bool has_finished() {
  return cuda_memory().open().empty() && cuda_memory().device().synchronize() == kCudaSuccess;
}

// They call no code in Python, which could give the GIL away.
bool renew(const py::list& storages) {
  const bool on_gpu = std::ranges::any_of(storages, [](const auto& storage) {
    return py::cast<std::string>(storage.attr("device").attr("type")) == "cuda";
  });
  if (!others_wait(kOthersMilliseconds) || (on_gpu && !has_finished())) return false;
  for (const auto& storage : storages) storage.attr("resize_")(storage.attr("nbytes")());
  return !on_gpu || has_finished();  // the copies read the old memory
}

bool promote() {
  if (!others_wait(kOthersMilliseconds) || !has_finished()) return false;
  cuda_lane().promote();
  return true;
}

void register_cuda_lane_memory(py::module_& module) {
  py::class_<CudaLaneMemory>(module, "CudaLaneMemory",
                             "The memory of a lane on this process's GPU, in chunks.")
      .def(py::init([](size_t bytes) {
             auto& memory = cuda_memory();
             return std::make_unique<CudaLaneMemory>(memory.device(), bytes,
                                                     memory.pages().page_bytes());
           }),
           py::arg("bytes"), Unlocked())
      .def_property_readonly("descriptors", [](const CudaLaneMemory& memory) {
        return std::vector<int>(memory.descriptors().begin(), memory.descriptors().end());
      });
}

void register_cuda_lane(py::module_& module) {
  py::class_<ProcessCudaLane>(module, "CudaLane",
                              "The lane of this process on a GPU. A method that returns a string "
                              "returns an empty one, or the "
                              "sentence that says why not.")
      .def_static(
          "expect",
          [](int ordinal, size_t window_bytes, size_t chunk_bytes) {
            return cuda_memory().expect(ordinal, window_bytes, chunk_bytes);
          },
          py::arg("ordinal"), py::arg("window_bytes"), py::arg("chunk_bytes"), Unlocked(),
          "Expect this GPU, with this window of addresses for lanes of such chunks. Once per "
          "process.")
      .def_static(
          "open", [] { return cuda_memory().open(); }, Unlocked(),
          "Use the GPU that is expected. A repeated call is harmless.")
      .def_static(
          "attach_chunks",
          [](uint32_t first, const std::vector<int>& descriptors) {
            return cuda_memory().pages().attach_from(first, descriptors);
          },
          py::arg("first"), py::arg("descriptors"), Unlocked(),
          "Replaces all chunks from `first` on, which are not in use, by these.")
      .def_static("attached_chunks", [] { return cuda_memory().pages().attached(); })
      .def_static(
          "attach", [](size_t bytes) { return cuda_lane().attach(bytes); }, py::arg("bytes"),
          Unlocked(), "Use `bytes` of the attached chunks.")
      .def_static(
          "detach", [] { return cuda_lane().detach(); }, Unlocked())
      .def_static(
          "enter", [] { cuda_lane().enter(); }, Unlocked(),
          "An iteration begins: all threads allocate from the lane.")
      .def_static(
          "leave", [] { cuda_lane().leave(); }, Unlocked(), "The iteration ends.")
      .def_static(
          "survivors", [] { return cuda_lane().survivor_bytes(); }, Unlocked(),
          "Bytes of the lane that PyTorch's allocator has, alive or kept.")
      .def_static(
          "segment_bytes", [] { return cuda_memory().bytes_in_lane(); },
          "Bytes of the segments of PyTorch's allocator that lie at addresses of the lane.")
      .def_static(
          "owns",
          [](uintptr_t address) {
            return cuda_lane().owns(reinterpret_cast<const void*>(address));
          },
          py::arg("address"))
      .def_static(
          "room", [] { return cuda_lane().room(); }, Unlocked(),
          "Bytes of the largest segment that would find room in the lane.")
      .def_static("trim", &trim, py::arg("living"), Unlocked(),
                  "Only these addresses and sizes are alive; the allocator must not use the "
                  "segments any more.")
      .def_static(
          "trimmed", [] { return cuda_lane().trimmed_bytes(); }, Unlocked(),
          "Bytes that are left of trimmed segments in the lane.")
      .def_static("renew", &renew, py::arg("storages"))
      .def_static("promote", &promote)
      .def_static("usage", [] { return cuda_lane().usage(); })
      .def_static(
          "is_valid", [] { return cuda_lane().is_valid(); }, Unlocked(),
          "Empty, or the first broken invariant in words.");
}

void register_cuda_segments(py::module_& module) {
  py::class_<ProcessCudaSegments>(module, "CudaSegments",
                                  "Private segments on this process's GPU, and their way to a file "
                                  "and back.")
      .def_static("install_hook", &install_cuda_hook,
                  "Patch cudaMalloc and cudaFree of libc10_cuda; empty, or why it is impossible. "
                  "Idempotent.")
      .def_static(
          "page_out", [](const std::string& directory) { return segments().page_out(directory); },
          py::arg("directory"), Unlocked())
      .def_static(
          "page_in", [] { return segments().page_in(); }, Unlocked())
      .def_static("cancel", [] { segments().cancel(); })
      .def_static(
          "owns",
          [](uintptr_t address) { return segments().owns(reinterpret_cast<const void*>(address)); },
          py::arg("address"))
      .def_static(
          "bytes", [] { return segments().bytes(); }, Unlocked())
      .def_static("shareable_bytes", &shareable_bytes,
                  "Bytes of segments that are the CUDA runtime's own, for other processes.")
      .def_static("bytes_out", [] { return segments().bytes_out(); })
      .def_static("is_valid", [] { return segments().is_valid(); }, Unlocked());
}

}  // namespace

void register_cuda_memory(py::module_& module) {
  register_cuda_lane_memory(module);
  register_cuda_lane(module);
  register_cuda_segments(module);
  module.def(
      "cuda_trouble", [](int ordinal) { return CudaDevice().examine(ordinal); }, py::arg("ordinal"),
      Unlocked(), "Empty, or why this GPU can have no lanes; it takes nothing of the GPU.");
}

}  // namespace gpushare
