#include <pybind11/pybind11.h>

#include "bindings/register.h"

PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.doc() = "The C++ of jupyter_gpushare: scheduler, memory and turns.";
  module.attr("__version__") = GPUSHARE_VERSION;
  gpushare::register_rules(module);
  gpushare::register_core(module);
  gpushare::register_host(module);
  gpushare::register_cluster_queue(module);
  gpushare::register_lane(module);
  gpushare::register_cuda_memory(module);
  gpushare::register_memory(module);
  gpushare::register_pager(module);
  gpushare::register_simulation(module);
  gpushare::register_handoff(module);
  gpushare::register_frames(module);
  gpushare::register_interrupts(module);
  gpushare::register_signals(module);
}
