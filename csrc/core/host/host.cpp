#include "core/host/host.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/host/host_snapshot.h"
#include "core/model/validation.h"

namespace gpushare {

Host::Host(const std::vector<DeviceSpec>& devices, std::string_view policy, const Rules& rules)
    : devices_(devices, policy, rules), gangs_(rules, devices_) {}

std::vector<DeviceNumber> Host::numbers_of(const std::string& id,
                                           const std::vector<std::string>& devices) const {
  std::vector<DeviceNumber> numbers;
  for (const std::string& device : devices) numbers.push_back(devices_.number_of(device));
  require(!numbers.empty() && std::set(numbers.begin(), numbers.end()).size() == numbers.size(),
          "'" + id + "' must name each of its devices once");
  const auto known = places_.find(id);
  if (known == places_.end()) return numbers;
  const Gang* gang = gang_of(id);
  require(numbers == (gang ? gang->devices : std::vector{known->second}),
          "'" + id + "' is open on other devices");
  return numbers;
}

DeviceNumber Host::device_of(const std::string& id) const {
  const auto place = places_.find(id);
  if (place == places_.end()) throw UnknownSession("no session '" + id + "' is open");
  return place->second;
}

// --- events --------------------------------------------------------------------------------------

template <class Event>
Decision Host::happens(Seconds now, DeviceNumber device, const Event& event) {
  Decision made = devices_.tell(device, event);
  if (gangs_.empty()) return made;
  gangs_.advance(now);
  Decision decision;
  gangs_.take(std::move(made), decision);
  return gangs_.settle(std::move(decision));
}

template <class Event>
Decision Host::happens(Seconds now, const std::string& id, const Event& event) {
  if (gang_of(id)) return gangs_.happens(now, id, event);
  return happens(now, device_of(id), event);
}

template <class Event>
Decision Host::happens_where(Seconds now, const Event& event,
                             const std::function<bool(DeviceNumber)>& is_meant) {
  gangs_.advance(now);
  Decision decision;
  for (DeviceNumber device = 0; device < devices_.size(); ++device)
    if (is_meant(device)) gangs_.take(devices_.tell(device, event), decision);
  return gangs_.settle(std::move(decision));
}

Decision Host::open(Seconds now, const std::string& id, const std::vector<std::string>& devices,
                    const SessionSpec& spec) {
  const std::vector<DeviceNumber> numbers = numbers_of(id, devices);
  Decision decision = numbers.size() > 1 ? gangs_.open(now, id, numbers, spec)
                                         : happens(now, numbers.front(), [&](Scheduler& there) {
                                             return there.open(now, id, spec);
                                           });
  places_[id] = numbers.front();
  return decision;
}

Decision Host::close(Seconds now, const std::string& id) {
  const auto close = [&](Scheduler& there) { return there.close(now, id); };
  Decision decision = gang_of(id) ? gangs_.close(now, id) : happens(now, device_of(id), close);
  places_.erase(id);
  return decision;
}

Decision Host::request(Seconds now, const std::string& id, TurnNumber turn) {
  if (gang_of(id)) return gangs_.request(now, id, turn);
  return happens(now, id, [&](Scheduler& there) { return there.request(now, id, turn); });
}

Decision Host::finish(Seconds now, const std::string& id, TurnNumber turn) {
  if (gang_of(id)) return gangs_.finish(now, id, turn);
  return happens(now, id, [&](Scheduler& there) { return there.finish(now, id, turn); });
}

Decision Host::report(Seconds now, const std::string& id, std::int64_t iterations,
                      const Demand& demand, std::optional<std::int64_t> remaining_iterations) {
  return happens(now, id, [&](Scheduler& there) {
    return there.report(now, id, iterations, demand, remaining_iterations);
  });
}

Decision Host::change(Seconds now, const std::string& id, std::optional<double> weight,
                      std::optional<int> priority, std::optional<bool> paused) {
  if (gang_of(id)) return gangs_.change(now, id, weight, priority, paused);
  return happens(now, id,
                 [&](Scheduler& there) { return there.change(now, id, weight, priority, paused); });
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

Decision Host::preempt(Seconds now, const std::string& id) {
  const Gang* gang = gang_of(id);
  require(!gang || gang->runs(), id + " has no turn to end");
  return happens(now, id, [&](Scheduler& there) { return there.preempt(now, id); });
}

Decision Host::evict(Seconds now, const std::string& id) {
  return happens(now, id, [&](Scheduler& there) { return there.evict(now, id); });
}

// --- events of devices ---------------------------------------------------------------------------

Decision Host::throttle(Seconds now, const std::string& device,
                        const std::map<std::string, Why>& reasons) {
  return happens(now, devices_.number_of(device),
                 [&](Scheduler& there) { return there.throttle(now, reasons); });
}

Decision Host::set_shares(Seconds now, const std::string& device,
                          const std::map<std::string, double>& groups,
                          const std::map<std::string, double>& users) {
  const DeviceNumber number = devices_.number_of(device);
  Decision decision =
      happens(now, number, [&](Scheduler& there) { return there.set_shares(now, groups, users); });
  devices_.weigh(number, groups, users);
  return gangs_.weigh(now, std::move(decision));
}

Decision Host::set_policy(Seconds now, const std::string& device, std::string_view name) {
  return happens(now, devices_.number_of(device),
                 [&](Scheduler& there) { return there.set_policy(now, name); });
}

Decision Host::set_running_lanes(Seconds now, const std::string& device, int lanes) {
  return happens(now, devices_.number_of(device),
                 [&](Scheduler& there) { return there.set_running_lanes(now, lanes); });
}

Decision Host::set_unmanaged(Seconds now, const std::string& device, Bytes bytes) {
  return happens(now, devices_.number_of(device),
                 [&](Scheduler& there) { return there.set_unmanaged(now, bytes); });
}

Decision Host::set_recovering(Seconds now, bool recovering) {
  return happens_where(
      now, [&](Scheduler& there) { return there.set_recovering(now, recovering); },
      [](DeviceNumber) { return true; });
}

// --- time ----------------------------------------------------------------------------------------

Decision Host::assign(Seconds now) {
  return happens_where(
      now, [&](Scheduler& there) { return there.assign(now); },
      [&](DeviceNumber device) { return devices_.is_due(device, now); });
}

std::optional<Seconds> Host::next_event(Seconds now) const {
  const Seconds next = std::min(gangs_.next_event(), devices_.next_event(now));
  return next == kNever ? std::nullopt : std::optional(next);
}

bool Host::may_keep(const std::string& id, Bytes persistent) const {
  const Gang* gang = gang_of(id);
  if (!gang) return devices_[device_of(id)].scheduler.may_keep(id, persistent);
  return std::ranges::all_of(gang->devices, [&](DeviceNumber device) {
    return devices_[device].scheduler.may_keep(id, persistent);
  });
}

DeviceSnapshot Host::snapshot(const std::string& device, Seconds now) const {
  return HostSnapshot(devices_, gangs_, now).take(devices_.number_of(device));
}

// --- what must stay true -------------------------------------------------------------------------

std::string Host::is_valid() const {
  for (const std::string& broken : {devices_.is_valid(), gangs_.is_valid(), places_agree()})
    if (!broken.empty()) return broken;
  return "";
}

std::string Host::places_agree() const {
  std::size_t open = 0, there = 0, gangs = 0;
  for (const auto& [id, device] : places_) {
    const Gang* gang = gang_of(id);
    for (const DeviceNumber each : gang ? gang->devices : std::vector{device})
      if (!devices_.state(each).sessions.contains(id)) return "a session is not open on its device";
    open += gang ? gang->devices.size() : 1;
    gangs += gang != nullptr;
  }
  if (gangs != gangs_.size()) return "a gang is not open";
  for (const Device& device : devices_) there += device.scheduler.state().sessions.size();
  return open == there ? "" : "a session is open on a device that is not its own";
}

}  // namespace gpushare
