#pragma once
#include <pybind11/pybind11.h>

#include <optional>
#include <stdexcept>
#include <string>

namespace gpushare {

// A whole number from Python: one that does not fit is a ValueError that names it, where pybind11
// would only say that no overload takes it.
template <class Number>
Number whole(const pybind11::int_& value, const char* name) {
  try {
    return value.cast<Number>();
  } catch (const pybind11::cast_error&) {
    PyErr_Clear();
    throw std::invalid_argument(std::string(name) +
                                " is out of range: " + std::string(pybind11::str(value)));
  }
}

template <class Number>
std::optional<Number> whole(const std::optional<pybind11::int_>& value, const char* name) {
  return value ? std::optional(whole<Number>(*value, name)) : std::nullopt;
}

}  // namespace gpushare
