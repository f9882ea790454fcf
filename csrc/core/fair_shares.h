// The tree over which fairness goes, by itself: groups, their users, and what these run, which are
// its leaves. Each node has a clock (share.h). A node that becomes active starts at the lowest
// clock of its active siblings, so that nobody earns anything by being away.
//
// A user whom nobody runs anything for is known for as long as its use is worth speaking of: who
// closes everything and opens it again owes what was owed.
#pragma once

#include <array>
#include <map>
#include <string>

#include "core/decayed.h"
#include "core/share.h"
#include "core/types.h"

namespace gpushare {

class FairShares {
 public:
  static constexpr std::size_t kLevels = 3;
  struct Node {
    Share share;
    int leaves = 0;  // below it, or itself
    std::map<std::string, Node> below;
  };
  using Path = std::array<Node*, kLevels>;  // group, user, leaf; valid until the leaf is removed
  using Weights = std::map<std::string, double>;  // by name; who is absent has 1

  explicit FairShares(Seconds half_life);

  // Time has passed. It does not go back.
  void advance(Seconds now);
  void set_weights(Weights groups, Weights users);

  Path add(const std::string& group, const std::string& user, const std::string& leaf);
  void remove(const std::string& group, const std::string& user, const std::string& leaf);
  void weigh(const Path& path, double weight);  // of the leaf
  // It begins, or ceases, to wait or run.
  void enter(const Path& path);
  void leave(const Path& path);
  // Its clocks go `times` as fast while it runs.
  void begin_turn(const Path& path, int times);
  void end_turn(const Path& path, int times);

  Faded clock(const Share& share) const { return share.clock(now_, fading_); }

 private:
  static double weight_of(const Weights& weights, const std::string& name);
  void lift(Share& share, const std::map<std::string, Node>& siblings) const;
  void forget_faded();
  void convert(std::map<std::string, Node>& nodes, const Fading& to);

  Seconds half_life_;
  Fading fading_;
  Node all_;
  Weights groups_, users_;
  Seconds now_ = -kNever;
};

}  // namespace gpushare
