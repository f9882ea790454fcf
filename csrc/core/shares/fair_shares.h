// The tree over which fairness goes: groups, their users, and what these run, which are its leaves:
// the sessions of one device, or the gangs of a host. Each node has a clock (share.h). A node that
// becomes active is as far behind the lowest clock of its active siblings as it was when it ceased
// to be active: idle time earns nothing, and a break does not cost what the node was owed.
//
// A user without sessions is known for as long as its use is significant: a user that closes
// everything and opens it again keeps its debt.
//
// Invariants, which is_valid() checks: each node counts what is below it, and no group is
// known without users.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/model/types.h"
#include "core/shares/decayed.h"
#include "core/shares/share.h"

namespace gpushare {

class FairShares {
 public:
  static constexpr std::size_t kLevels = 3;
  struct Node {
    Share share;
    Decayed attained;  // of a leaf: seconds of its finished turns
    int leaves = 0;    // below it, or itself
    std::map<std::string, Node> below;
  };
  using Path = std::array<Node*, kLevels>;  // group, user, leaf; valid until the leaf is removed
  using Weights = std::map<std::string, double>;  // by name; an absent name has 1
  // Clocks of the nodes below a node: the lowest of the active ones, and the highest of all. They
  // are computed when one moment's comparisons first need them: mostly for few of many nodes.
  struct Clocks {
    std::optional<Faded> lowest, highest;
  };
  using ClocksBelow = std::unordered_map<const Node*, Clocks>;

  explicit FairShares(Seconds half_life);

  // Time has passed. It does not go back.
  void advance(Seconds now);
  void set_weights(Weights groups, Weights users);

  Path add(const std::string& group, const std::string& user, const std::string& leaf);
  void remove(const std::string& group, const std::string& user, const std::string& leaf);
  // Called on a copy, whose paths still lead to the nodes of the original.
  Path path(const std::string& group, const std::string& user, const std::string& leaf);
  void weigh(const Path& path, double weight);  // of the leaf
  // It begins, or ceases, to wait or run.
  void enter(const Path& path);
  void enter(const Path& path, ClocksBelow& below);  // if several enter at once
  void leave(const Path& path);
  // Its clocks go `times` as fast while it runs.
  void begin_turn(const Path& path, int times = 1);
  void end_turn(const Path& path, int times = 1);
  // The leaf has used these seconds, which have just passed without a break.
  void attain(const Path& path, Seconds seconds);

  Faded clock(const Share& share) const { return clock(share, now_); }
  Faded clock(const Share& share, Seconds at) const { return share.clock(at, fading_); }
  // Of the leaf, whose present turn has run for `running` seconds.
  Faded attained(const Path& path, Seconds at, Seconds running) const {
    return path.back()->attained.at(at, fading_) + fading_.faded(running);
  }
  // How far an active leaf is beyond the lowest clock of its siblings, in seconds of its own, at
  // the level of the tree where this is most.
  Seconds ahead(const Path& path, ClocksBelow& below, Seconds at) const;

  std::string is_valid() const;  // empty, or the first broken invariant in words

 private:
  static double weight_of(const Weights& weights, const std::string& name);
  Clocks& clocks_of(const Node& above, Seconds at, ClocksBelow& below) const;
  void add_clock(const Share& share, Seconds at, Clocks& clocks) const;
  double behind(const Node& above, const Share& own) const;
  void lift(Share& share, const Clocks& peers) const;
  void forget_faded();
  void convert(std::map<std::string, Node>& nodes, const Fading& to);
  static bool counts_what_is_below(const Node& node);

  Seconds half_life_;
  Fading fading_;
  Node all_;
  Weights groups_, users_;
  Seconds now_ = -kNever;
};

}  // namespace gpushare
