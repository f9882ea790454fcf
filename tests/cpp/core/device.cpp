// The objects that look at the state of one device, each by itself: what it has for its sessions,
// which of them should page out, why they wait, and for how long.
#include <doctest/doctest.h>

#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/device/fitting.h"
#include "core/device/turns.h"
#include "core/host/scheduler.h"
#include "core/pass/eviction.h"
#include "core/pass/run_queue.h"
#include "core/view/explanation.h"
#include "core/view/rehearsal.h"

using namespace gpushare;

namespace {

constexpr Bytes kCapacity = 16;
const Demand kSqueezable{2, 10, true, {{10, 1.0}, {6, 1.08}, {4, 1.3}}};

SessionSpec spec_of(const Demand& demand, bool busy = true) {
  SessionSpec spec;
  spec.user = std::string("ada");
  spec.demand = demand;
  spec.busy = busy;
  spec.bears = 1.1;
  return spec;
}

// A device whose state is built step by step: no pass comes in between.
struct Bench {
  explicit Bench(const Rules& rules = {}) : state(kCapacity, "fair", rules) { state.advance(0); }

  Session& opens(const std::string& id, const Demand& demand, bool busy = true) {
    return Turns(state).open(id, spec_of(demand, busy));
  }
  Session& has_place(const std::string& id, const Demand& demand, bool busy = true) {
    Session& session = opens(id, demand, busy);
    Placement(state).admit(session);
    return session;
  }
  void runs(Session& session) {
    Turns(state).begin_wait(session, 1);
    Turns(state).grant(session);
  }
  Bytes has(const Session& session) const {
    return state.lanes.table().demand_of(session.number).ephemeral;
  }
  std::vector<std::string> leave() const {
    std::vector<std::string> ids;
    for (const SessionNumber number : Eviction(state).plan().sessions)
      ids.push_back(state.sessions.at(number).id);
    return ids;
  }

  DeviceState state;
};

// Two sessions of one lane under a scheduler: "a" has the turn since 0, and "b" waits since then.
// An iteration of "a" has taken 0.4 s twice; the quantum is 1 s.
struct Pair {
  Pair() : it(kCapacity, "fair", {.quantum = 1, .lease = 5}) {
    for (const char* id : {"a", "b"}) {
      it.open(0, id, spec_of({2, 6}));
      it.request(0, id, 1);
    }
    it.report(0.8, "a", 2, {2, 6}, std::nullopt);
  }

  const Session& session(const std::string& id) const { return it.state().sessions.of(id); }
  Why why(const std::string& id, Seconds now) const {
    const RunQueue run_queue(it.state(), now, now);
    return Explanation(it.state(), run_queue, now).why({it.state(), session(id), now});
  }

  Scheduler it;
};

std::vector<Code> codes(const Why& why) {
  std::vector<Code> codes;
  for (const Reason& reason : why) codes.push_back(reason.code);
  return codes;
}

using Codes = std::vector<Code>;
using Ids = std::vector<std::string>;

}  // namespace

// --- sessions that run, and that wait ------------------------------------------------------------

TEST_CASE("a session stays where it is, and in its order, while others open and close") {
  SessionTable sessions;
  const Session& first = sessions.add("a");
  Session& middle = sessions.add("b");
  const Session& last = sessions.add("c");
  sessions.set_demand(middle, kSqueezable);
  const SessionNumber closed = middle.number;
  sessions.remove(middle);
  for (int i = 0; i < 100; ++i) sessions.add("d" + std::to_string(i));

  CHECK(sessions.is_valid() == "");
  CHECK(&sessions.of("a") == &first);
  CHECK(&sessions.at(last.number) == &last);
  CHECK(&*std::next(sessions.begin()) == &last);
  CHECK(sessions.find(closed) == nullptr);
  CHECK_THROWS_AS(sessions.at(closed), std::out_of_range);
  CHECK(sessions.add("b").number > sessions.of("d99").number);
}

TEST_CASE("a copy of the sessions is of its own, and goes on as the original would") {
  SessionTable sessions;
  sessions.set_demand(sessions.add("a"), kSqueezable);
  SessionTable copy = sessions;
  copy.of("a").paused = true;
  copy.add("b");
  sessions.remove(sessions.of("a"));

  CHECK(sessions.empty());
  CHECK(!sessions.can_squeeze());
  CHECK(copy.is_valid() == "");
  CHECK(copy.can_squeeze());
  CHECK(copy.of("a").paused);
  CHECK(copy.at(copy.of("b").number).id == "b");
}

