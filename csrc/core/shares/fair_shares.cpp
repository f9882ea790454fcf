#include "core/shares/fair_shares.h"

#include <algorithm>
#include <utility>

namespace gpushare {
namespace {

// A user without a leaf that has used less than this, faded and by weight, is forgotten. If it were
// as much as a turn, short turns would be free for a user that opens a notebook for each.
constexpr Seconds kForgotten = 1e-3;

}  // namespace

FairShares::FairShares(Seconds half_life) : half_life_(half_life), fading_(half_life) {}

void FairShares::advance(Seconds now) {
  const bool is_first = now_ == -kNever;
  now_ = std::max(now_, now);
  if (!is_first && !fading_.is_stale(now_)) return;
  const Fading fading(half_life_, now_);
  convert(all_.below, fading);
  fading_ = fading;
}

// Running turns are not counted here: clocks may also be read for an earlier moment.
void FairShares::convert(std::map<std::string, Node>& nodes, const Fading& to) {
  for (auto& [name, node] : nodes) {
    node.share.used.convert(now_, fading_, to);
    node.share.behind.convert(now_, fading_, to);
    node.attained.convert(now_, fading_, to);
    convert(node.below, to);
  }
}

double FairShares::weight_of(const Weights& weights, const std::string& name) {
  const auto weight = weights.find(name);
  return weight == weights.end() ? 1.0 : weight->second;
}

void FairShares::set_weights(Weights groups, Weights users) {
  groups_ = std::move(groups);
  users_ = std::move(users);
  for (auto& [name, group] : all_.below) {
    group.share.weigh(now_, fading_, weight_of(groups_, name));
    for (auto& [user, node] : group.below) node.share.weigh(now_, fading_, weight_of(users_, user));
  }
}

// --- leaves --------------------------------------------------------------------------------------

FairShares::Path FairShares::add(const std::string& group, const std::string& user,
                                 const std::string& leaf) {
  forget_faded();
  const auto [of_group, is_new_group] = all_.below.try_emplace(group);
  if (is_new_group) of_group->second.share.weight = weight_of(groups_, group);
  const auto [of_user, is_new_user] = of_group->second.below.try_emplace(user);
  if (is_new_user) of_user->second.share.weight = weight_of(users_, user);
  Node& own = of_user->second.below[leaf];
  const Path path{&of_group->second, &of_user->second, &own};
  for (Node* node : path) ++node->leaves;
  return path;
}

void FairShares::remove(const std::string& group, const std::string& user,
                        const std::string& leaf) {
  Node& of_group = all_.below.at(group);
  Node& of_user = of_group.below.at(user);
  of_user.below.erase(leaf);
  --of_group.leaves;
  --of_user.leaves;
  forget_faded();
}

FairShares::Path FairShares::path(const std::string& group, const std::string& user,
                                  const std::string& leaf) {
  Node& of_group = all_.below.at(group);
  Node& of_user = of_group.below.at(user);
  return {&of_group, &of_user, &of_user.below.at(leaf)};
}

void FairShares::forget_faded() {
  for (auto& [name, group] : all_.below)
    std::erase_if(group.below, [&](const auto& user) {
      return user.second.leaves == 0 && clock(user.second.share).seconds() < kForgotten;
    });
  std::erase_if(all_.below, [](const auto& group) { return group.second.below.empty(); });
}

void FairShares::weigh(const Path& path, double weight) {
  path.back()->share.weigh(now_, fading_, weight);
}

// --- clocks --------------------------------------------------------------------------------------

void FairShares::enter(const Path& path) {
  ClocksBelow below;
  enter(path, below);
}

void FairShares::enter(const Path& path, ClocksBelow& below) {
  const Node* above = &all_;
  for (Node* node : path) {
    Clocks& peers = clocks_of(*above, now_, below);
    if (node->share.active++ == 0) lift(node->share, peers);
    add_clock(node->share, now_, peers);
    above = node;
  }
}

void FairShares::leave(const Path& path) {
  const Node* above = &all_;
  for (Node* node : path) {
    if (--node->share.active == 0) node->share.behind.units = behind(*above, node->share);
    above = node;
  }
}

double FairShares::behind(const Node& above, const Share& own) const {
  const double from = clock(own).units;
  std::optional<double> least;
  for (const auto& [name, node] : above.below) {
    if (node.share.active == 0) continue;  // as it is itself
    const double behind = clock(node.share).units - from;
    if (behind <= 0) return 0;  // mostly at once, since it has just had a turn
    least = std::min(least.value_or(behind), behind);
  }
  return least.value_or(0);
}

// A node that was idle starts at the lowest clock of the active ones, or the highest of all if none
// is active, less what it was behind.
void FairShares::lift(Share& share, const Clocks& peers) const {
  const double lifted = peers.lowest.value_or(*peers.highest).units - share.behind.units;
  share.used.units = std::max(share.used.units, lifted);
}

FairShares::Clocks& FairShares::clocks_of(const Node& above, Seconds at, ClocksBelow& below) const {
  const auto [clocks, is_new] = below.try_emplace(&above);
  if (is_new)
    for (const auto& [name, node] : above.below) add_clock(node.share, at, clocks->second);
  return clocks->second;
}

void FairShares::add_clock(const Share& share, Seconds at, Clocks& clocks) const {
  const Faded own = clock(share, at);
  if (share.active > 0) clocks.lowest = std::min(clocks.lowest.value_or(own), own);
  clocks.highest = std::max(clocks.highest.value_or(own), own);
}

Seconds FairShares::ahead(const Path& path, ClocksBelow& below, Seconds at) const {
  Seconds most = -kNever;
  const Node* above = &all_;
  for (const Node* node : path) {
    const Seconds ahead = clock(node->share, at) - *clocks_of(*above, at, below).lowest;
    most = std::max(most, ahead * node->share.weight);
    above = node;
  }
  return most;
}

// --- turns ---------------------------------------------------------------------------------------

void FairShares::begin_turn(const Path& path, int times) {
  for (Node* node : path)
    for (int i = 0; i < times; ++i) node->share.begin_turn(now_, fading_);
}

void FairShares::end_turn(const Path& path, int times) {
  for (Node* node : path)
    for (int i = 0; i < times; ++i) node->share.end_turn(now_, fading_);
}

void FairShares::attain(const Path& path, Seconds seconds) {
  path.back()->attained.add(now_, fading_, fading_.faded(seconds));
}

// --- what must stay true -------------------------------------------------------------------------

std::string FairShares::is_valid() const {
  for (const auto& [name, group] : all_.below) {
    if (group.below.empty()) return "a group without users is known";
    if (!counts_what_is_below(group)) return "a group's sessions are counted wrong";
    for (const auto& [user, node] : group.below)
      if (!counts_what_is_below(node)) return "a user's sessions are counted wrong";
  }
  return "";
}

bool FairShares::counts_what_is_below(const Node& node) {
  int leaves = 0, active = 0, running = 0;
  for (const auto& [name, below] : node.below) {
    leaves += below.leaves;
    active += below.share.active;
    running += below.share.running;
  }
  return leaves == node.leaves && active == node.share.active && running == node.share.running;
}

}  // namespace gpushare
