#include "core/fair_shares.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace gpushare {
namespace {

constexpr Seconds kForgotten = 1e-3;  // faded, and by weight

}  // namespace

FairShares::FairShares(Seconds half_life) : half_life_(half_life), fading_(half_life) {}

void FairShares::advance(Seconds now) {
  const bool is_first = now_ == -kNever;
  now_ = std::max(now_, now);
  if (!is_first && !fading_.is_stale(now_)) return;
  const Fading anew(half_life_, now_);
  convert(all_.below, anew);
  fading_ = anew;
}

void FairShares::convert(std::map<std::string, Node>& nodes, const Fading& to) {
  for (auto& [name, node] : nodes) {
    node.share.count(now_, fading_);
    node.share.used.convert(now_, fading_, to);
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
  Node* above = &all_;
  for (Node* node : path) {
    if (node->share.active++ == 0) lift(node->share, above->below);
    above = node;
  }
}

void FairShares::leave(const Path& path) {
  for (Node* node : path)
    if (--node->share.active == 0) node->share.idle_since = now_;
}

// It counts as if it had run while it was away, up to the lowest clock of those who are active, or
// the highest of all if none is. It is active itself by now, which must not count.
void FairShares::lift(Share& share, const std::map<std::string, Node>& siblings) const {
  std::optional<Faded> lowest, highest;
  for (const auto& [name, node] : siblings) {
    const Faded other = clock(node.share);
    if (&node.share != &share && node.share.active > 0)
      lowest = std::min(lowest.value_or(other), other);
    highest = std::max(highest.value_or(other), other);
  }
  const Faded as_if_run = clock(share) + (now_ - share.idle_since) / share.weight;
  const Faded lifted = std::min(lowest.value_or(*highest), as_if_run);
  if (lifted > clock(share)) share.used.units = lifted.units;
}

void FairShares::begin_turn(const Path& path, int times) {
  for (Node* node : path)
    for (int i = 0; i < times; ++i) node->share.begin_turn(now_, fading_);
}

void FairShares::end_turn(const Path& path, int times) {
  for (Node* node : path)
    for (int i = 0; i < times; ++i) node->share.end_turn(now_, fading_);
}

}  // namespace gpushare