TEST_CASE("sessions that run and that wait are apart, and idle, paused ones in neither") {
  Pair pair;
  pair.it.open(0.9, "idle", spec_of({0, 1}));
  pair.it.open(0.9, "paused", spec_of({0, 1}));
  pair.it.change(0.9, "paused", std::nullopt, std::nullopt, true);
  pair.it.request(0.9, "paused", 1);
  const RunQueue run_queue(pair.it.state(), 0.9, 0.9);
  REQUIRE(run_queue.running.size() == 1);
  REQUIRE(run_queue.waiting.size() == 1);
  CHECK(run_queue.running[0].session->id == "a");
  CHECK(run_queue.waiting[0].session->id == "b");
  CHECK_FALSE(run_queue.running[0].must_end);
}

TEST_CASE("the successor that a holder has named is promised the turn") {
  Pair pair;
  const Decision decision = pair.it.assign(1.0);
  REQUIRE(decision.yields.size() == 1);
  const RunQueue run_queue(pair.it.state(), 1.0, 1.0);
  CHECK(run_queue.running[0].promised);
  CHECK(run_queue.waiting[0].promised);
}

TEST_CASE("a session whose demand is not measured, or not counted, excludes all others") {
  Bench bench;
  const Session& unknown = bench.has_place("a", {2, 0, false});
  const Session& measured = bench.has_place("b", {2, 4});
  Session& uncounted = bench.opens("c", {2, 4});
  CHECK(RunQueueEntry(bench.state, unknown, 0).everywhere);
  CHECK_FALSE(RunQueueEntry(bench.state, measured, 0).everywhere);
  CHECK_FALSE(RunQueueEntry(bench.state, uncounted, 0).everywhere);
  uncounted.turn = Session::Turn{1, 0, std::nullopt, {}, 0, false};
  CHECK(RunQueueEntry(bench.state, uncounted, 0).everywhere);
}

// --- room ----------------------------------------------------------------------------------------

TEST_CASE("a demand has no options where rules forbid it, or the session is alone on its device") {
  CHECK(squeezable({}, kSqueezable, false) == kSqueezable);
  CHECK(squeezable({}, kSqueezable, true).options.empty());
  CHECK(squeezable({.squeeze = false}, kSqueezable, false).options.empty());
}

TEST_CASE("for a newcomer a session is squeezed as far as it bears, and grows back later") {
  Bench bench;
  const Session& large = bench.has_place("a", kSqueezable);
  CHECK(bench.has(large) == 10);
  CHECK_FALSE(squeezed(bench.state, large));
  Session& newcomer = bench.opens("b", {6, 2});
  REQUIRE_FALSE(Fitting(bench.state).has_room(newcomer));  // it wants nothing yet
  Turns(bench.state).begin_wait(newcomer, 1);
  REQUIRE(Fitting(bench.state).has_room(newcomer));
  Placement(bench.state).admit(newcomer);
  CHECK(bench.has(large) == 6);
  REQUIRE(squeezed(bench.state, large));
  CHECK(squeezed(bench.state, large)->slowdown == 1.08);
  CHECK(bench.state.lanes.is_valid() == "");
  Turns(bench.state).close(newcomer);
  Placement(bench.state).grow_back();
  CHECK(bench.has(large) == 10);
  CHECK(bench.state.is_valid() == "");
}

TEST_CASE("a newcomer finds no room that would slow another one by more than it bears") {
  Bench bench;
  bench.has_place("a", kSqueezable);
  Session& newcomer = bench.opens("b", {9, 2});
  Turns(bench.state).begin_wait(newcomer, 1);
  CHECK_FALSE(Fitting(bench.state).has_room(newcomer));
  bench.state.sessions.of("a").bears = 1.3;
  CHECK(Fitting(bench.state).has_room(newcomer));
}

TEST_CASE("a session that runs keeps what it has, and the newcomer waits for that") {
  Bench bench;
  Session& large = bench.has_place("a", kSqueezable);
  bench.runs(large);
  Session& newcomer = bench.opens("b", {6, 2});
  Turns(bench.state).begin_wait(newcomer, 1);
  const Fitting fitting(bench.state);
  CHECK_FALSE(fitting.has_room(newcomer));
  CHECK_FALSE(fitting.has_room_beside_those_that_run(newcomer));
  CHECK(fitting.has_room_when_idle(newcomer));
  Placement(bench.state).squeeze_to(6);
  CHECK(bench.has(large) == 10);
}

