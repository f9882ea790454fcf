// The workload of a simulation: jobs that behave as notebooks do.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/model/types.h"

namespace gpushare {

// It begins `think` seconds after the end of the previous cell, or after the arrival.
struct Cell {
  std::int64_t iterations = 1;
  Seconds iteration = 1;  // of one, alone on the device
  Seconds think = 0;
};

struct Job {
  std::string id, user, group;
  Seconds arrival = 0;
  // If it is false, the first report makes it true.
  Demand demand;
  std::vector<Cell> cells;
  double weight = 1.0;
  int priority = 0;
  bool declares = false;  // its remaining iterations
  double load = 1.0;  // the part of the device that it keeps busy; several at once have 1 in all
  Seconds stays = 0;  // open after its last cell
  std::size_t devices = 1;  // at once; its demand and its load are those on each of them
  double bears = 1.1;       // the slowdown up to which it may be squeezed for others
  // The bytes of an iteration in its lane, the most in each of equal parts of its time. Two jobs
  // whose curves are known may use one lane at once. Empty: unknown.
  std::vector<Bytes> curve;
};

// The weights of groups and users. Names that are absent have a weight of 1. The group `class_of`
// has the devices for itself, under the policy for classes, whenever one of its notebooks is open
// and not yet done.
struct Shares {
  std::map<std::string, double> groups, users;
  std::string class_of;
};

// How sessions behave, beside what the scheduler's rules say.
struct Conduct {
  Seconds report = 0.5;         // interval in a turn; at its end after a tenth of it
  Seconds handover = 0;         // from a grant to the first computation
  double paging_rate = 0;       // bytes a second, out and in; 0: no session is paged out
  double contention = 0;        // part of the speed that each computing job costs the others
  bool steps = false;           // visit each boundary
  bool remembers_turns = true;  // else `turns` stays empty
  bool checks = false;          // the invariants, after each event; raises std::logic_error
};

// These raise std::invalid_argument for what cannot be simulated.
void check(const Job& job, std::size_t devices);
void check(const Conduct& conduct);

}  // namespace gpushare
