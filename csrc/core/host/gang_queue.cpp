#include "core/host/gang_queue.h"

#include <algorithm>
#include <utility>

namespace gpushare {
namespace {

template <class Devices>
bool overlap(const std::vector<std::size_t>& devices, const Devices& others) {
  return std::ranges::any_of(devices, [&](std::size_t device) {
    return std::ranges::find(others, device) != others.end();
  });
}

}  // namespace

GangQueue::GangQueue(const Rules& rules)
    : policy_(policy_named("fair")),
      quantum_(rules.quantum),
      aging_(rules.aging),
      shares_(rules.half_life) {}

// --- events --------------------------------------------------------------------------------------

void GangQueue::open(Seconds now, const std::string& id, const Gang& gang) {
  if (contains(id)) {
    finish(now, id);
    Gang& known = entry(id).gang;
    if (known.group == gang.group && known.user == gang.user) {
      known = gang;
      return change(now, id, gang.weight, gang.priority);
    }
    close(now, id);
  }
  advance(now);
  numbers_[id] = ++last_number_;
  Entry& entry = entries_[last_number_];
  entry.id = id;
  entry.gang = gang;
  entry.path = shares_.add(gang.group, gang.user, id);
  shares_.weigh(entry.path, gang.weight);
}

void GangQueue::close(Seconds now, const std::string& id) {
  finish(now, id);
  const Gang& gang = entry(id).gang;
  shares_.remove(gang.group, gang.user, id);
  entries_.erase(numbers_.at(id));
  numbers_.erase(id);
}

void GangQueue::change(Seconds now, const std::string& id, double weight, int priority) {
  advance(now);
  Entry& changed = entry(id);
  changed.gang.priority = priority;
  shares_.weigh(changed.path, weight);
}

void GangQueue::set_weights(Seconds now, FairShares::Weights groups, FairShares::Weights users) {
  advance(now);
  shares_.set_weights(std::move(groups), std::move(users));
}

void GangQueue::request(Seconds now, const std::string& id) {
  advance(now);
  Entry& waiting = entry(id);
  if (waiting.state != State::idle) return;
  waiting.state = State::waits;
  waiting.since = now_;
  waiting.order = ++last_order_;
  shares_.enter(waiting.path);
}

void GangQueue::begin(Seconds now, const std::string& id) {
  advance(now);
  Entry& holder = entry(id);
  if (holder.state == State::runs) return;
  holder.adopted = holder.state != State::called;
  if (holder.state == State::idle) shares_.enter(holder.path);
  shares_.begin_turn(holder.path, holder.width());
  holder.state = State::runs;
  holder.since = now_;
}

void GangQueue::finish(Seconds now, const std::string& id) {
  advance(now);
  Entry& over = entry(id);
  if (over.state == State::idle) return;
  if (over.state == State::runs) shares_.end_turn(over.path, over.width());
  shares_.leave(over.path);
  over.state = State::idle;
  over.asked = over.adopted = false;
}

bool GangQueue::is_called(const std::string& id) const {
  return entries_.at(numbers_.at(id)).has_devices();
}

void GangQueue::advance(Seconds now) {
  now_ = std::max(now_, now);
  shares_.advance(now_);
}

// --- the pass ------------------------------------------------------------------------------------

GangQueue::Calls GangQueue::assign(Seconds now) {
  advance(now);
  next_ = kNever;
  Calls calls;
  std::set<std::size_t> reserved;
  for (Entry* waiting : in_order()) {
    if (overlap(waiting->gang.devices, reserved)) continue;
    if (in_the_way_of(*waiting).empty()) {
      waiting->state = State::called;
      calls.called.push_back(waiting->id);
    } else {
      reserve_for(*waiting, reserved, calls);
    }
  }
  return calls;
}

// Reserves the devices of a waiting gang if the turns of all gangs that have one of them should be
// over, and asks these to yield.
void GangQueue::reserve_for(const Entry& waiting, std::set<std::size_t>& reserved, Calls& calls) {
  const std::vector<Entry*> holders = in_the_way_of(waiting);
  Seconds ends = 0;
  for (const Entry* holder : holders) ends = std::max(ends, ends_in(*holder, waiting));
  const Seconds impatient = waiting.since + aging_;
  const bool is_next = ends <= kSoon;
  if (is_next || (ends < kNever && now_ >= impatient - kSoon))
    reserved.insert(waiting.gang.devices.begin(), waiting.gang.devices.end());
  const bool all_run = std::ranges::all_of(
      holders, [](const Entry* holder) { return holder->state == State::runs; });
  if (!is_next && all_run) next_ = std::min(next_, now_ + ends);
  if (now_ < impatient - kSoon) next_ = std::min(next_, impatient);
  for (Entry* holder : holders)
    if (is_next && !std::exchange(holder->asked, true)) calls.yields.push_back(holder->id);
}

std::vector<GangQueue::Entry*> GangQueue::in_order() {
  std::vector<std::pair<Candidate, Entry*>> waiting;
  for (auto& [number, entry] : entries_)
    if (entry.state == State::waits) waiting.emplace_back(candidate(entry), &entry);
  std::ranges::stable_sort(
      waiting, [&](const auto& a, const auto& b) { return before(policy_, a.first, b.first); });
  std::vector<Entry*> order;
  for (const auto& [view, entry] : waiting) order.push_back(entry);
  return order;
}

std::vector<GangQueue::Entry*> GangQueue::in_the_way_of(const Entry& waiting) {
  std::vector<Entry*> holders;
  for (auto& [number, entry] : entries_)
    if (entry.has_devices() && overlap(entry.gang.devices, waiting.gang.devices))
      holders.push_back(&entry);
  return holders;
}

// A gang that was called has its turn first, of a quantum at least: otherwise two gangs could be
// called back for each other forever, before either has all of its devices.
Seconds GangQueue::ends_in(const Entry& holder, const Entry& waiting) const {
  if (holder.asked) return 0;
  return gpushare::ends_in(policy_, candidate(holder), candidate(waiting), quantum_);
}

// The clock of a gang is as many times faster as it has devices, so its weight is divided by that
// number.
Candidate GangQueue::candidate(const Entry& entry) const {
  const auto& [group, user, own] = entry.path;
  return {
      .priority = entry.gang.priority,
      .weight = own->share.weight / entry.width(),
      .group = group,
      .group_weight = group->share.weight,
      .group_turns = group->share.running,
      .group_clock = shares_.clock(group->share),
      .user = user,
      .user_weight = user->share.weight,
      .user_turns = user->share.running,
      .user_clock = shares_.clock(user->share),
      .clock = shares_.clock(own->share),
      .attained = {},  // `fair` does not use it
      .running = entry.state == State::runs ? now_ - entry.since : 0,
      .remaining = {},
      .order = entry.order,
  };
}

std::string GangQueue::is_valid() const {
  if (numbers_.size() != entries_.size()) return "a gang has no id";
  if (const std::string broken = shares_.is_valid(); !broken.empty()) return broken;
  std::set<std::size_t> taken;
  for (const auto& [number, entry] : entries_) {
    const Share& share = entry.path.back()->share;
    if (share.active != (entry.state != State::idle)) return "a gang's share is not as it is";
    if (share.running != (entry.state == State::runs ? entry.width() : 0))
      return "a gang's turn is counted wrong";
    if (entry.asked && !entry.has_devices()) return "a gang was asked to yield and has no device";
    if (!entry.has_devices() || entry.adopted) continue;
    for (const std::size_t device : entry.gang.devices)
      if (!taken.insert(device).second) return "two gangs were called to one device";
  }
  return calls_are_right();
}

// The first gang that wants a device is called to it, unless another gang has it.
std::string GangQueue::calls_are_right() const {
  for (const auto& [number, waiting] : entries_) {
    if (waiting.state != State::waits) continue;
    const bool waits_for_another = std::ranges::any_of(entries_, [&](const auto& other) {
      return other.first != number && other.second.state != State::idle &&
             overlap(other.second.gang.devices, waiting.gang.devices);
    });
    if (!waits_for_another) return "a gang waits although it could be called";
  }
  return "";
}

}  // namespace gpushare
