// A device as people see it: the picture of its scheduler, completed for gangs.
#include <algorithm>
#include <tuple>
#include <utility>

#include "core/host.h"

namespace gpushare {
namespace {

bool has_device(const SessionState& state) {
  return state.state == State::running || state.state == State::overdue;
}

}  // namespace

Picture Host::picture(const std::string& device, Seconds now) const {
  const DeviceNumber number = number_of(device);
  Picture picture = devices_[number].scheduler.picture(now);
  if (gangs_.empty()) return picture;
  int last = 0;
  for (const SessionState& state : picture.sessions) last = std::max(last, state.place.value_or(0));
  for (SessionState& state : picture.sessions) {
    if (const Gang* gang = gang_of(state.id)) complete(state, *gang, number, last, now);
    last = std::max(last, state.place.value_or(0));  // two gangs have two positions
  }
  return picture;
}

void Host::complete(SessionState& state, const Gang& gang, DeviceNumber device, int last,
                    Seconds now) const {
  state.waited_seconds = gang.waited + gang.waiting(now);
  state.turn = gang.turn;
  if (gang.wants() && !gang.runs()) return complete_waiting(state, gang, last, now);
  const Scheduler& there = devices_[device].scheduler;
  const bool goes_on = state.state == State::running && !there.was_asked(gang.id);
  if (goes_on && there.held_back(gang.id).empty())
    state.why = {{.code = Code::runs_with_whole_devices,
                  .count = static_cast<int>(gang.devices.size()),
                  .device = names_of(gang)}};
}

void Host::complete_waiting(SessionState& state, const Gang& gang, int last, Seconds now) const {
  state.waiting = gang.waiting(now);
  state.expected_wait.reset();
  if (gang.paused) return;
  if (!state.place) state.place = has_device(state) ? 1 : last + 1;
  state.why = why_it_waits(gang, now);
  state.state = State::waiting;
}

std::string Host::names_of(const Gang& gang) const {
  std::string names;
  for (const DeviceNumber device : gang.devices)
    names += (names.empty() ? "" : ", ") + devices_[device].name;
  return names;
}

Why Host::why_it_waits(const Gang& gang, Seconds now) const {
  const auto devices = static_cast<int>(gang.devices.size());
  Why why{{.code = Code::waits_for_devices, .count = devices}};
  for (const DeviceNumber device : gang.devices)
    for (Reason& reason : obstacle(gang, device, now)) why.push_back(std::move(reason));
  if (why.size() == 1) why.push_back({Code::other_gangs_first});
  return why;
}

// Why it cannot have this device; empty: it can.
Why Host::obstacle(const Gang& gang, DeviceNumber device, Seconds now) const {
  const auto& [name, there] = std::tie(devices_[device].name, devices_[device].scheduler);
  if (there.recovering()) return {{.code = Code::device_recovering, .device = name}};
  if (const std::string& text = there.held_back(gang.id); !text.empty())
    return {{.code = Code::device_held_back, .device = name, .text = text}};
  if (!there.has_place(gang.id)) return {{.code = Code::device_too_full, .device = name}};
  for (const Holder& holder : there.holders(now)) {
    if (holder.id == gang.id) continue;
    Why why{{.code = Code::device_held_by, .other = holder.id, .device = name}};
    if (holder.overdue) why.push_back({Code::other_is_overdue});
    return why;
  }
  return {};
}

}  // namespace gpushare
