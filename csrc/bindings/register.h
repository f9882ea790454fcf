#pragma once
#include <pybind11/pybind11.h>

namespace gpushare {

void register_cluster_queue(pybind11::module_& module);
void register_core(pybind11::module_& module);
void register_cuda_memory(pybind11::module_& module);
void register_frames(pybind11::module_& module);
void register_interrupts(pybind11::module_& module);
void register_host(pybind11::module_& module);
void register_lane(pybind11::module_& module);
void register_memory(pybind11::module_& module);
void register_pager(pybind11::module_& module);
void register_rules(pybind11::module_& module);
void register_concurrency_tuner(pybind11::module_& module);
void register_signals(pybind11::module_& module);
void register_simulation(pybind11::module_& module);
void register_handoff(pybind11::module_& module);

}  // namespace gpushare