TEST_CASE("a session that has outgrown its place loses it after its turn, and not before") {
  Bench bench;
  Session& session = bench.has_place("a", {2, 4});
  bench.has_place("b", {4, 4});
  bench.runs(session);
  bench.state.sessions.set_demand(session, {9, 8});
  Placement(bench.state).fit_to_demand(session);
  CHECK(bench.state.has_place(session));
  CHECK(bench.state.has_outgrown(session));
  Turns(bench.state).end(session);
  Placement(bench.state).fit_to_demand(session);
  CHECK_FALSE(bench.state.has_place(session));
}

TEST_CASE("a turn that is brought has the option it names, or all that the session needs") {
  Bench bench;
  const Session& session = bench.opens("a", kSqueezable);
  CHECK(brought_room(session, 6).ephemeral == 6);
  CHECK(brought_room(session, 0).ephemeral == 10);
  CHECK(brought_room(session, 5).ephemeral == 10);  // no such option
  CHECK(floor_room(session).ephemeral == 4);
  CHECK(least_room(session, 10).ephemeral == 6);
  CHECK(least_room(session, 4).ephemeral == 4);  // which slows it already
}

// --- which sessions page out ---------------------------------------------------------------------

TEST_CASE("no session is asked to page out where all have places") {
  Bench bench;
  bench.has_place("a", {10, 4}, false);
  CHECK(bench.leave().empty());
}

TEST_CASE("the longest idle session pages out first, and none without need") {
  Bench bench;
  bench.has_place("old", {4, 2}, false);
  bench.state.advance(1);
  bench.has_place("new", {4, 2}, false);
  bench.state.advance(2);
  Session& newcomer = bench.opens("b", {6, 4});
  CHECK(bench.leave() == Ids{});  // nothing waits
  Turns(bench.state).begin_wait(newcomer, 1);
  CHECK(bench.leave() == Ids{"old"});
  CHECK(Eviction(bench.state).plan().beneficiary == newcomer.number);
  bench.state.sessions.set_demand(newcomer, {12, 4});
  CHECK(bench.leave() == Ids{"old", "new"});
}

TEST_CASE("sessions that run a cell stay, and so do all where their room would not be enough") {
  Bench bench;
  bench.has_place("busy", {6, 2});
  bench.has_place("idle", {4, 2}, false);
  Session& newcomer = bench.opens("b", {12, 2});
  Turns(bench.state).begin_wait(newcomer, 1);
  CHECK(bench.leave() == Ids{});
}

TEST_CASE("while one that was asked is paging out, no other one is asked in its place") {
  Bench bench;
  Session& old = bench.has_place("old", {4, 2}, false);
  bench.state.advance(1);
  bench.has_place("new", {4, 2}, false);
  Session& newcomer = bench.opens("b", {6, 4});
  Turns(bench.state).begin_wait(newcomer, 1);
  bench.state.residency.ask_to_leave(old.memory, newcomer.number, newcomer.id);
  CHECK(bench.leave() == Ids{});
}

TEST_CASE("where unmanaged memory takes the room, idle sessions page out for no session") {
  Bench bench;
  bench.has_place("a", {4, 2}, false);
  bench.has_place("b", {4, 2});
  bench.state.lanes.set_unmanaged(8);
  CHECK(bench.leave() == Ids{"a"});
  CHECK(Eviction(bench.state).plan().beneficiary == kNoSession);
}

TEST_CASE("queued sessions page out only for one that has aged, and only where rules allow it") {
  for (const bool allowed : {false, true}) {
    Bench bench({.aging = 10, .page_waiting = allowed});
    Session& first = bench.opens("first", {12, 2});
    first.priority = 1;
    Turns(bench.state).begin_wait(first, 1);
    Turns(bench.state).begin_wait(bench.has_place("queued", {6, 2}), 1);
    CHECK(bench.leave() == Ids{});
    bench.state.advance(10);
    CHECK(bench.leave() == (allowed ? Ids{"queued"} : Ids{}));
  }
}

// --- why a session is as it is -------------------------------------------------------------------

TEST_CASE("a session that waits is told for which one, and that this one is overdue") {
  Pair pair;
  CHECK(codes(pair.why("a", 0.9)) == Codes{Code::runs});
  CHECK(codes(pair.why("b", 0.9)) == Codes{Code::waits_for});
  CHECK(pair.why("b", 0.9)[0].other == "a");
  pair.it.assign(1.0);
  CHECK(codes(pair.why("a", 1.0)) == Codes{Code::yields_to_others});
  CHECK(codes(pair.why("a", 6.0)) == Codes{Code::overdue});
  CHECK(codes(pair.why("b", 6.0)) == Codes{Code::waits_for, Code::other_is_overdue});
}

