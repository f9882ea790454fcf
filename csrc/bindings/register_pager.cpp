#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/register.h"
#include "memory/host/allocation_hook.h"

namespace py = pybind11;

namespace gpushare {
namespace {

struct ProcessPager {};  // the Python name for an object that a process has only once

using Blocks = std::vector<std::pair<uintptr_t, size_t>>;  // addresses and sizes

Pager::Ranges ranges_of(const Blocks& blocks) {
  Pager::Ranges ranges;
  for (const auto& [address, bytes] : blocks) {
    ranges.push_back({reinterpret_cast<std::byte*>(address), bytes});
  }
  return ranges;
}

// A block that is paged out must not be freed unseen, so the hook is installed first.
std::string page_out(const std::string& directory, const Blocks& lent) {
  std::string reason = install_allocation_hook();
  return reason.empty() ? pager().page_out(list_blocks, directory, ranges_of(lent)) : reason;
}

}  // namespace

void register_pager(py::module_& module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<ProcessPager>(module, "Pager",
                           "Pages the CPU storages that AllocationCounter knows out to a file, and "
                           "in again.\n\n"
                           "They stay at their addresses, and a thread that touches "
                           "one that is out gets its bytes from the file.")
      .def_static(
          "page_out", &page_out, py::arg("directory"), py::arg("lent") = Blocks{}, Released(),
          "Page storages of at least 64 KiB out to a file without a name. Returns an empty string, "
          "or why it failed.\n\n"
          "If it failed, nothing is out. Storages that are lent, by address "
          "and size, stay: a system call may write to them, and could not wait.")
      .def_static(
          "page_in", [](const Blocks& lent) { return pager().page_in(ranges_of(lent)); },
          py::arg("lent") = Blocks{}, Released(),
          "Page all storages in. Returns an empty string, or what could not be read. It ends a "
          "`page_out` that is under way.")
      .def_static(
          "cancel", [] { pager().cancel(); },
          "End a `page_out` that is under way, with everything back in.")
      .def_static("bytes_out", [] { return pager().bytes_out(); })
      .def_static(
          "is_valid", [] { return pager().is_valid(); }, Released(),
          "Empty, or the first broken invariant.");
}

}  // namespace gpushare
