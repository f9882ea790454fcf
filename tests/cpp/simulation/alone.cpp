// The objects beneath the Simulation, each by itself.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <utility>

#include "simulation/event_queue.h"
#include "simulation/simulated_class.h"
#include "simulation/simulated_job.h"
#include "simulation/simulation_record.h"

using namespace gpushare;

namespace {

using Kind = EventQueue::Kind;

// Ten iterations of half a second, then five of a second.
SimulatedJob training() {
  SimulatedJob job;
  job.job.id = std::string("a");  // GCC 12 warns falsely where a literal is assigned
  job.job.cells = {{10, 0.5, 0}, {5, 1, 2}};
  job.devices = {0};
  job.open = true;
  return job;
}

SimulatedJob computing(Seconds since) {
  SimulatedJob job = training();
  job.begin_wait(since);
  job.begin_turn(since, 1);
  job.begin_to_compute(since);
  job.set_rate(since, 1);
  REQUIRE(job.is_valid() == "");
  return job;
}

Job in_group(const std::string& group) {
  Job job;
  job.group = group;
  return job;
}

}  // namespace

// --- events --------------------------------------------------------------------------------------

TEST_CASE("events of one time happen by their kind, and then in the order of jobs") {
  EventQueue events(2);
  events.schedule(Kind::leaves, 0, 1);
  events.schedule(Kind::boundary, 1, 1);
  events.schedule(Kind::boundary, 0, 1);
  events.schedule(Kind::paged, 1, 2);
  CHECK(events.take() == EventQueue::Event{1, Kind::boundary, 0});
  CHECK(events.take() == EventQueue::Event{1, Kind::boundary, 1});
  CHECK(events.take() == EventQueue::Event{1, Kind::leaves, 0});
  CHECK(events.now() == 1);
  CHECK(events.next() == 2);
  CHECK(events.is_valid() == "");
}

TEST_CASE("an event that is scheduled again happens once, at the later or the earlier time") {
  EventQueue events(1);
  events.schedule(Kind::wakes, 0, 5);
  events.schedule(Kind::wakes, 0, 7);
  CHECK(events.next() == 7);
  events.schedule(Kind::wakes, 0, 3);
  CHECK(events.take().time == 3);
  CHECK(events.next() == kNever);
  CHECK(events.is_valid() == "");
}

TEST_CASE("a cancelled event does not happen, and to cancel one that is not due is harmless") {
  EventQueue events(1);
  events.cancel(Kind::computes, 0);
  events.schedule(Kind::computes, 0, 4);
  events.cancel(Kind::computes, 0);
  CHECK(events.next() == kNever);
  CHECK(events.is_valid() == "");
}

TEST_CASE("the clock does not go back, and an event of the host comes before all of its time") {
  EventQueue events(1);
  events.wake(3);
  CHECK(events.present() < EventQueue::Event{3, Kind::wakes, 0});
  events.wait(2);
  CHECK(events.now() == 3);
}

TEST_CASE("random schedules leave the queue valid, and events come in their order") {
  std::mt19937 random(7);
  EventQueue events(4);
  std::map<std::pair<Kind, std::size_t>, Seconds> due;
  for (int i = 0; i < 20'000; ++i) {
    const auto kind = static_cast<Kind>(random() % 5);
    const std::size_t job = random() % 4;
    if (random() % 3 > 0) {
      const Seconds time = events.now() + static_cast<double>(random() % 8);
      events.schedule(kind, job, time);
      due[{kind, job}] = time;
    } else if (!due.empty()) {
      const EventQueue::Event event = events.take();
      REQUIRE(due.at({event.kind, event.job}) == event.time);
      for (const auto& [key, time] : due) REQUIRE(time >= event.time);
      due.erase({event.kind, event.job});
    }
    REQUIRE(events.is_valid() == "");
  }
}

// --- a job ---------------------------------------------------------------------------------------

TEST_CASE("what is left counts later cells, and is told only by a job that declares") {
  SimulatedJob job = training();
  CHECK(job.left() == 15);
  CHECK_FALSE(job.declared());
  job.job.declares = true;
  job.reach(4);
  CHECK(job.declared() == 11);
  job.cell = 1;
  job.done = 0;
  CHECK(job.left() == 5);
}

TEST_CASE("boundaries are reached at their times, a slower device later") {
  SimulatedJob job = computing(10);
  CHECK(job.boundary_time(1) == 10.5);
  CHECK(job.first_boundary({11.2, Kind::boundary, 0}) == 3);
  job.set_rate(11, 0.5);
  CHECK(job.boundary_time(3) == 12);
  job.slowdown = 2;
  job.set_rate(11.5, 0.5);
  CHECK(job.boundary_time(3) == doctest::Approx(12.5));
}

TEST_CASE("the boundary at this very event is the first one, and none comes after the cell") {
  const SimulatedJob job = computing(0);
  CHECK(job.first_boundary({1.0, Kind::boundary, 0}) == 2);
  CHECK(job.first_boundary({1.0, Kind::leaves, 0}) == 3);
  CHECK(job.first_boundary({1000, Kind::boundary, 0}) == 10);
}

