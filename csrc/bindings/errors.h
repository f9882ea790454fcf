// Python exceptions for the errors of the core.
#pragma once
#include <pybind11/pybind11.h>

#include "core/model/types.h"

namespace gpushare {

// Translates the errors of the module that calls it.
inline void translate_errors() {
  pybind11::register_local_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const DemandTooLarge& error) {
      const auto fields = pybind11::make_tuple(error.persistent, error.ephemeral, error.capacity,
                                               error.is_squeezed);
      PyErr_SetObject(PyExc_OverflowError, fields.ptr());
    } catch (const UnknownSession& error) {
      PyErr_SetString(PyExc_KeyError, error.what());
    }
  });
}

}  // namespace gpushare
