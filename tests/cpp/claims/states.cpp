// Every order of what two processes can do with their claims on a lane.
#include <doctest/doctest.h>

#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "claims/claims.h"

using namespace gpushare;

namespace {

enum class Phase { kOutside, kComputes, kWaits, kSpills };

// What a process knows besides the word.
struct Process {
  Phase phase = Phase::kOutside;
  Chunks want = 0;
  bool is_in_file = false;  // its extent
  auto operator<=>(const Process&) const = default;
};

struct World {
  std::uint64_t word = 0;
  std::array<Process, 2> processes;
  auto operator<=>(const World&) const = default;
};

Phase phase_after(Claims::Answer answer) {
  if (answer == Claims::Answer::kGranted) return Phase::kComputes;
  return answer == Claims::Answer::kWait ? Phase::kWaits : Phase::kSpills;
}

// All states that can be reached, each with those that may follow.
class States {
 public:
  // If `keeps_word`, no process needs more than it said.
  States(Chunks budget, bool keeps_word) : budget_(budget), keeps_word_(keeps_word) {
    visit({});
    while (!todo_.empty()) {
      const World world = todo_.back();
      todo_.pop_back();
      for (int end = 0; end < 2; ++end) step(world, end);
    }
  }

  size_t size() const { return next_.size(); }
  const std::map<World, std::set<World>>& next() const { return next_; }
  Claims claims(const World& world) const { return {world.word, budget_}; }

  // The first rule that a state breaks, or an empty string.
  std::string broken() const {
    for (const auto& [world, after] : next_) {
      const Claims now = claims(world);
      if (now.word() != world.word) return "a word that no process may write";
      if (now.extent(0) + now.extent(1) > budget_) return "more than the budget";
      if (keeps_word_ && !is_safe(now)) return "the elder may have to wait";
      for (int end = 0; end < 2; ++end) {
        const Process& process = world.processes[end];
        if ((process.phase == Phase::kOutside) == now.is_inside(end)) return "inside and outside";
        if (now.must_spill(end) && !now.is_inside(Claims::other(end)))
          return "an extent is spilled for no process";
        if (keeps_word_ && process.phase == Phase::kSpills) return "an extent is spilled";
        if (keeps_word_ && process.phase == Phase::kWaits && waits_as_elder(now, end)) {
          return "the elder waits";
        }
      }
    }
    return {};
  }

  // States from which the two cannot both end their iterations, without a kill and without another
  // iteration.
  size_t stuck() const {
    std::map<World, std::vector<World>> before;
    std::vector<World> ended;
    for (const auto& [world, after] : next_) {
      for (const World& then : after) {
        if (is_progress(world, then)) before[then].push_back(world);
      }
      if (is_outside(world)) ended.push_back(world);
    }
    return next_.size() - reached(ended, before);
  }

  // States in which no process computes, and looking again leads to none in which one does.
  size_t circles() const {
    size_t count = 0;
    for (const auto& [world, after] : next_) count += !is_outside(world) && !gets_on(world);
    return count;
  }

 private:
  bool is_safe(const Claims& now) const {
    const int elder = now.elder();
    return now.bound(elder) + now.extent(Claims::other(elder)) <= budget_;
  }

  // The elder's claim is granted as soon as it looks.
  bool waits_as_elder(Claims now, int end) const {
    return now.elder() == end && now.bound(end) + now.extent(Claims::other(end)) > budget_;
  }

  static bool is_outside(const World& world) {
    return world.processes[0].phase == Phase::kOutside &&
           world.processes[1].phase == Phase::kOutside;
  }

  static bool is_progress(const World& world, const World& then) {
    for (int end = 0; end < 2; ++end) {
      const Phase from = world.processes[end].phase, to = then.processes[end].phase;
      const bool begins = from == Phase::kOutside && to != Phase::kOutside;
      const bool is_killed =
          (from == Phase::kWaits || from == Phase::kSpills) && to == Phase::kOutside;
      if (begins || is_killed) return false;
    }
    return true;
  }

  static size_t reached(std::vector<World> todo,
                        const std::map<World, std::vector<World>>& before) {
    std::set<World> seen(todo.begin(), todo.end());
    while (!todo.empty()) {
      const World world = todo.back();
      todo.pop_back();
      const auto earlier = before.find(world);
      if (earlier == before.end()) continue;
      for (const World& from : earlier->second) {
        if (seen.insert(from).second) todo.push_back(from);
      }
    }
    return seen.size();
  }

