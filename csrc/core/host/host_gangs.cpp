#include "core/host/host_gangs.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/model/validation.h"

namespace gpushare {
namespace {

template <class Value>
void append(std::vector<Value>& to, std::vector<Value>&& from) {
  if (to.empty())
    to = std::move(from);
  else
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

const Session& session_of(const HostDevices& devices, const HostGangs::Gang& gang,
                          DeviceNumber device) {
  return devices.state(device).sessions.of(gang.id);
}

bool has_place(const HostDevices& devices, const HostGangs::Gang& gang, DeviceNumber device) {
  return devices.state(device).has_place(session_of(devices, gang, device));
}

bool is_throttled(const HostDevices& devices, const HostGangs::Gang& gang) {
  return std::ranges::any_of(gang.devices, [&](DeviceNumber device) {
    return is_throttled(session_of(devices, gang, device));
  });
}

bool is_behind_overdue(const HostDevices& devices, const HostGangs::Gang& gang, Seconds now) {
  return std::ranges::any_of(gang.devices, [&](DeviceNumber device) {
    return std::ranges::any_of(devices[device].scheduler.holders(now), [&](const Holder& holder) {
      return holder.overdue && holder.id != gang.id;
    });
  });
}

// It is asked once for all of its devices.
void pass_on(HostGangs::Gang& gang, Decision& decision) {
  if (!gang.runs() || !gang.asked || std::exchange(gang.told, true)) return;
  decision.yields.push_back({gang.id, gang.turn, std::nullopt});
}

}  // namespace

// --- one gang ------------------------------------------------------------------------------------

// It waits until settle() finds that it could have all of its devices.
void HostGangs::Gang::begin_wait(Seconds now, TurnNumber number) {
  stage = Stage::kept;
  turn = number;
  since = now;
}

void HostGangs::Gang::end_wait(Seconds now) {
  waited += waiting(now);
  since.reset();
}

const HostGangs::Gang* HostGangs::find(const std::string& id) const {
  if (gangs_.empty()) return nullptr;
  const auto number = numbers_.find(id);
  return number == numbers_.end() ? nullptr : &gangs_.at(number->second);
}

HostGangs::Gang* HostGangs::find(const std::string& id) {
  return const_cast<Gang*>(std::as_const(*this).find(id));
}

void HostGangs::advance(Seconds now) {
  check_time(now);
  now_ = std::max(now, now_);
}

// --- events --------------------------------------------------------------------------------------

Decision HostGangs::open(Seconds now, const std::string& id,
                         const std::vector<DeviceNumber>& devices, SessionSpec spec) {
  require(!spec.holding || !spec.waiting, "a session holds its turn or waits for it, not both");
  const bool waits = std::exchange(spec.waiting, false);
  spec.alone = true;
  const Event open = [&](Scheduler& there) { return there.open(now, id, spec); };
  const DeviceNumber smallest = *std::ranges::min_element(
      devices, {}, [&](DeviceNumber device) { return devices_[device].capacity; });
  Decision first = devices_.tell(smallest, open);  // it refuses, or none does
  advance(now);
  Gang& gang = add(id, devices, spec);
  Decision decision;
  take(std::move(first), decision);
  for (const DeviceNumber device : gang.smallest_first)
    if (device != smallest) tell(device, decision, open);
  if (waits) gang.begin_wait(now_, spec.turn);
  return settle(std::move(decision));
}

Decision HostGangs::close(Seconds now, const std::string& id) {
  advance(now);
  const Gang gone = std::move(gang(id));
  gangs_.erase(numbers_.at(id));
  numbers_.erase(id);
  queue_.close(now_, id);
  Decision decision;
  tell(gone, decision, [&](Scheduler& there) { return there.close(now, id); });
  return settle(std::move(decision));
}

Decision HostGangs::request(Seconds now, const std::string& id, TurnNumber turn) {
  advance(now);
  Gang& waiting = gang(id);
  Decision decision;
  if (waiting.wants() && turn <= waiting.turn) return decision;  // a repeated or stale request
  waiting.end_wait(now_);
  give_back(waiting, decision);
  waiting.begin_wait(now_, turn);
  return settle(std::move(decision));
}

Decision HostGangs::finish(Seconds now, const std::string& id, TurnNumber turn) {
  advance(now);
  Gang& over = gang(id);
  Decision decision;
  if (!over.wants() || turn != over.turn) return decision;
  over.end_wait(now_);
  give_back(over, decision);
  return settle(std::move(decision));
}

Decision HostGangs::change(Seconds now, const std::string& id, std::optional<double> weight,
                           std::optional<int> priority, std::optional<bool> paused) {
  advance(now);
  Gang& changed = gang(id);
  Decision decision;
  tell(changed, decision,
       [&](Scheduler& there) { return there.change(now, id, weight, priority, paused); });
  changed.weight = weight.value_or(changed.weight);
  changed.priority = priority.value_or(changed.priority);
  changed.paused = paused.value_or(changed.paused);
  queue_.change(now_, id, changed.weight, changed.priority);
  return settle(std::move(decision));
}

Decision HostGangs::happens(Seconds now, const std::string& id, const Event& event) {
  advance(now);
  Decision decision;
  tell(gang(id), decision, event);
  return settle(std::move(decision));
}

// Among gangs a group has the mean of its weights on all devices, and so do users.
Decision HostGangs::weigh(Seconds now, Decision decision) {
  advance(now);
  queue_.set_weights(now_, devices_.mean(&Device::groups), devices_.mean(&Device::users));
  return settle(std::move(decision));
}

void HostGangs::tell(DeviceNumber device, Decision& decision, const Event& event) {
  take(devices_.tell(device, event), decision);
}

// The smallest device is told first: the others refuse nothing that it accepts, so a refusal comes
// before any change.
void HostGangs::tell(const Gang& gang, Decision& decision, const Event& event) {
  for (const DeviceNumber device : gang.smallest_first) tell(device, decision, event);
}

// A known gang loses its devices here; a gang that comes with its turn has all of them.
HostGangs::Gang& HostGangs::add(const std::string& id, const std::vector<DeviceNumber>& devices,
                                const SessionSpec& spec) {
  const auto [number, is_new] = numbers_.try_emplace(id, last_number_ + 1);
  if (is_new) ++last_number_;
  Gang& gang = gangs_[number->second] = Gang{};
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

// Takes what the scheduler of a device has decided. Decisions on gangs are kept here until they
// hold for all of their devices.
void HostGangs::take(Decision&& made, Decision& decision) {
  append(decision.page_outs, std::move(made.page_outs));
  append(decision.page_ins, std::move(made.page_ins));
  if (gangs_.empty()) {
    append(decision.grants, std::move(made.grants));
    append(decision.yields, std::move(made.yields));
    return;
  }
  for (Grant& grant : made.grants)
    if (Gang* gang = find(grant.session))
      is_granted(*gang, decision);
    else
      decision.grants.push_back(std::move(grant));
  for (Yield& yield : made.yields)
    if (Gang* gang = find(yield.session)) {
      gang->asked = true;
      pass_on(*gang, decision);
    } else {
      decision.yields.push_back(std::move(yield));
    }
}

// A gang that is not called has found the room that it sought, and gives the turn back.
void HostGangs::is_granted(Gang& gang, Decision& decision) {
  if (gang.stage != Stage::called || ++gang.granted < gang.devices.size()) return;
  gang.stage = Stage::runs;
  gang.end_wait(now_);
  queue_.begin(now_, gang.id);
  decision.grants.push_back({gang.id, gang.turn, kNoLane});
  pass_on(gang, decision);
}

// Repeats until nothing more follows: a turn that ends calls the next gang, which asks its devices.
Decision HostGangs::settle(Decision decision) {
  bool follows = !gangs_.empty();
  while (follows) {
    follows = false;
    for (auto& [number, gang] : gangs_) follows |= follow(gang, decision);
    follows |= follow_queue(decision);
  }
  return decision;
}

bool HostGangs::follow(Gang& gang, Decision& decision) {
  const bool waits = gang.wants() && !gang.runs();
  if (stand_back(gang, waits && is_behind(gang), decision)) return true;
  if (!waits) return false;
  if (is_kept(gang)) return seek_room(gang, decision);
  if (gang.stage != Stage::kept) return false;
  join_queue(gang, decision);
  return true;
}

bool HostGangs::follow_queue(Decision& decision) {
  const GangQueue::Calls calls = queue_.assign(now_);
  for (const std::string& id : calls.called) call(*find(id), decision);
  for (const std::string& id : calls.yields)
    tell(*find(id), decision, [&](Scheduler& there) { return there.preempt(now_, id); });
  return !calls.called.empty() || !calls.yields.empty();
}

// Whether it will still lack some of its devices once the turns that were asked to end for it have
// ended.
bool HostGangs::is_kept(const Gang& gang) const {
  return !may_seek(gang) || lacks_room(gang) || is_behind_overdue(devices_, gang, now_);
}

bool HostGangs::lacks_room(const Gang& gang) const {
  return !std::ranges::all_of(
      gang.devices, [&](DeviceNumber device) { return has_place(devices_, gang, device); });
}

bool HostGangs::may_seek(const Gang& gang) const {
  return !gang.paused && !is_throttled(devices_, gang);
}

// Whether an earlier gang waits for room, and has a device in common.
bool HostGangs::is_behind(const Gang& gang) const {
  if (!lacks_room(gang)) return false;
  const auto shares = [&](DeviceNumber device) {
    return std::ranges::find(gang.devices, device) != gang.devices.end();
  };
  for (const auto& [number, other] : gangs_) {
    if (other.id == gang.id) return false;
    if (other.wants() && !other.runs() && may_seek(other) && lacks_room(other) &&
        std::ranges::any_of(other.devices, shares))
      return true;
  }
  return false;
}

bool HostGangs::stands_back(const Gang& gang) const {
  return std::ranges::any_of(gang.devices, [&](DeviceNumber device) {
    return !session_of(devices_, gang, device).admissible;
  });
}

bool HostGangs::stand_back(Gang& gang, bool stands_back, Decision& decision) {
  if (stands_back == this->stands_back(gang)) return false;
  if (stands_back) {
    give_back(gang, decision);
    gang.stage = Stage::kept;
  }
  tell(gang, decision,
       [&](Scheduler& there) { return there.set_admissible(now_, gang.id, !stands_back); });
  return true;
}

bool HostGangs::seek_room(Gang& gang, Decision& decision) {
  bool follows = gang.stage != Stage::kept;
  if (follows) give_back(gang, decision);
  gang.stage = Stage::kept;
  const bool may = may_seek(gang) && !stands_back(gang);
  for (const DeviceNumber device : gang.devices) {
    const bool seeks = may && !has_place(devices_, gang, device);
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

void HostGangs::join_queue(Gang& gang, Decision& decision) {
  give_back(gang, decision);
  gang.stage = Stage::queued;
  queue_.request(now_, gang.id);
}

void HostGangs::call(Gang& gang, Decision& decision) {
  gang.stage = Stage::called;
  gang.granted = 0;
  tell(gang, decision, [&](Scheduler& there) { return there.request(now_, gang.id, gang.turn); });
}

// Frees its devices and withdraws its requests for them. Its wait may go on.
void HostGangs::give_back(Gang& gang, Decision& decision) {
  const auto finish = [&](Scheduler& there) { return there.finish(now_, gang.id, gang.turn); };
  const Stage before = std::exchange(gang.stage, Stage::idle);
  const std::vector<DeviceNumber> seeks = std::exchange(gang.seeks, {});
  gang.asked = gang.told = false;
  gang.granted = 0;
  queue_.finish(now_, gang.id);
  if (before == Stage::called || before == Stage::runs) tell(gang, decision, finish);
  for (const DeviceNumber device : seeks) tell(device, decision, finish);
}

// --- what must stay true -------------------------------------------------------------------------

std::string HostGangs::is_valid() const {
  if (const std::string broken = queue_.is_valid(); !broken.empty()) return broken;
  if (numbers_.size() != gangs_.size()) return "a gang has no id";
  for (const auto& [number, gang] : gangs_)
    if (const std::string broken = agrees(gang); !broken.empty()) return gang.id + ": " + broken;
  return "";
}

std::string HostGangs::agrees(const Gang& gang) const {
  const bool is_called = gang.stage == Stage::called || gang.runs();
  if (queue_.is_called(gang.id) != is_called) return "is called, and is not, at once";
  const auto has = std::ranges::count_if(gang.devices, [&](DeviceNumber device) {
    return session_of(devices_, gang, device).turn.has_value();
  });
  const auto expected = gang.runs() ? gang.devices.size() : gang.granted;
  if (static_cast<std::size_t>(has) != expected) return "has turns on other devices than it should";
  if (stands_back(gang) && std::ranges::any_of(gang.devices, [&](DeviceNumber device) {
        return has_place(devices_, gang, device);
      }))
    return "has a place that it leaves to an earlier gang";
  return gang.runs() || !gang.told ? "" : "was asked to yield a turn that it has not got";
}

}  // namespace gpushare
