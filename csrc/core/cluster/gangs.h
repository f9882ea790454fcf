// Gangs on the whole devices of several hosts, in virtual time: their queue, and jobs that
// yield at once and compute without pauses.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/cluster/cluster_queue.h"
#include "core/model/types.h"

namespace gpushare {

struct GangOutcome {
  std::string id;
  Seconds arrival = 0;
  std::optional<Seconds> started, ended;
  Seconds waited = 0;
  int preempted = 0, promoted = 0;
};

struct GangTurn {
  std::size_t gang = 0;
  Seconds began = 0, ended = 0;
  std::vector<int> devices;  // of each host
};

class GangSimulation {
 public:
  // `hosts` has the number of devices of each host. Raises std::invalid_argument for what cannot be
  // simulated.
  GangSimulation(const std::vector<Gang>& gangs, std::vector<int> hosts, std::string_view policy,
                 GangRules rules);

  // Runs up to this time, or until nothing is left to happen. May be called again with a later one.
  void run(Seconds until);

  Seconds now() const { return now_; }
  std::vector<GangOutcome> outcomes() const;
  // The finished turns, in the order in which they ended.
  const std::vector<GangTurn>& turns() const { return turns_; }
  // Empty, or what is wrong.
  std::string is_valid() const { return queue_.is_valid(); }

 private:
  Seconds next_event() const;
  void end();
  void arrive();
  void assign();
  void begin_turn(const GangGrant& grant);
  void yield(std::size_t number);
  void end_turn(std::size_t number);
  void follow(GangOutcome& outcome) const;

  ClusterQueue queue_;
  std::vector<Gang> gangs_;
  std::vector<GangOutcome> outcomes_;
  std::unordered_map<std::string, std::size_t> numbers_;
  std::vector<std::size_t> coming_;  // the next one last
  std::vector<std::size_t> running_;
  std::vector<GangTurn> turns_;
  Seconds now_ = 0;
};

}  // namespace gpushare