  static bool computes(const World& world) {
    return world.processes[0].phase == Phase::kComputes ||
           world.processes[1].phase == Phase::kComputes;
  }

  bool gets_on(const World& world) const {
    std::vector<World> todo{world};
    std::set<World> seen(todo.begin(), todo.end());
    while (!todo.empty()) {
      const World at = todo.back();
      todo.pop_back();
      if (computes(at)) return true;
      for (const World& then : next_.at(at)) {
        if (is_progress(at, then) && seen.insert(then).second) todo.push_back(then);
      }
    }
    return false;
  }

  void visit(const World& world) {
    if (next_.emplace(world, std::set<World>()).second) todo_.push_back(world);
  }

  void go(const World& world, int end, const Claims& claims, const Process& process) {
    World then = world;
    then.word = claims.word();
    then.processes[end] = process;
    if (then == world) return;
    next_[world].insert(then);
    visit(then);
  }

  // Whatever this process can do next.
  void step(const World& world, int end) {
    const Process& process = world.processes[end];
    if (process.phase != Phase::kOutside) {  // it ends, or is killed
      Claims claims = this->claims(world);
      claims.end(end);
      go(world, end, claims, {});
    }
    if (process.phase == Phase::kOutside) begin(world, end);
    if (process.phase == Phase::kComputes) compute(world, end);
    if (process.phase == Phase::kWaits) claim(world, end, process.want);
    if (process.phase == Phase::kSpills) spill(world, end);
  }

  void begin(const World& world, int end) {
    for (Chunks most = 0; most <= budget_ + 1; ++most) {
      Claims claims = this->claims(world);
      claims.begin(end, most, budget_);
      go(world, end, claims, {Phase::kComputes});
    }
  }

  void compute(const World& world, int end) {
    const Claims now = claims(world);
    for (Chunks to = 0; to < now.extent(end); ++to) {
      Claims claims = now;
      claims.shrink(end, to);
      go(world, end, claims, {Phase::kComputes});
    }
    for (Chunks most = 0; most < now.bound(end); ++most) {
      Claims claims = now;
      claims.lower_bound(end, most);
      go(world, end, claims, {Phase::kComputes});
    }
    const Chunks most = keeps_word_ ? now.bound(end) : budget_;
    for (Chunks want = now.extent(end) + 1; want <= most; ++want) claim(world, end, want);
  }

  void claim(const World& world, int end, Chunks want) {
    Claims claims = this->claims(world);
    const Phase phase = phase_after(claims.claim(end, want, budget_));
    Process process{phase, want, world.processes[end].is_in_file};
    if (phase == Phase::kComputes) process = {phase};
    go(world, end, claims, process);
  }

  // Spills to the file, unless it is there already; then it wants all of it back.
  void spill(const World& world, int end) {
    Claims claims = this->claims(world);
    const Chunks all = std::max(world.processes[end].want, claims.extent(end));
    claims.spilled(end);
    go(world, end, claims, {Phase::kWaits, all, true});
  }

  const Chunks budget_;
  const bool keeps_word_;
  std::map<World, std::set<World>> next_;
  std::vector<World> todo_;
};

}  // namespace

TEST_CASE("claims: in every order the budget holds, and both get to the end of their iterations") {
  for (const bool keeps_word : {true, false}) {
    for (const Chunks budget : {1u, 2u, 3u, 4u}) {
      const States states(budget, keeps_word);
      CAPTURE(budget);
      CAPTURE(keeps_word);
      CAPTURE(states.size());
      CHECK(states.broken() == "");
      CHECK(states.stuck() == 0);
      CHECK(states.circles() == 0);
    }
  }
}

TEST_CASE("claims: any word of another process is within the budget, and is kept as it is read") {
  std::uint64_t word = 0x9E3779B97F4A7C15;
  for (int i = 0; i < 10'000; ++i) {
    word ^= word << 13, word ^= word >> 7, word ^= word << 17;
    const Chunks budget = 1 + static_cast<Chunks>(word >> 40) % Claims::kMost;
    const Claims claims(word, budget);
    REQUIRE(claims.extent(0) + claims.extent(1) <= budget);
    REQUIRE(Claims(claims.word(), budget) == claims);
  }
}
