// The scheduler in virtual time, for Python. A run may take long, so it releases the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/register.h"
#include "simulation/simulation.h"

namespace py = pybind11;

namespace gpushare {
namespace {

void register_jobs(py::module_& module) {
  const Cell cell;
  py::class_<Cell>(
      module, "Cell",
      "A cell has `iterations` that take `iteration` seconds each, alone on the device. It begins "
      "`think` seconds after the cell before it, or after the arrival.")
      .def(py::init<std::int64_t, Seconds, Seconds>(), py::arg("iterations") = cell.iterations,
           py::arg("iteration") = cell.iteration, py::arg("think") = cell.think)
      .def_readonly("iterations", &Cell::iterations)
      .def_readonly("iteration", &Cell::iteration);

  const Job job;
  py::class_<Job>(
      module, "Job",
      "A notebook in virtual time. The first report makes a demand `measured` that was "
      "not.\n\n"
      "With `declares`, the job says how many iterations are left. `load` is the part of "
      "the device that it keeps busy, above 0 and at most 1; jobs that compute at the same time "
      "have 1 in all. It `stays` open for this number of seconds after its last cell. On several "
      "`devices` at once it is a gang, and needs its demand on each of them. Other jobs squeeze it "
      "until it is slowed by a factor of `bears`. `curve` are the bytes that an iteration has of "
      "its lane, the most in each of equal parts of its time. Two jobs whose curves are known may "
      "use one lane at once; empty: it is unknown.")
      .def(py::init([](std::string id, std::vector<Cell> cells, const Demand& demand,
                       std::string user, Seconds arrival, double weight, int priority,
                       bool declares, double load, Seconds stays, std::string group,
                       std::size_t devices, double bears, std::vector<Bytes> curve) {
             return Job{std::move(id), std::move(user), std::move(group),
                        arrival,       demand,          std::move(cells),
                        weight,        priority,        declares,
                        load,          stays,           devices,
                        bears,         std::move(curve)};
           }),
           py::arg("id"), py::arg("cells"), py::kw_only(), py::arg("demand") = job.demand,
           py::arg("user") = "", py::arg("arrival") = job.arrival, py::arg("weight") = job.weight,
           py::arg("priority") = job.priority, py::arg("declares") = job.declares,
           py::arg("load") = job.load, py::arg("stays") = job.stays, py::arg("group") = "",
           py::arg("devices") = job.devices, py::arg("bears") = job.bears,
           py::arg("curve") = job.curve)
      .def_readonly("id", &Job::id)
      .def_readonly("cells", &Job::cells)
      .def_readonly("demand", &Job::demand)
      .def_readonly("user", &Job::user)
      .def_readonly("group", &Job::group)
      .def_readonly("arrival", &Job::arrival)
      .def_readonly("weight", &Job::weight)
      .def_readonly("priority", &Job::priority)
      .def_readonly("declares", &Job::declares)
      .def_readonly("load", &Job::load)
      .def_readonly("stays", &Job::stays)
      .def_readonly("devices", &Job::devices)
      .def_readonly("bears", &Job::bears)
      .def_readonly("curve", &Job::curve);

  py::class_<Shares>(
      module, "Shares",
      "Weights of groups and users by name, in virtual time; a name that is absent has 1.\n\n"
      "The "
      "group `class_of` has all devices for itself, under the policy for classes, whenever a "
      "notebook of it is open and has not ended its last cell; \"\": there is no class.")
      .def(py::init<std::map<std::string, double>, std::map<std::string, double>, std::string>(),
           py::kw_only(), py::arg("groups") = std::map<std::string, double>{},
           py::arg("users") = std::map<std::string, double>{}, py::arg("class_of") = "");

  const Conduct conduct;
  py::class_<Conduct>(
      module, "Conduct",
      "How sessions behave in virtual time.\n\n"
      "They report at most every `report` seconds, and "
      "compute `handover` seconds after a grant. `paging_rate` is in bytes a second, out and in; 0 "
      "means that no session is paged out between cells. `contention` is the part of its speed "
      "that each computing session costs each of the others. With `steps`, boundaries at which "
      "nothing is said are visited too, which changes no result. With `checks`, the invariants of "
      "the scheduler are checked after each event.")
      .def(py::init<Seconds, Seconds, double, double, bool, bool, bool>(), py::kw_only(),
           py::arg("report") = conduct.report, py::arg("handover") = conduct.handover,
           py::arg("paging_rate") = conduct.paging_rate, py::arg("contention") = conduct.contention,
           py::arg("steps") = conduct.steps, py::arg("remembers_turns") = conduct.remembers_turns,
           py::arg("checks") = conduct.checks);
}

void register_results(py::module_& module) {
  py::class_<Outcome>(
      module, "Outcome",
      "The outcome of a job. Times are in seconds: `started` is its first turn, and `ended` is the "
      "end of its last cell.\n\n"
      "It `waited` while a cell ran and had no turn; its `device_seconds` "
      "count on each of its devices. It is `refused` if its devices could never hold it.")
      .def_readonly("id", &Outcome::id)
      .def_readonly("arrival", &Outcome::arrival)
      .def_readonly("started", &Outcome::started)
      .def_readonly("ended", &Outcome::ended)
      .def_readonly("waited", &Outcome::waited)
      .def_readonly("device_seconds", &Outcome::device_seconds)
      .def_readonly("iterations", &Outcome::iterations)
      .def_readonly("refused", &Outcome::refused);
  py::class_<TurnTaken>(
      module, "TurnTaken",
      "A turn of the job with this index; a gang has one for each of its devices.")
      .def_readonly("job", &TurnTaken::job)
      .def_readonly("device", &TurnTaken::device)
      .def_readonly("lane", &TurnTaken::lane)
      .def_readonly("began", &TurnTaken::began)
      .def_readonly("ended", &TurnTaken::ended);
  py::class_<MemoryUse>(
      module, "MemoryUse",
      "Bytes that are promised from `time` until the next MemoryUse of the device.")
      .def_readonly("time", &MemoryUse::time)
      .def_readonly("device", &MemoryUse::device)
      .def_readonly("persistent", &MemoryUse::persistent)
      .def_readonly("lanes", &MemoryUse::lanes);
}

}  // namespace

void register_simulation(py::module_& module) {
  register_jobs(module);
  register_results(module);
  py::class_<Simulation>(
      module, "Simulation",
      "A host in virtual time: jobs do what notebooks do, as fast as the scheduler decides.\n\n"
      "The "
      "same arguments give the same result. Raises ValueError for what cannot be simulated.")
      .def(py::init<std::vector<Job>, Bytes, const std::string&, const Rules&, const Conduct&,
                    std::size_t, Shares>(),
           py::arg("jobs"), py::arg("capacity"), py::arg("policy") = "fair",
           py::arg("rules") = Rules{}, py::arg("conduct") = Conduct{}, py::arg("devices") = 1,
           py::arg("shares") = Shares{})
      .def("run", &Simulation::run, py::arg("until") = kNever,
           py::call_guard<py::gil_scoped_release>(),
           "Run up to this time in seconds, or until nothing is left to happen. It may be called "
           "again, with a later time. Raises RuntimeError where `checks` finds a broken invariant.")
      .def_property_readonly("now", &Simulation::now)
      .def_property_readonly("iterations", &Simulation::iterations, "The iterations of all jobs.")
      .def_property_readonly("outcomes", &Simulation::outcomes,
                             "The outcome of each job, in the order of the jobs.")
      .def_property_readonly(
          "turns", [](const Simulation& s) { return s.record().turns(); },
          "The finished turns, in the order in which they ended.")
      .def_property_readonly(
          "memory", [](const Simulation& s) { return s.record().memory(); },
          "Each change of the memory in use.");
}

}  // namespace gpushare
