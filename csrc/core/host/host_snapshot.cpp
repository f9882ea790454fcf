#include "core/host/host_snapshot.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace gpushare {
namespace {

bool has_device(const SessionState& state) {
  return state.state == State::running || state.state == State::overdue;
}

void forget_wait(SessionState& state) {
  state.expected_wait.reset();
  state.is_bound = false;
}

int last_position(const std::vector<SessionState>& sessions) {
  int last = 0;
  for (const SessionState& state : sessions) last = std::max(last, state.position.value_or(0));
  return last;
}

Why throttled_on(const std::string& device, const Why& by) {
  Why why{{.code = Code::throttled_on_device, .device = device}};
  why.insert(why.end(), by.begin(), by.end());
  return why;
}

}  // namespace

DeviceSnapshot HostSnapshot::take(DeviceNumber device) const {
  DeviceSnapshot seen = devices_[device].scheduler.snapshot(now_);
  if (gangs_.empty()) return seen;
  int last = last_position(seen.sessions);
  for (SessionState& state : seen.sessions)
    if (const Gang* gang = gangs_.find(state.id)) {
      complete(state, *gang, device, last);
      last = std::max(last, state.position.value_or(0));  // two gangs have two positions
    }
  forget_waits_behind_gangs(seen.sessions);
  return seen;
}

// No wait of a gang is known, so none behind it is.
void HostSnapshot::forget_waits_behind_gangs(std::vector<SessionState>& sessions) const {
  int first = std::numeric_limits<int>::max();
  for (const SessionState& state : sessions)
    if (gangs_.find(state.id)) first = std::min(first, state.position.value_or(first));
  for (SessionState& state : sessions)
    if (state.position >= first) forget_wait(state);
}

void HostSnapshot::complete(SessionState& state, const Gang& gang, DeviceNumber device,
                            int last) const {
  state.waited_seconds = gang.waited + gang.waiting(now_);
  state.turn = gang.turn;
  if (gang.wants() && !gang.runs()) return complete_waiting(state, gang, last);
  const Session& there = devices_.state(device).sessions.of(gang.id);
  const bool goes_on = state.state == State::running && !there.turn->asked;
  if (goes_on && !is_throttled(there))
    state.why = {{.code = Code::runs_with_whole_devices,
                  .count = static_cast<int>(gang.devices.size()),
                  .device = names_of(gang)}};
}

void HostSnapshot::complete_waiting(SessionState& state, const Gang& gang, int last) const {
  state.waiting = gang.waiting(now_);
  forget_wait(state);
  if (gang.paused) return;
  if (!state.position) state.position = has_device(state) ? 1 : last + 1;
  state.why = why_it_waits(gang);
  state.state = State::waiting;
}

std::string HostSnapshot::names_of(const Gang& gang) const {
  std::string names;
  for (const DeviceNumber device : gang.devices)
    names += (names.empty() ? "" : ", ") + devices_[device].name;
  return names;
}

Why HostSnapshot::why_it_waits(const Gang& gang) const {
  const auto devices = static_cast<int>(gang.devices.size());
  Why why{{.code = Code::waits_for_devices, .count = devices}};
  for (const DeviceNumber device : gang.devices)
    for (Reason& reason : obstacle(gang, device)) why.push_back(std::move(reason));
  if (why.size() == 1) why.push_back({Code::other_gangs_first});
  return why;
}

// Why it cannot have this device; empty: it can.
Why HostSnapshot::obstacle(const Gang& gang, DeviceNumber device) const {
  const std::string& name = devices_[device].name;
  const DeviceState& there = devices_.state(device);
  const Session& here = there.sessions.of(gang.id);
  if (there.recovering) return {{.code = Code::device_recovering, .device = name}};
  if (is_throttled(here)) return throttled_on(name, *here.throttled);
  if (gangs_.stands_back(gang)) return {};
  if (!there.has_place(here)) return {{.code = Code::device_too_full, .device = name}};
  for (const Holder& holder : devices_[device].scheduler.holders(now_)) {
    if (holder.id == gang.id) continue;
    Why why{{.code = Code::device_held_by, .other = holder.id, .device = name}};
    if (holder.overdue) why.push_back({Code::other_is_overdue});
    return why;
  }
  return {};
}

}  // namespace gpushare
