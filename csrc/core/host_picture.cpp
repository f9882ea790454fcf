// A device as people see it: what its scheduler says, and what it cannot know of gangs.
#include <algorithm>
#include <tuple>

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
    state.reason = "runs, and has " + std::to_string(gang.devices.size()) +
                   " whole devices: " + names_of(gang);
}

void Host::complete_waiting(SessionState& state, const Gang& gang, int last, Seconds now) const {
  state.waiting = gang.waiting(now);
  state.expected_wait.reset();
  if (gang.paused) return;
  if (!state.place) state.place = has_device(state) ? 1 : last + 1;
  state.reason = why_it_waits(gang, now);
  state.state = State::waiting;
}

std::string Host::names_of(const Gang& gang) const {
  std::string names;
  for (const DeviceNumber device : gang.devices)
    names += (names.empty() ? "" : ", ") + devices_[device].name;
  return names;
}

std::string Host::why_it_waits(const Gang& gang, Seconds now) const {
  std::string why;
  for (const DeviceNumber device : gang.devices)
    if (const std::string one = obstacle(gang, device, now); !one.empty())
      why += (why.empty() ? "" : "; ") + one;
  return "waits until all of its " + std::to_string(gang.devices.size()) +
         " devices are free: " + (why.empty() ? "other gangs come first" : why);
}

// What keeps it from this device; empty: nothing does.
std::string Host::obstacle(const Gang& gang, DeviceNumber device, Seconds now) const {
  const auto& [name, there] = std::tie(devices_[device].name, devices_[device].scheduler);
  if (there.recovering())
    return name + " is kept for those who had it before the broker was started anew";
  if (const std::string& why = there.held_back(gang.id); !why.empty())
    return "on " + name + " it is " + why;
  if (!there.has_place(gang.id)) return name + " has too little room";
  for (const Holder& holder : there.holders(now))
    if (holder.id != gang.id)
      return name + " is held by " + holder.title + (holder.overdue ? ", which is overdue" : "");
  return "";
}

}  // namespace gpushare
