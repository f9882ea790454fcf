// The cost of a neighbour's message while one user has very many waiting sessions. The core of this
// program counts the branches that it takes, so work is compared without a clock: it may grow with
// the number of sessions, and no faster.
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "core/host/scheduler.h"

static std::uint64_t taken = 0;

extern "C" void __sanitizer_cov_trace_pc() { ++taken; }

using namespace gpushare;

namespace {

constexpr Bytes kCapacity = Bytes{1} << 40;
constexpr Demand kDemand{Bytes{1} << 20, Bytes{1} << 22, true, {}};
constexpr int kFew = 50, kMany = 400;
constexpr double kSorts = 1.6;  // n log n over n: sorting is as much as is allowed

SessionSpec spec_of(const std::string& user, bool busy) {
  SessionSpec spec;
  spec.user = user;
  spec.demand = kDemand;
  spec.busy = busy;
  return spec;
}

// Two sessions of a neighbour, one of which, "runs", has the turn, beside `count` waiting sessions
// of one user, each in a cell that has just begun.
Scheduler beside(int count, const std::string& policy) {
  Scheduler it(kCapacity, policy, {.boost = 0.5});
  it.open(0, "runs", spec_of("neighbour", true));
  it.open(0, "rests", spec_of("neighbour", true));
  it.request(0, "runs", 1);
  for (int i = 0; i < count; ++i) {
    const std::string id = "s" + std::to_string(i);
    it.open(0, id, spec_of("one", false));
    it.set_busy(0, id, true);
    it.request(0, id, 1);
  }
  return it;
}

struct Message {
  const char* name;
  std::function<Decision(Scheduler&, Seconds)> say;
};

const Message kMessages[] = {
    {"a report",
     [](Scheduler& it, Seconds now) { return it.report(now, "runs", 1, kDemand, std::nullopt); }},
    {"a turn that ends, for the next one",
     [](Scheduler& it, Seconds now) { return it.finish(now, "runs", 1); }},
    {"a request", [](Scheduler& it, Seconds now) { return it.request(now, "rests", 1); }},
    {"a cell that ends",
     [](Scheduler& it, Seconds now) { return it.set_busy(now, "rests", false); }},
    {"a session that closes", [](Scheduler& it, Seconds now) { return it.close(now, "rests"); }},
};

double work(Scheduler& it, const Message& message) {
  const std::uint64_t before = taken;
  message.say(it, 2e-4);
  return static_cast<double>(taken - before);
}

double work_beside(int count, const std::string& policy, const Message& message) {
  Scheduler it = beside(count, policy);
  it.assign(1e-4);
  return work(it, message);
}

void check_growth(double few, double many) {
  CAPTURE(few);
  CAPTURE(many);
  REQUIRE(few > 0);
  CHECK(many / few < kSorts * kMany / kFew);
}

}  // namespace

TEST_CASE("a message of a neighbour grows no faster than the sessions of another that wait") {
  for (const Policy& policy : policies()) {
    for (const Message& message : kMessages) {
      const std::string name(policy.name);
      CAPTURE(name);
      CAPTURE(message.name);
      check_growth(work_beside(kFew, name, message), work_beside(kMany, name, message));
    }
  }
}

TEST_CASE("a rule that ceases to throttle all sessions of a user costs each of them once") {
  const Message free{"", [](Scheduler& it, Seconds now) { return it.throttle(now, {}); }};
  const auto freed = [&](int count) {
    Scheduler it = beside(count, "fair");
    std::map<std::string, Why> reasons;
    for (int i = 0; i < count; ++i)
      reasons["s" + std::to_string(i)] = {{Code::throttled_for_class}};
    it.throttle(1e-4, reasons);
    return work(it, free);
  };
  check_growth(freed(kFew), freed(kMany));
}
