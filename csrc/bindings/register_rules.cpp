// The rules of a scheduler for Python: one row of the table for each of them. The setting of the
// same name, which may end in `_seconds`, gives its value.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <type_traits>
#include <vector>

#include "bindings/register.h"
#include "bindings/whole.h"
#include "core/model/types.h"

namespace py = pybind11;

namespace gpushare {
namespace {

template <class Visit>
void each_rule(Visit&& visit) {
  visit("quantum", &Rules::quantum);
  visit("half_life", &Rules::half_life);
  visit("lease", &Rules::lease);
  visit("aging", &Rules::aging);
  visit("running_lanes", &Rules::running_lanes);
  visit("boost", &Rules::boost);
  visit("page_waiting", &Rules::page_waiting);
  visit("report", &Rules::report);
  visit("squeeze", &Rules::squeeze);
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  each_rule([&](const char* name, auto) { all.emplace_back(name); });
  return all;
}

template <class Value>
Value read(const py::handle& given, const std::string& name) {
  using Given = std::conditional_t<std::is_same_v<Value, int>, py::int_, py::object>;
  if (!py::isinstance<Given>(given)) throw py::type_error(name + " has to be a whole number");
  try {
    if constexpr (std::is_same_v<Value, int>)
      return whole<int>(py::reinterpret_borrow<py::int_>(given), name.c_str());
    else
      return given.cast<Value>();
  } catch (const py::cast_error&) {
    throw py::type_error(name + " has a value of another type");
  }
}

// A rule that is not given has its default.
Rules make_rules(const py::kwargs& given) {
  Rules rules;
  std::size_t known = 0;
  each_rule([&]<class Value>(const char* name, Value Rules::* rule) {
    if (!given.contains(name)) return;
    rules.*rule = read<Value>(given[name], name);
    ++known;
  });
  if (known != given.size()) throw py::type_error("the scheduler has no such rule");
  return rules;
}

}  // namespace

void register_rules(py::module_& module) {
  py::class_<Rules> rules(
      module, "Rules",
      "The tunables of the scheduler; times are in seconds. `running_lanes` 0: the policy "
      "decides.\n\n"
      "`boost`: the first seconds of a cell get their turns before all others, unless "
      "the virtual time of its user, its group or itself is further than `boost` ahead of that of "
      "the others; 0 disables this. With `page_waiting`, a session that waits for its turn is also "
      "asked to page out for one that comes before it and has waited for memory for longer than "
      "`aging`. `report` is the interval at which a session reports in its turn. Without `squeeze` "
      "no session is squeezed. `names` lists the names of all rules.");
  rules.def(py::init(&make_rules));
  rules.attr("names") = names();
  each_rule([&](const char* name, auto rule) { rules.def_readonly(name, rule); });
}

}  // namespace gpushare
