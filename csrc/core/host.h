// Decides for all devices of a host: on which of them a session goes, and whose turn it is there.
//
// Each device has a Scheduler of its own, and a session on one device is decided there and nowhere
// else: its events are handed on, and what comes out is as if the device were alone.
//
// A gang is a session on several whole devices at once, all of them or none. To the scheduler of
// each of its devices it is a session like any other, which runs alone. GangQueue says which gang
// is next. Who is called asks each of its devices for a turn; what they grant is kept until all
// have granted, and then the gang has its turn, which is told once for all of its devices. Two
// gangs that are called have no device in common, and who is no gang holds one device and waits for
// none meanwhile: so no two ever wait for each other.
//
// Who was called has its turn, for an iteration at least, even if others come first by now. Only
// who could not get all of its devices is called back, so that no device is kept for nobody: one
// that is paused or held back, that has no room on one of them, or where somebody hangs who has
// one. Where it has no room it waits for memory like others who do: so the idle are paged out for
// it, and it is not overtaken for ever.
//
// What must stay true, and is_valid() looks at:
//   - what must stay true of each scheduler, and of the queue of gangs;
//   - a session is open on its devices and on no others;
//   - a gang whose turn it is has a turn on each of its devices, and one that is not called on
//   none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/gang_queue.h"
#include "core/scheduler.h"
#include "core/types.h"

namespace gpushare {

using DeviceNumber = std::size_t;

struct DeviceSpec {
  std::string name;
  Bytes capacity = 0;
};

class Host {
 public:
  // Raises std::invalid_argument: no devices, or two of one name.
  Host(const std::vector<DeviceSpec>& devices, std::string_view policy, const Rules& rules);

  // The `count` best of these devices for a newcomer, in the order in which they are named: where
  // the demand finds room now, and of those where each session has most of it, the newcomer
  // counted; the first of equals. At its opening a session's demand is seldom known, so those who
  // come together spread over the devices. Raises std::invalid_argument where there are not so
  // many.
  std::vector<std::string> place(const std::vector<std::string>& among, const Demand& demand,
                                 std::size_t count) const;

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
  Decision recall(Seconds now, const std::string& id);
  Decision dismiss(Seconds now, const std::string& id);

  // Events of one device.
  Decision hold_back(Seconds now, const std::string& device,
                     const std::map<std::string, std::string>& sentences);
  // Among gangs a group weighs what it weighs on the mean of all devices, and so do users.
  Decision set_shares(Seconds now, const std::string& device,
                      const std::map<std::string, double>& groups,
                      const std::map<std::string, double>& users);
  Decision set_policy(Seconds now, const std::string& device, std::string_view name);
  Decision set_running_lanes(Seconds now, const std::string& device, int lanes);
  Decision set_foreign(Seconds now, const std::string& device, Bytes bytes);
  Decision set_recovering(Seconds now, bool recovering);  // all devices

  // Passes over those devices for which time alone has changed something.
  Decision assign(Seconds now);
  std::optional<Seconds> next_event(Seconds now) const;

  bool may_keep(const std::string& id, Bytes persistent) const;
  // Whether it has its turn: a gang's is on all of its devices.
  bool has_turn(const std::string& id) const;
  bool contains(const std::string& id) const { return places_.contains(id); }
  bool recovering() const { return devices_.front().scheduler.recovering(); }
  std::string is_valid() const;  // empty, or the first broken invariant in words

  // What is known of one device. They are numbered as they were named.
  DeviceNumber number_of(const std::string& device) const;
  const Scheduler& scheduler(DeviceNumber device) const { return devices_[device].scheduler; }
  const Scheduler& scheduler(const std::string& device) const {
    return scheduler(number_of(device));
  }
  // host_picture.cpp: as its scheduler sees it, with what only the host knows of gangs.
  Picture picture(const std::string& device, Seconds now) const;