TEST_CASE("each boundary is found by the time that it has, whatever the rounding") {
  SimulatedJob job = training();
  job.job.cells = {{1'000'000, 0.1, 0}};
  job.begin_wait(0.3);
  job.begin_turn(0.3, 1);
  job.begin_to_compute(0.3);
  job.set_rate(0.3, 1);
  job.set_rate(1.7, 1.0 / 3);
  for (std::int64_t next = 20; next < 1'000'000; next = next * 3 / 2)
    REQUIRE(job.first_boundary({job.boundary_time(next), Kind::boundary, 0}) == next);
}

TEST_CASE("a wait and a turn that go on count until now, and are not over by that") {
  SimulatedJob job = training();
  job.begin_wait(2);
  CHECK(job.outcome_at(5).waited == 3);
  CHECK_FALSE(job.outcome_at(5).started);
  job.begin_turn(6, 1);
  job.begin_to_compute(6);
  job.set_rate(6, 1);
  CHECK(job.outcome_at(7.2).device_seconds == doctest::Approx(1.2));
  CHECK(job.outcome_at(7.2).iterations == 2);
  CHECK(job.outcome.iterations == 0);
  job.reach(2);
  job.end_turn(7.2);
  CHECK(job.outcome.waited == 4);
  CHECK(job.outcome.started == 6);
  CHECK(job.is_valid() == "");
}

TEST_CASE("a turn on several devices counts on each of them") {
  SimulatedJob job = computing(0);
  job.devices = {0, 1, 2};
  job.end_turn(2);
  CHECK(job.outcome.device_seconds == 6);
}

TEST_CASE("a report is due after its interval in a turn, and after a tenth of it at the end") {
  SimulatedJob job = computing(10);
  const Conduct conduct{.report = 2};
  CHECK(job.due_report(conduct) == -kNever);  // the first one is due at once
  job.reported = 9;
  CHECK(job.due_report(conduct) == 12);
  job.reported = 11;
  CHECK(job.due_report(conduct) == 13);
  job.end_turn(12);
  CHECK(job.due_report(conduct) == doctest::Approx(11.2));
}

TEST_CASE("a job opens without options that were not measured, and idle if it thinks first") {
  SimulatedJob job = training();
  job.job.demand = {1, 8, false, {{8, 1}, {4, 1.2}}};
  job.job.cells.front().think = 3;
  CHECK(job.spec().demand.options.empty());
  CHECK_FALSE(job.spec().busy);
  job.job.demand.measured = true;
  job.job.cells.front().think = 0;
  CHECK(job.spec().demand.options.size() == 2);
  CHECK(job.spec().busy);
}

TEST_CASE("a job is valid that computes in its turn, and has one only while it is open") {
  SimulatedJob job = training();
  job.computes = true;
  CHECK(job.is_valid() == "a job computes without a turn");
  job.holds = job.wants = true;
  CHECK(job.is_valid() == "a job waits for the turn that it has");
  job.wants = job.open = false;
  CHECK(job.is_valid() == "a job has a turn and is not open");
}

// --- a class -------------------------------------------------------------------------------------

TEST_CASE("a class is on from its first member to its last, under the policy for classes") {
  SimulatedClass of("course", "fair");
  CHECK_FALSE(of.join(in_group("others")));
  CHECK(of.policy() == "fair");
  CHECK(of.join(in_group("course")));
  CHECK_FALSE(of.join(in_group("course")));
  CHECK(of.policy() == "classroom");
  CHECK_FALSE(of.leave(in_group("others")));
  CHECK_FALSE(of.leave(in_group("course")));
  CHECK(of.is_on());
  CHECK(of.leave(in_group("course")));
  CHECK(of.policy() == "fair");
}

TEST_CASE("of the group without a name there is no class") {
  SimulatedClass none("", "las");
  CHECK_FALSE(none.join(in_group("")));
  CHECK_FALSE(none.is_on());
  CHECK(none.policy() == "las");
}

// --- what is remembered --------------------------------------------------------------------------

TEST_CASE("the use of memory is noted where it has changed, and not before the first session") {
  HostDevices devices({{"gpu0", 16}, {"gpu1", 16}}, "fair", Rules{});
  SimulationRecord record;
  record.follow(devices, 0);
  CHECK(record.memory().empty());
  SessionSpec spec;
  spec.demand = {2, 6};
  devices.tell(1, [&](Scheduler& there) { return there.open(1, "a", spec); });
  record.follow(devices, 1);
  record.follow(devices, 2);
  REQUIRE(record.memory().size() == 1);
  const MemoryUse& use = record.memory().front();
  CHECK(use.time == 1);
  CHECK(use.device == 1);
  CHECK(use.persistent == 2);
  CHECK(use.lanes == 6);
  devices.tell(1, [&](Scheduler& there) { return there.close(3, "a"); });
  record.follow(devices, 3);
  REQUIRE(record.memory().size() == 2);
  CHECK(record.memory().back().persistent + record.memory().back().lanes == 0);
}