TEST_CASE("the state that people see of a session follows from its turn, its rules, its memory") {
  Pair pair;
  const auto is = [&](const char* id, Seconds now) {
    return state_of(pair.it.state(), pair.session(id), now);
  };
  CHECK(is("a", 0.9) == State::running);
  CHECK(is("b", 0.9) == State::waiting);
  const Why why{{.code = Code::throttled_used_up, .who = "ada", .rule = "a rule", .seconds = 60},
                {.code = Code::ask_contact, .who = "ann"}};
  pair.it.throttle(0.9, {{"b", why}});
  CHECK(is("b", 0.9) == State::throttled);
  CHECK(pair.why("b", 0.9) == why);
  pair.it.change(0.9, "b", std::nullopt, std::nullopt, true);
  CHECK(is("b", 0.9) == State::paused);
  pair.it.throttle(0.9, {});
  pair.it.finish(0.9, "b", 1);
  pair.it.change(0.9, "b", std::nullopt, std::nullopt, false);
  CHECK(is("b", 0.9) == State::idle);
  pair.it.set_busy(0.9, "b", false);
  pair.it.paged_out(0.9, "b", 2);
  CHECK(is("b", 0.9) == State::paged_out);
  CHECK(pair.why("b", 0.9)[0].bytes == 2);
}

TEST_CASE("a session without a place is told what it needs, what is free, and what programs use") {
  Pair pair;
  pair.it.set_unmanaged(0.9, 3);
  pair.it.open(0.9, "c", spec_of({8, 6}));
  pair.it.request(0.9, "c", 1);
  const Why why = pair.why("c", 0.9);
  CHECK(codes(why) == Codes{Code::waits_for_memory, Code::needs_bytes, Code::used_by_programs});
  CHECK(why[1].bytes == 8);
  CHECK(why[1].free == 3);
  CHECK(why[2].bytes == 3);
}

TEST_CASE("the cause of a page-out that failed is told to its own user alone") {
  for (const char* user : {"ada", "bob"}) {
    Pair pair;
    pair.it.open(0.9, "idle", spec_of({6, 6}, false));
    SessionSpec spec = spec_of({5, 6});
    spec.user = user;
    pair.it.open(0.9, "c", spec);
    REQUIRE(pair.it.request(0.9, "c", 1).page_outs == Ids{"idle"});
    pair.it.page_out_failed(0.9, "idle", "the disk is full");
    const Reason stays = pair.why("c", 0.9).back();
    CHECK(stays.other == "idle");
    CHECK(stays.text == (spec.user == "ada" ? "the disk is full" : ""));
  }
}

TEST_CASE("a squeezed session is told how far, and for which of the others") {
  Bench bench;
  Session& large = bench.has_place("a", kSqueezable);
  Session& newcomer = bench.opens("b", {6, 2});
  Turns(bench.state).begin_wait(newcomer, 1);
  Placement(bench.state).admit(newcomer);
  const RunQueue run_queue(bench.state, 0, 0);
  const Why why = Explanation(bench.state, run_queue, 0).why({bench.state, large, 0});
  CHECK(codes(why) == Codes{Code::needs_no_turn, Code::squeezed, Code::squeezed_for});
  CHECK(why[1].bytes == 6);
  CHECK(why[1].whole == 10);
  CHECK(why[1].percent == 8);
  CHECK(why[2].other == "b");
}

// --- how long a session waits --------------------------------------------------------------------

TEST_CASE("a turn begins at the first boundary after the quantum of the one before") {
  const Pair pair;
  Rehearsal rehearsal(pair.it.state(), 0.9);
  rehearsal.run(1'000'000);
  REQUIRE(rehearsal.begins().contains(pair.session("b").number));
  const Rehearsal::Begin begin = rehearsal.begins().at(pair.session("b").number);
  CHECK(begin.turn == 1);
  CHECK(begin.at == doctest::Approx(1.2));
}

TEST_CASE("a rehearsal changes nothing of the device, and stops when its work is done") {
  const Pair pair;
  Rehearsal none(pair.it.state(), 0.9);
  none.run(0);
  CHECK(none.begins().empty());
  CHECK(none.work() == 0);
  none.run(1);
  CHECK(none.work() > 0);
  CHECK(pair.session("a").turn);
  CHECK_FALSE(pair.session("a").turn->asked);
  CHECK(pair.it.is_valid() == "");
}

TEST_CASE("where the pace of a holder is unknown, so is the begin of the next turn") {
  Scheduler it(kCapacity, "fair", {.quantum = 1});
  for (const char* id : {"a", "b"}) {
    it.open(0, id, spec_of({2, 6}));
    it.request(0, id, 1);
  }
  Rehearsal rehearsal(it.state(), 0.5);
  rehearsal.run(1'000'000);
  CHECK(rehearsal.begins().empty());
}
