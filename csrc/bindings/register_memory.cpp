#include "bindings/register.h"
namespace gpushare {
void register_memory(pybind11::module_&) {}
}  // namespace gpushare
