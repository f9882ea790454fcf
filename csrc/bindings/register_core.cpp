#include "bindings/register.h"
namespace gpushare {
void register_core(pybind11::module_&) {}
}  // namespace gpushare
