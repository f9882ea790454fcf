// Decides for all devices of a host: on which of them a session goes, and which session has its
// turn there.
//
// Each device has a Scheduler of its own, and a session on one device is decided there and nowhere
// else: its events are passed to it, and the decisions are as if the device were alone.
//
// A session on several whole devices at once is a gang (host_gangs.h). To each of its devices it is
// a session like any other.
//
// Invariants, which is_valid() checks:
//   - what must stay true of each scheduler, and of the gangs;
//   - a session is open on its devices and on no others.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/host/host_devices.h"
#include "core/host/host_gangs.h"
#include "core/host/scheduler.h"
#include "core/model/types.h"

namespace gpushare {

class Host {
 public:
  // Raises std::invalid_argument: no devices, or two of one name.
  Host(const std::vector<DeviceSpec>& devices, std::string_view policy, const Rules& rules);
  Host(const Host&) = delete;  // its gangs refer to its devices
  Host& operator=(const Host&) = delete;

  // Events of one session, as in scheduler.h. One that opens again is on the same devices as
  // before, and one on several runs alone on them, whatever its specification says. A demand is
  // that on each of its devices.
  Decision open(Seconds now, const std::string& id, const std::vector<std::string>& devices,
                const SessionSpec& spec);
  Decision close(Seconds now, const std::string& id);
  Decision request(Seconds now, const std::string& id, TurnNumber turn);
  Decision finish(Seconds now, const std::string& id, TurnNumber turn);
  Decision report(Seconds now, const std::string& id, std::int64_t iterations, const Demand& demand,
                  std::optional<std::int64_t> remaining_iterations);
  Decision change(Seconds now, const std::string& id, std::optional<double> weight,
                  std::optional<int> priority, std::optional<bool> paused);
  Decision set_busy(Seconds now, const std::string& id, bool busy);
  Decision paged_out(Seconds now, const std::string& id, Bytes bytes);
  Decision page_out_failed(Seconds now, const std::string& id, const std::string& why = "");
  Decision preempt(Seconds now, const std::string& id);
  Decision evict(Seconds now, const std::string& id);

  // Events of one device.
  Decision throttle(Seconds now, const std::string& device,
                    const std::map<std::string, Why>& reasons);
  // Among gangs a group has the mean of its weights on all devices, and so do users.
  Decision set_shares(Seconds now, const std::string& device,
                      const std::map<std::string, double>& groups,
                      const std::map<std::string, double>& users);
  Decision set_policy(Seconds now, const std::string& device, std::string_view name);
  Decision set_running_lanes(Seconds now, const std::string& device, int lanes);
  Decision set_unmanaged(Seconds now, const std::string& device, Bytes bytes);
  Decision set_recovering(Seconds now, bool recovering);  // all devices

  // Passes over those devices for which time alone has changed something.
  Decision assign(Seconds now);
  std::optional<Seconds> next_event(Seconds now) const;

  bool may_keep(const std::string& id, Bytes persistent) const;
  bool contains(const std::string& id) const { return places_.contains(id); }
  bool recovering() const { return devices_[0].scheduler.recovering(); }
  std::string is_valid() const;  // empty, or the first broken invariant in words

  // The state of each device.
  const HostDevices& devices() const { return devices_; }
  // The scheduler's view, with the gangs that only the host knows: host_snapshot.h.
  DeviceSnapshot snapshot(const std::string& device, Seconds now) const;

 private:
  using Gang = HostGangs::Gang;

  DeviceNumber device_of(const std::string& id) const;  // of several, the first
  const Gang* gang_of(const std::string& id) const { return gangs_.find(id); }
  std::vector<DeviceNumber> numbers_of(const std::string& id,
                                       const std::vector<std::string>& devices) const;

  // An event on one device, on all of a session's, or on some.
  template <class Event>
  Decision happens(Seconds now, DeviceNumber device, const Event& event);
  template <class Event>
  Decision happens(Seconds now, const std::string& id, const Event& event);
  template <class Event>
  Decision happens_where(Seconds now, const Event& event,
                         const std::function<bool(DeviceNumber)>& is_meant);

  std::string places_agree() const;

  HostDevices devices_;
  HostGangs gangs_;
  std::unordered_map<std::string, DeviceNumber> places_;  // of a gang, the first of its devices
};

}  // namespace gpushare
