// Steps through gangs' virtual time under the sanitizers, without which the Python tests run.
#include <doctest/doctest.h>

#include <random>

#include "core/gangs.h"

using namespace gpushare;

TEST_CASE("at no time are more devices in use than there are") {
  std::mt19937 draw(1);
  for (const char* policy : {"las", "gittins", "srsf"}) {
    std::vector<Gang> gangs;
    for (int i = 0; i < 200; ++i)
      gangs.push_back({std::to_string(i), 1 + static_cast<int>(draw() % 7),
                       1 + static_cast<double>(draw() % 900) / 10,
                       static_cast<double>(draw() % 500), static_cast<double>(draw() % 10) / 10});
    GangSimulation simulation(gangs, {4, 2, 1}, policy, {{10, 100}, 2, 1, {10, 100, kNever}, 50});
    for (int second = 0; second < 1000; ++second) {
      simulation.run(second);
      REQUIRE(simulation.is_valid() == "");
    }
    simulation.run(kNever);
    for (const GangOutcome& outcome : simulation.outcomes()) CHECK(outcome.ended);
  }
}