 private:
  struct Device {
    std::string name;
    Bytes capacity = 0;
    Scheduler scheduler;
    FairShares::Weights groups = {}, users = {};
    // When time alone changes something there, unless an event has touched it since.
    mutable Seconds wake = kNever;
    mutable bool touched = false;
  };
  // Wants no turn; wants one and cannot have all devices, for longer than turns take; waits to be
  // called; asks its devices for a turn, and keeps those that it is granted; has its turn.
  enum class Stage { idle, kept, queued, called, runs };
  struct Gang {
    std::string id;
    std::vector<DeviceNumber> devices;         // as they were named
    std::vector<DeviceNumber> smallest_first;  // the same, so that a refusal has changed nothing
    double weight = 1.0;
    int priority = 0;
    bool paused = false;
    Stage stage = Stage::idle;
    TurnNumber turn = 0;
    std::size_t granted = 0;           // devices, while it is called
    std::vector<DeviceNumber> seeks;   // where it waits for memory, while it is kept
    bool asked = false, told = false;  // by a device to yield, and by us
    Seconds waited = 0;                // in waits that are over
    std::optional<Seconds> since;      // when the wait began that goes on

    bool wants() const { return stage != Stage::idle; }
    bool runs() const { return stage == Stage::runs; }
    Seconds waiting(Seconds now) const { return since ? now - *since : 0; }
  };
  using GangNumber = std::uint64_t;
  struct Place {
    DeviceNumber device = 0;  // of several, the first
    GangNumber gang = 0;      // 0: it is none
  };

  const Place& place_of(const std::string& id) const;
  const Gang* gang_of(const std::string& id) const;  // nullptr: it is none
  Gang* gang_of(const std::string& id);
  std::vector<DeviceNumber> numbers_of(const std::string& id,
                                       const std::vector<std::string>& devices) const;

  Seconds advance(Seconds now);

  // An event on one device, or on all of a session's.
  template <class Event>
  Decision happens(Seconds now, DeviceNumber device, const Event& event);
  template <class Event>
  Decision happens(Seconds now, const std::string& id, const Event& event);
  template <class Event>
  Decision happens_everywhere(Seconds now, const Event& event);
  template <class Event>
  void tell(DeviceNumber device, Decision& decision, const Event& event);
  template <class Event>
  void tell(const Gang& gang, Decision& decision, const Event& event);

  // Gangs.
  Decision open_gang(Seconds now, const std::string& id, const std::vector<DeviceNumber>& devices,
                     SessionSpec spec);
  Gang& enroll(const std::string& id, const std::vector<DeviceNumber>& devices,
               const SessionSpec& spec);
  void take(Decision&& made, Decision& decision);
  void is_granted(Gang& gang, Decision& decision);
  static void pass_on(Gang& gang, Decision& decision);
  Decision settle(Decision decision);
  bool follow(Gang& gang, Decision& decision);
  bool follow_queue(Decision& decision);
  bool is_kept(const Gang& gang) const;
  bool is_held(const Gang& gang) const;
  bool somebody_hangs(const Gang& gang) const;
  bool seek_room(Gang& gang, Decision& decision);
  void join_queue(Gang& gang, Decision& decision);
  void call(Gang& gang, Decision& decision);
  void give_back(Gang& gang, Decision& decision);
  void begin_wait(Gang& gang, TurnNumber turn);
  void end_wait(Gang& gang);
  void weigh_gangs();

  // host_picture.cpp
  void complete(SessionState& state, const Gang& gang, DeviceNumber device, int last,
                Seconds now) const;
  void complete_waiting(SessionState& state, const Gang& gang, int last, Seconds now) const;
  std::string names_of(const Gang& gang) const;
  Why why_it_waits(const Gang& gang, Seconds now) const;
  Why obstacle(const Gang& gang, DeviceNumber device, Seconds now) const;

  std::string places_agree() const;
  std::string gang_agrees(const Gang& gang) const;

  std::vector<Device> devices_;
  std::unordered_map<std::string, DeviceNumber> numbers_;
  std::unordered_map<std::string, Place> places_;
  std::map<GangNumber, Gang> gangs_;  // in the order in which they opened
  GangNumber last_gang_ = 0;
  GangQueue queue_;
  Seconds now_ = -kNever;  // of the last event that gangs have followed
};

}  // namespace gpushare
