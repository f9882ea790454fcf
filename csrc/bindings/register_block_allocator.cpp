// The block allocator for Python, where tests inspect it: invalid pages raise an exception here.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/register.h"
#include "memory/common/block_allocator.h"

namespace py = pybind11;

namespace gpushare {
namespace {

using Blocks = BlockAllocator;

// A number of pages, or the number of a page, if the value can be one at all.
std::optional<Page> number(const py::int_& value) {
  try {
    const Page page = value.cast<Page>();
    return page == kNoPage ? std::nullopt : std::optional(page);
  } catch (const py::cast_error&) {
    PyErr_Clear();
    return std::nullopt;
  }
}

std::string text(const py::int_& value) { return py::str(value); }

Page pages(const py::int_& value, Page least) {
  const auto count = number(value);
  if (!count || *count < least)
    throw py::value_error("a number of pages must be between " + std::to_string(least) +
                          " and 2^32 - 2: " + text(value));
  return *count;
}

Page page_of(const Blocks& blocks, const py::int_& value) {
  const auto page = number(value);
  if (!page || *page >= blocks.pages())
    throw py::index_error("page " + text(value) + " lies outside the range of " +
                          std::to_string(blocks.pages()) + " pages");
  return *page;
}

std::pair<Page, Page> pages_of(const Blocks& blocks, const py::int_& first, const py::int_& count) {
  const Page begin = page_of(blocks, first), length = pages(count, 1);
  if (length > blocks.pages() - begin)
    throw py::index_error(text(count) + " pages from page " + text(first) + " on end outside the " +
                          "range of " + std::to_string(blocks.pages()) + " pages");
  return {begin, length};
}

std::unique_ptr<Blocks> make_blocks(const py::int_& count) {
  auto blocks = std::make_unique<Blocks>(pages(count, 0));
  if (!blocks->is_usable()) throw std::bad_alloc();
  return blocks;
}

void add(Blocks& blocks, const py::int_& first, const py::int_& count) {
  const auto [begin, length] = pages_of(blocks, first, count);
  blocks.add(begin, length);
}

bool take(Blocks& blocks, const py::int_& first, const py::int_& count) {
  const auto [begin, length] = pages_of(blocks, first, count);
  return blocks.take(begin, length);
}

std::optional<Page> allocate(Blocks& blocks, const py::int_& count) {
  const Page first = blocks.allocate(pages(count, 1));
  return first == kNoPage ? std::nullopt : std::optional(first);
}

void free_block(Blocks& blocks, const py::int_& first) {
  const Page begin = page_of(blocks, first);
  if (blocks.size_of(begin) == 0)
    throw py::value_error("no live block begins at page " + text(first));
  blocks.free(begin);
}

std::vector<std::pair<Page, Page>> live(const Blocks& blocks) {
  std::vector<std::pair<Page, Page>> found;
  blocks.for_each_live([&](Page first, Page count) { found.emplace_back(first, count); });
  return found;
}

}  // namespace

void register_block_allocator(py::module_& module) {
  const auto first = py::arg("first");
  const auto count = py::arg("count");
  py::class_<Blocks>(module, "BlockAllocator", "Blocks of whole pages inside a range of addresses.")
      .def(py::init(&make_blocks), py::arg("pages"))
      .def("add", &add, first, count)
      .def("take", &take, first, count)
      .def("allocate", &allocate, count)
      .def("free", &free_block, first)
      .def(
          "size_of",
          [](const Blocks& blocks, const py::int_& first) {
            return blocks.size_of(page_of(blocks, first));
          },
          first)
      .def("live", &live)
      .def("reset_footprint", &Blocks::reset_footprint)
      .def("is_one_block", &Blocks::is_one_block)
      .def("is_valid", &Blocks::is_valid)
      .def_property_readonly("pages", &Blocks::pages)
      .def_property_readonly("used", &Blocks::used)
      .def_property_readonly("available", &Blocks::available)
      .def_property_readonly("footprint", &Blocks::footprint);
}

}  // namespace gpushare
