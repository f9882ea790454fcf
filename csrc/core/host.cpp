#include "core/host.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

namespace gpushare {
namespace {

void require(bool condition, const std::string& sentence) {
  if (!condition) throw std::invalid_argument(sentence);
}

template <class Value>
void append(std::vector<Value>& to, std::vector<Value>&& from) {
  if (to.empty())
    to = std::move(from);
  else
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

Host::Host(const std::vector<DeviceSpec>& devices, std::string_view policy, const Rules& rules)
    : queue_(rules) {
  require(!devices.empty(), "a host must have a device");
  for (const DeviceSpec& device : devices) {
    require(numbers_.emplace(device.name, devices_.size()).second,
            "two devices are called '" + device.name + "'");
    devices_.push_back({device.name, device.capacity, Scheduler(device.capacity, policy, rules)});
  }
}

// --- placement -----------------------------------------------------------------------------------

std::vector<std::string> Host::place(const std::vector<std::string>& among, const Demand& demand,
                                     std::size_t count) const {
  require(count > 0 && count <= among.size(), std::to_string(count) + " devices at once are not " +
                                                  "to be had of " + std::to_string(among.size()));
  const auto worth = [&](const std::string& device) {
    const Scheduler& there = scheduler(device);
    return std::pair(there.free() - demand.persistent >= demand.ephemeral,
                     static_cast<double>(there.free()) / static_cast<double>(there.size() + 1));
  };
  std::vector<std::pair<bool, double>> worths;
  std::ranges::transform(among, std::back_inserter(worths), worth);
  std::vector<std::size_t> best(among.size());
  std::iota(best.begin(), best.end(), 0);
  std::ranges::stable_sort(best, std::greater{}, [&](std::size_t i) { return worths[i]; });
  best.resize(count);
  std::ranges::sort(best);
  std::vector<std::string> chosen;
  for (const std::size_t i : best) chosen.push_back(among[i]);
  return chosen;
}

DeviceNumber Host::number_of(const std::string& device) const {
  const auto number = numbers_.find(device);
  require(number != numbers_.end(), "there is no device '" + device + "' here");
  return number->second;
}

std::vector<DeviceNumber> Host::numbers_of(const std::string& id,
                                           const std::vector<std::string>& devices) const {
  std::vector<DeviceNumber> numbers;
  for (const std::string& device : devices) numbers.push_back(number_of(device));
  require(!numbers.empty() && std::set(numbers.begin(), numbers.end()).size() == numbers.size(),
          "'" + id + "' must name each of its devices once");
  const auto known = places_.find(id);
  if (known == places_.end()) return numbers;
  const Gang* gang = gang_of(id);
  require(numbers == (gang ? gang->devices : std::vector{known->second.device}),
          "'" + id + "' is open on other devices");
  return numbers;
}

const Host::Place& Host::place_of(const std::string& id) const {
  const auto place = places_.find(id);
  if (place == places_.end()) throw UnknownSession("no session '" + id + "' is open");
  return place->second;
}

const Host::Gang* Host::gang_of(const std::string& id) const {
  if (gangs_.empty()) return nullptr;
  const auto place = places_.find(id);
  if (place == places_.end() || place->second.gang == 0) return nullptr;
  return &gangs_.at(place->second.gang);
}

Host::Gang* Host::gang_of(const std::string& id) {
  return const_cast<Gang*>(std::as_const(*this).gang_of(id));
}

// --- events --------------------------------------------------------------------------------------

template <class Event>
Decision Host::happens(Seconds now, DeviceNumber device, const Event& event) {
  Decision made = event(devices_[device].scheduler);
  devices_[device].touched = true;
  if (gangs_.empty()) return made;
  advance(now);
  Decision decision;
  take(std::move(made), decision);
  return settle(std::move(decision));
}

template <class Event>
Decision Host::happens(Seconds now, const std::string& id, const Event& event) {
  const Gang* gang = gang_of(id);
  if (!gang) return happens(now, place_of(id).device, event);
  advance(now);
  Decision decision;
  tell(*gang, decision, event);
  return settle(std::move(decision));
}

template <class Event>
Decision Host::happens_everywhere(Seconds now, const Event& event) {
  advance(now);
  Decision decision;
  for (DeviceNumber device = 0; device < devices_.size(); ++device) tell(device, decision, event);
  return settle(std::move(decision));
}

template <class Event>
void Host::tell(DeviceNumber device, Decision& decision, const Event& event) {
  Decision made = event(devices_[device].scheduler);
  devices_[device].touched = true;
  take(std::move(made), decision);
}

// A refusal of the smallest device comes first, and the others refuse nothing that it does not.
template <class Event>
void Host::tell(const Gang& gang, Decision& decision, const Event& event) {
  for (const DeviceNumber device : gang.smallest_first) tell(device, decision, event);
}

Seconds Host::advance(Seconds now) {
  require(std::isfinite(now), "a time must be a finite number of seconds");
  return now_ = std::max(now, now_);
}

Decision Host::open(Seconds now, const std::string& id, const std::vector<std::string>& devices,
                    const SessionSpec& spec) {
  const std::vector<DeviceNumber> numbers = numbers_of(id, devices);
  if (numbers.size() > 1) return open_gang(now, id, numbers, spec);
  Decision decision =
      happens(now, numbers.front(), [&](Scheduler& there) { return there.open(now, id, spec); });
  places_[id] = {numbers.front()};
  return decision;
}

Decision Host::close(Seconds now, const std::string& id) {
  const auto close = [&](Scheduler& there) { return there.close(now, id); };
  const Place place = place_of(id);
  if (place.gang == 0) {
    Decision decision = happens(now, place.device, close);
    places_.erase(id);
    return decision;
  }
  advance(now);
  const Gang gone = std::move(gangs_.at(place.gang));
  gangs_.erase(place.gang);
  places_.erase(id);
  queue_.close(now_, id);
  Decision decision;
  tell(gone, decision, close);
  return settle(std::move(decision));
}

Decision Host::request(Seconds now, const std::string& id, TurnNumber turn) {
  Gang* gang = gang_of(id);
  if (!gang)
    return happens(now, id, [&](Scheduler& there) { return there.request(now, id, turn); });
  advance(now);
  Decision decision;
  if (gang->wants() && turn <= gang->turn) return decision;  // a repeated or stale request
  end_wait(*gang);
  give_back(*gang, decision);
  begin_wait(*gang, turn);
  return settle(std::move(decision));
}

Decision Host::finish(Seconds now, const std::string& id, TurnNumber turn) {
  Gang* gang = gang_of(id);
  if (!gang) return happens(now, id, [&](Scheduler& there) { return there.finish(now, id, turn); });
  advance(now);
  Decision decision;
  if (!gang->wants() || turn != gang->turn) return decision;
  end_wait(*gang);
  give_back(*gang, decision);
  return settle(std::move(decision));
}

Decision Host::report(Seconds now, const std::string& id, std::int64_t iterations,
                      const Demand& demand, std::optional<std::int64_t> remaining_iterations) {
  return happens(now, id, [&](Scheduler& there) {
    return there.report(now, id, iterations, demand, remaining_iterations);
  });
}

Decision Host::change(Seconds now, const std::string& id, std::optional<double> weight,
                      std::optional<int> priority, std::optional<bool> paused) {
  const auto change = [&](Scheduler& there) {
    return there.change(now, id, weight, priority, paused);
  };
  Gang* gang = gang_of(id);
  if (!gang) return happens(now, id, change);
  advance(now);
  Decision decision;
  tell(*gang, decision, change);
  gang->weight = weight.value_or(gang->weight);
  gang->priority = priority.value_or(gang->priority);
  gang->paused = paused.value_or(gang->paused);
  queue_.change(now_, id, gang->weight, gang->priority);
  return settle(std::move(decision));
}

Decision Host::set_busy(Seconds now, const std::string& id, bool busy) {
  return happens(now, id, [&](Scheduler& there) { return there.set_busy(now, id, busy); });
}

Decision Host::paged_out(Seconds now, const std::string& id, Bytes bytes) {
  return happens(now, id, [&](Scheduler& there) { return there.paged_out(now, id, bytes); });
}

Decision Host::page_out_failed(Seconds now, const std::string& id, const std::string& why) {
  return happens(now, id, [&](Scheduler& there) { return there.page_out_failed(now, id, why); });
}

Decision Host::recall(Seconds now, const std::string& id) {
  const Gang* gang = gang_of(id);
  require(!gang || gang->runs(), id + " has no turn to end");
  return happens(now, id, [&](Scheduler& there) { return there.recall(now, id); });
}

Decision Host::dismiss(Seconds now, const std::string& id) {
  return happens(now, id, [&](Scheduler& there) { return there.dismiss(now, id); });
}

// --- events of devices ---------------------------------------------------------------------------

Decision Host::hold_back(Seconds now, const std::string& device,
                         const std::map<std::string, std::string>& sentences) {
  return happens(now, number_of(device),
                 [&](Scheduler& there) { return there.hold_back(now, sentences); });
}

Decision Host::set_shares(Seconds now, const std::string& device,
                          const std::map<std::string, double>& groups,
                          const std::map<std::string, double>& users) {
  const DeviceNumber number = number_of(device);
  Decision decision =
      happens(now, number, [&](Scheduler& there) { return there.set_shares(now, groups, users); });
  devices_[number].groups = groups;
  devices_[number].users = users;
  advance(now);
  weigh_gangs();
  return settle(std::move(decision));
}

void Host::weigh_gangs() {
  const auto mean = [&](FairShares::Weights Device::* weights) {
    FairShares::Weights sums;
    for (const Device& device : devices_)
      for (const auto& [name, weight] : device.*weights) sums[name] += weight - 1;
    for (auto& [name, sum] : sums) sum = 1 + sum / static_cast<double>(devices_.size());
    return sums;
  };
  queue_.set_weights(now_, mean(&Device::groups), mean(&Device::users));
}

Decision Host::set_policy(Seconds now, const std::string& device, std::string_view name) {
  return happens(now, number_of(device),
                 [&](Scheduler& there) { return there.set_policy(now, name); });
}

Decision Host::set_running_lanes(Seconds now, const std::string& device, int lanes) {
  return happens(now, number_of(device),
                 [&](Scheduler& there) { return there.set_running_lanes(now, lanes); });
}

Decision Host::set_foreign(Seconds now, const std::string& device, Bytes bytes) {
  return happens(now, number_of(device),
                 [&](Scheduler& there) { return there.set_foreign(now, bytes); });
}

Decision Host::set_recovering(Seconds now, bool recovering) {
  return happens_everywhere(
      now, [&](Scheduler& there) { return there.set_recovering(now, recovering); });
}

// --- time ----------------------------------------------------------------------------------------

Decision Host::assign(Seconds now) {
  advance(now);
  Decision decision;
  for (DeviceNumber device = 0; device < devices_.size(); ++device)
    if (devices_[device].touched || devices_[device].wake <= now)
      tell(device, decision, [&](Scheduler& there) { return there.assign(now); });
  return settle(std::move(decision));
}

std::optional<Seconds> Host::next_event(Seconds now) const {
  Seconds next = gangs_.empty() ? kNever : queue_.next_event();
  for (const Device& device : devices_) {
    if (std::exchange(device.touched, false))
      device.wake = device.scheduler.next_event(now).value_or(kNever);
    next = std::min(next, device.wake);
  }
  return next == kNever ? std::nullopt : std::optional(next);
}

bool Host::may_keep(const std::string& id, Bytes persistent) const {
  const Gang* gang = gang_of(id);
  if (!gang) return devices_[place_of(id).device].scheduler.may_keep(id, persistent);
  return std::ranges::all_of(gang->devices, [&](DeviceNumber device) {
    return devices_[device].scheduler.may_keep(id, persistent);
  });
}

bool Host::has_turn(const std::string& id) const {
  const Gang* gang = gang_of(id);
  return gang ? gang->runs() : devices_[place_of(id).device].scheduler.has_turn(id);
}

// --- gangs ---------------------------------------------------------------------------------------

Decision Host::open_gang(Seconds now, const std::string& id,
                         const std::vector<DeviceNumber>& devices, SessionSpec spec) {
  require(!spec.holding || !spec.waiting, "a session holds its turn or waits for it, not both");
  const bool waits = std::exchange(spec.waiting, false);
  spec.alone = true;
  const auto open = [&](DeviceNumber device) {
    Decision made = devices_[device].scheduler.open(now, id, spec);
    devices_[device].touched = true;
    return made;
  };
  const DeviceNumber smallest = *std::ranges::min_element(
      devices, {}, [&](DeviceNumber device) { return devices_[device].capacity; });
  Decision first = open(smallest);  // it refuses, or none does
  advance(now);
  Gang& gang = enroll(id, devices, spec);
  Decision decision;
  take(std::move(first), decision);
  for (const DeviceNumber device : gang.smallest_first)
    if (device != smallest) take(open(device), decision);
  if (waits) begin_wait(gang, spec.turn);
  return settle(std::move(decision));
}

// What it had of its devices is gone; one that comes with its turn has all of them.
Host::Gang& Host::enroll(const std::string& id, const std::vector<DeviceNumber>& devices,
                         const SessionSpec& spec) {
  Place& place = places_[id];
  if (place.gang == 0) place = {devices.front(), ++last_gang_};
  Gang& gang = gangs_[place.gang] = Gang{};
  gang.id = id;
  gang.devices = gang.smallest_first = devices;
  std::ranges::stable_sort(gang.smallest_first, {},
                           [&](DeviceNumber device) { return devices_[device].capacity; });
  gang.weight = spec.weight;
  gang.priority = spec.priority;
  gang.paused = spec.paused;
  gang.turn = spec.turn;
  gang.waited = spec.waited_seconds;
  queue_.open(now_, id, {spec.group, spec.user, spec.weight, spec.priority, devices});
  if (spec.holding) {
    gang.stage = Stage::runs;
    queue_.begin(now_, id);
  }
  return gang;
}

// What the scheduler of a device has decided. Of gangs it is kept here until it holds for all of
// their devices.
void Host::take(Decision&& made, Decision& decision) {
  append(decision.page_outs, std::move(made.page_outs));
  append(decision.page_ins, std::move(made.page_ins));
  if (gangs_.empty()) {
    append(decision.grants, std::move(made.grants));
    append(decision.yields, std::move(made.yields));
    return;
  }
  for (Grant& grant : made.grants)
    if (Gang* gang = gang_of(grant.session))
      is_granted(*gang, decision);
    else
      decision.grants.push_back(std::move(grant));
  for (Yield& yield : made.yields)
    if (Gang* gang = gang_of(yield.session)) {
      gang->asked = true;
      pass_on(*gang, decision);
    } else {
      decision.yields.push_back(std::move(yield));
    }
}

// One that is not called has come so to the room that it sought, and gives the turn back.
void Host::is_granted(Gang& gang, Decision& decision) {
  if (gang.stage != Stage::called || ++gang.granted < gang.devices.size()) return;
  gang.stage = Stage::runs;
  end_wait(gang);
  queue_.begin(now_, gang.id);
  decision.grants.push_back({gang.id, gang.turn, kNoLane});
  pass_on(gang, decision);
}

// It is asked once for all of its devices.
void Host::pass_on(Gang& gang, Decision& decision) {
  if (!gang.runs() || !gang.asked || std::exchange(gang.told, true)) return;
  decision.yields.push_back({gang.id, gang.turn, std::nullopt});
}

// Until nothing more follows: a turn that ends calls the next gang, which asks its devices.
Decision Host::settle(Decision decision) {
  bool follows = !gangs_.empty();
  while (follows) {
    follows = false;
    for (auto& [number, gang] : gangs_) follows |= follow(gang, decision);
    follows |= follow_queue(decision);
  }
  return decision;
}

bool Host::follow(Gang& gang, Decision& decision) {
  if (!gang.wants() || gang.runs()) return false;
  if (is_kept(gang)) return seek_room(gang, decision);
  if (gang.stage != Stage::kept) return false;
  join_queue(gang, decision);
  return true;
}

bool Host::follow_queue(Decision& decision) {
  const GangQueue::Calls calls = queue_.assign(now_);
  for (const std::string& id : calls.called) call(*gang_of(id), decision);
  for (const std::string& id : calls.yields)
    tell(*gang_of(id), decision, [&](Scheduler& there) { return there.recall(now_, id); });
  return !calls.called.empty() || !calls.yields.empty();
}

// From all of its devices at once, for longer than turns take that are ended for it.
bool Host::is_kept(const Gang& gang) const {
  const auto has_place = [&](DeviceNumber device) {
    return devices_[device].scheduler.has_place(gang.id);
  };
  return gang.paused || is_held(gang) || !std::ranges::all_of(gang.devices, has_place) ||
         somebody_hangs(gang);
}

bool Host::is_held(const Gang& gang) const {
  return std::ranges::any_of(gang.devices, [&](DeviceNumber device) {
    return !devices_[device].scheduler.held_back(gang.id).empty();
  });
}

bool Host::somebody_hangs(const Gang& gang) const {
  return std::ranges::any_of(gang.devices, [&](DeviceNumber device) {
    return std::ranges::any_of(devices_[device].scheduler.holders(now_), [&](const Holder& holder) {
      return holder.overdue && holder.id != gang.id;
    });
  });
}

bool Host::seek_room(Gang& gang, Decision& decision) {
  bool follows = gang.stage != Stage::kept;
  if (follows) give_back(gang, decision);
  gang.stage = Stage::kept;
  const bool may = !gang.paused && !is_held(gang);
  for (const DeviceNumber device : gang.devices) {
    const bool seeks = may && !devices_[device].scheduler.has_place(gang.id);
    const bool sought = std::erase(gang.seeks, device) > 0;
    if (seeks) gang.seeks.push_back(device);
    if (seeks == sought) continue;
    follows = true;
    tell(device, decision, [&](Scheduler& there) {
      return seeks ? there.request(now_, gang.id, gang.turn)
                   : there.finish(now_, gang.id, gang.turn);
    });
  }
  return follows;
}

void Host::join_queue(Gang& gang, Decision& decision) {
  give_back(gang, decision);
  gang.stage = Stage::queued;
  queue_.request(now_, gang.id);
}

void Host::call(Gang& gang, Decision& decision) {
  gang.stage = Stage::called;
  gang.granted = 0;
  tell(gang, decision, [&](Scheduler& there) { return there.request(now_, gang.id, gang.turn); });
}

// What it has of its devices is free again, and it waits for none of them. Its wait may go on.
void Host::give_back(Gang& gang, Decision& decision) {
  const auto finish = [&](Scheduler& there) { return there.finish(now_, gang.id, gang.turn); };
  const Stage before = std::exchange(gang.stage, Stage::idle);
  const std::vector<DeviceNumber> seeks = std::exchange(gang.seeks, {});
  gang.asked = gang.told = false;
  gang.granted = 0;
  queue_.finish(now_, gang.id);
  if (before == Stage::called || before == Stage::runs) tell(gang, decision, finish);
  for (const DeviceNumber device : seeks) tell(device, decision, finish);
}

void Host::begin_wait(Gang& gang, TurnNumber turn) {
  gang.stage = Stage::kept;  // until settle() finds that it could have all of its devices
  gang.turn = turn;
  gang.since = now_;
}

void Host::end_wait(Gang& gang) {
  gang.waited += gang.waiting(now_);
  gang.since.reset();
}

// --- what must stay true -------------------------------------------------------------------------

std::string Host::is_valid() const {
  for (const Device& device : devices_)
    if (const std::string broken = device.scheduler.is_valid(); !broken.empty())
      return device.name + ": " + broken;
  if (const std::string broken = queue_.is_valid(); !broken.empty()) return broken;
  if (const std::string broken = places_agree(); !broken.empty()) return broken;
  for (const auto& [number, gang] : gangs_)
    if (const std::string broken = gang_agrees(gang); !broken.empty())
      return gang.id + ": " + broken;
  return "";
}

std::string Host::places_agree() const {
  std::size_t open = 0, there = 0;
  for (const auto& [id, place] : places_) {
    const Gang* gang = gang_of(id);
    if ((place.gang != 0) != (gang != nullptr)) return "a place leads to no gang";
    for (const DeviceNumber device : gang ? gang->devices : std::vector{place.device})
      if (!devices_[device].scheduler.contains(id)) return "a session is not open on its device";
    open += gang ? gang->devices.size() : 1;
  }
  for (const Device& device : devices_) there += device.scheduler.size();
  return open == there ? "" : "a session is open on a device that is not its own";
}

std::string Host::gang_agrees(const Gang& gang) const {
  const bool is_called = gang.stage == Stage::called || gang.runs();
  if (queue_.is_called(gang.id) != is_called) return "is called, and is not, at once";
  const auto has = std::ranges::count_if(gang.devices, [&](DeviceNumber device) {
    return devices_[device].scheduler.has_turn(gang.id);
  });
  const auto expected = gang.runs() ? gang.devices.size() : gang.granted;
  if (static_cast<std::size_t>(has) != expected) return "has turns on other devices than it should";
  return gang.runs() || !gang.told ? "" : "was asked to yield a turn that it has not got";
}

}  // namespace gpushare
