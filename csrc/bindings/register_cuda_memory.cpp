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
                             "The memory of a lane on this process's GPU, in whole chunks. Raises "
                             "RuntimeError if there is no room. A chunk lives as long as a copy of "
                             "its descriptor or a session that is attached to it.")
      .def(py::init([](size_t bytes) {
             auto& memory = cuda_memory();
             return std::make_unique<CudaLaneMemory>(memory.device(), bytes,
                                                     memory.pages().page_bytes());
           }),
           py::arg("bytes"), Unlocked())
      .def_property_readonly(
          "descriptors",
          [](const CudaLaneMemory& memory) {
            return std::vector<int>(memory.descriptors().begin(), memory.descriptors().end());
          },
          "The descriptors, which stay open as long as this object lives.");
}

void register_cuda_lane(py::module_& module) {
  py::class_<ProcessCudaLane>(
      module, "CudaLane",
      "The equivalent of `Lane` on a GPU, for segments of PyTorch's allocator. The allocator asks "
      "for them, on any thread, by `gpushare_cuda_allocate` and `gpushare_cuda_free`, which this "
      "library exports for torch.cuda.memory.CUDAPluggableAllocator.")
      .def_static(
          "expect",
          [](int ordinal, size_t window_bytes, size_t chunk_bytes) {
            return cuda_memory().expect(ordinal, window_bytes, chunk_bytes);
          },
          py::arg("ordinal"), py::arg("window_bytes"), py::arg("chunk_bytes"), Unlocked(),
          "Expect this GPU, with `window_bytes` addresses for lanes of chunks of "
          "`chunk_bytes`.\n\n"
          "Nothing of the GPU is used before `open`. It may be called once per "
          "process.")
      .def_static(
          "open", [] { return cuda_memory().open(); }, Unlocked(),
          "Use the GPU that `expect` was called for. A repeated call is harmless.")
      .def_static(
          "attach_chunks",
          [](uint32_t first, const std::vector<int>& descriptors) {
            return cuda_memory().pages().attach_from(first, descriptors);
          },
          py::arg("first"), py::arg("descriptors"), Unlocked(),
          "Replace all chunks from `first` on, which are not in use, by these.\n\n"
          "The descriptors "
          "stay the caller's.")
      .def_static("attached_chunks", [] { return cuda_memory().pages().attached(); })
      .def_static(
          "attach", [](size_t bytes) { return cuda_lane().attach(bytes); }, py::arg("bytes"),
          Unlocked(),
          "Use `bytes` of the attached chunks; between iterations, with no segment in them.")
      .def_static(
          "detach", [] { return cuda_lane().detach(); }, Unlocked())
      .def_static(
          "enter", [] { cuda_lane().enter(); }, Unlocked(),
          "An iteration begins: all threads allocate from the lane.")
      .def_static(
          "leave", [] { cuda_lane().leave(); }, Unlocked(),
          "The iteration ends: no thread allocates from the lane any more.")
      .def_static(
          "survivors", [] { return cuda_lane().survivor_bytes(); }, Unlocked(),
          "Return the bytes in the lane that PyTorch's allocator has, whether tensors use them or "
          "not.")
      .def_static(
          "segment_bytes", [] { return cuda_memory().bytes_in_lane(); },
          "Return the bytes of the segments of PyTorch's allocator that lie at addresses of lanes, "
          "those that are promoted or trimmed included.")
      .def_static(
          "owns",
          [](uintptr_t address) {
            return cuda_lane().owns(reinterpret_cast<const void*>(address));
          },
          py::arg("address"), "Whether it is an address of lanes, used or not.")
      .def_static(
          "room", [] { return cuda_lane().room(); }, Unlocked(),
          "Return the bytes of the largest segment that would fit into the lane.")
      .def_static(
          "trim", &trim, py::arg("living"), Unlocked(),
          "Of segments that were not trimmed before, only these pairs of address and size are "
          "alive; they are in order. The allocator must not use these segments any more.")
      .def_static(
          "trimmed", [] { return cuda_lane().trimmed_bytes(); }, Unlocked(),
          "Return the bytes left of trimmed segments in the lane: alive, and not promoted.")
      .def_static("renew", &renew, py::arg("storages"),
                  "Allocate these storages of PyTorch's again, with their contents. Return False, "
                  "and change nothing, if another thread may compute; `others_wait` tells. The GIL "
                  "is kept meanwhile.")
      .def_static("promote", &promote,
                  "Do what `Lane.promote` does. Return False, and change nothing, if another "
                  "thread may compute. The GIL is kept meanwhile.")
      .def_static("usage", [] { return cuda_lane().usage(); })
      .def_static(
          "is_valid", [] { return cuda_lane().is_valid(); }, Unlocked(),
          "Empty, or the first broken invariant in words.");
}

void register_cuda_segments(py::module_& module) {
  py::class_<ProcessCudaSegments>(
      module, "CudaSegments",
      "Private segments on this process's GPU, which are paged out to a file, and in again at the "
      "same addresses. The GPU must have no work while anything is out.")
      .def_static("install_hook", &install_cuda_hook,
                  "Include new segments of PyTorch's caching allocator from now on, by patching "
                  "cudaMalloc and cudaFree of libc10_cuda. Returns an empty string, or why it is "
                  "impossible. A repeated call is harmless.")
      .def_static(
          "page_out", [](const std::string& directory) { return segments().page_out(directory); },
          py::arg("directory"), Unlocked(),
          "Page out. Returns an empty string, or why it failed: then nothing is out.")
      .def_static(
          "page_in", [] { return segments().page_in(); }, Unlocked(),
          "Page in. Returns an empty string, or why some segments stayed out. It ends a `page_out` "
          "that is under way.")
      .def_static("cancel", [] { segments().cancel(); })
      .def_static(
          "owns",
          [](uintptr_t address) { return segments().owns(reinterpret_cast<const void*>(address)); },
          py::arg("address"))
      .def_static(
          "bytes", [] { return segments().bytes(); }, Unlocked(),
          "Return the bytes of all segments, in or out.")
      .def_static(
          "shareable_bytes", &shareable_bytes,
          "Return the bytes of the segments that `gpushare_cuda_allocate_shareable` has made: "
          "memory of the CUDA runtime's own, which it can share with other processes.")
      .def_static("bytes_out", [] { return segments().bytes_out(); })
      .def_static(
          "is_valid", [] { return segments().is_valid(); }, Unlocked(),
          "Empty, or the first broken invariant in words.");
}

}  // namespace

void register_cuda_memory(py::module_& module) {
  register_cuda_lane_memory(module);
  register_cuda_lane(module);
  register_cuda_segments(module);
  module.def(
      "cuda_trouble", [](int ordinal) { return CudaDevice().examine(ordinal); }, py::arg("ordinal"),
      Unlocked(),
      "Return an empty string, or why this process's GPU can have no lanes. The call takes nothing "
      "of the GPU.");
}

}  // namespace gpushare
