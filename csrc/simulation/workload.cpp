#include "simulation/workload.h"

#include <cmath>

#include "core/model/validation.h"

namespace gpushare {
namespace {

bool is_time(Seconds value) { return std::isfinite(value) && value >= 0; }

void check(const Cell& cell, const std::string& id) {
  require(cell.iterations > 0, "a cell of '" + id + "' must have iterations");
  require(std::isfinite(cell.iteration) && cell.iteration > 0,
          "an iteration of '" + id + "' must last longer than 0 seconds");
  require(is_time(cell.think), "the pause before a cell of '" + id + "' must be finite");
}

}  // namespace

void check(const Job& job, std::size_t devices) {
  require(is_time(job.arrival), "the arrival of '" + job.id + "' must be finite seconds from 0 on");
  require(job.stays >= 0, "what '" + job.id + "' stays must not be below 0 seconds");
  require(job.load > 0 && job.load <= 1, "the load of '" + job.id + "' must be above 0, at most 1");
  require(job.devices > 0 && job.devices <= devices,
          "'" + job.id + "' must have a device, and at most the " + std::to_string(devices) +
              " that there are");
  require(!job.cells.empty(), "'" + job.id + "' has no cells");
  for (const Bytes bytes : job.curve)
    require(bytes >= 0 && bytes <= job.demand.ephemeral,
            "the curve of '" + job.id + "' must be from 0 to its ephemeral bytes");
  for (const Cell& cell : job.cells) check(cell, job.id);
}

void check(const Conduct& conduct) {
  require(is_time(conduct.report) && is_time(conduct.handover) && is_time(conduct.paging_rate),
          "times and rates of the conduct must be finite and not negative");
  require(conduct.contention >= 0 && conduct.contention < 1,
          "the part that contention costs must be below 1 and not negative");
}

}  // namespace gpushare
