// The gangs of a host: sessions on several whole devices at once, all of them or none.
//
// To the scheduler of each of its devices a gang is a session like any other, which runs alone.
// GangQueue says which gang is next. A gang that is called requests a turn on each of its devices;
// their grants are kept until all have granted, and then the gang has its turn, which is granted
// once for all of its devices. Two gangs that are called have no device in common, and a session
// that is no gang holds one device and waits for none meanwhile: so no deadlock is possible.
//
// A gang that was called has its turn, for an iteration at least, even if others come first by now.
// Only a gang that could not get all of its devices is called back, so that no device is kept idle:
// one that is paused or throttled, that has no room on one of them, or where an overdue session has
// one. A gang without room waits for memory like other sessions: idle sessions are paged out for
// it, and aging bounds backfill before it. Among gangs that lack room and share a device, only the
// one that opened first may have places: otherwise two could each hold the place that the other
// lacks, and deadlock.
//
// Invariants, which is_valid() checks: a gang that has its turn has a turn on each of its
// devices, and one that is not called has one on none; and what must stay true of the queue.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/host/gang_queue.h"
#include "core/host/host_devices.h"
#include "core/model/types.h"

namespace gpushare {

class HostGangs {
 public:
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
    bool asked = false, told = false;  // by a device to yield; told so by us
    Seconds waited = 0;                // in finished waits
    std::optional<Seconds> since;      // when the wait began that goes on

    bool wants() const { return stage != Stage::idle; }
    bool runs() const { return stage == Stage::runs; }
    Seconds waiting(Seconds now) const { return since ? now - *since : 0; }
    void begin_wait(Seconds now, TurnNumber number);
    void end_wait(Seconds now);
  };
  using Event = std::function<Decision(Scheduler&)>;

  HostGangs(const Rules& rules, HostDevices& devices) : devices_(devices), queue_(rules) {}

  bool empty() const { return gangs_.empty(); }
  std::size_t size() const { return gangs_.size(); }
  const Gang* find(const std::string& id) const;  // nullptr: it is no gang
  // Whether it is admitted on none of its devices, and leaves them to an earlier gang.
  bool stands_back(const Gang& gang) const;

  // Events of a gang, as in scheduler.h.
  Decision open(Seconds now, const std::string& id, const std::vector<DeviceNumber>& devices,
                SessionSpec spec);
  Decision close(Seconds now, const std::string& id);
  Decision request(Seconds now, const std::string& id, TurnNumber turn);
  Decision finish(Seconds now, const std::string& id, TurnNumber turn);
  Decision change(Seconds now, const std::string& id, std::optional<double> weight,
                  std::optional<int> priority, std::optional<bool> paused);
  Decision happens(Seconds now, const std::string& id, const Event& event);  // on all its devices
  Decision weigh(Seconds now, Decision decision);  // as the devices do now

  // The effects of events of devices: time goes on, each is taken, and then all are settled.
  void advance(Seconds now);
  void take(Decision&& made, Decision& decision);
  Decision settle(Decision decision);
  Seconds next_event() const { return empty() ? kNever : queue_.next_event(); }

  std::string is_valid() const;  // empty, or the first broken invariant in words

 private:
  using Number = std::uint64_t;

  Gang* find(const std::string& id);
  Gang& gang(const std::string& id) { return gangs_.at(numbers_.at(id)); }
  Gang& add(const std::string& id, const std::vector<DeviceNumber>& devices,
            const SessionSpec& spec);
  void tell(DeviceNumber device, Decision& decision, const Event& event);
  void tell(const Gang& gang, Decision& decision, const Event& event);
  void is_granted(Gang& gang, Decision& decision);
  bool follow(Gang& gang, Decision& decision);
  bool follow_queue(Decision& decision);
  bool is_kept(const Gang& gang) const;
  bool lacks_room(const Gang& gang) const;
  bool may_seek(const Gang& gang) const;
  bool is_behind(const Gang& gang) const;
  bool stand_back(Gang& gang, bool stands_back, Decision& decision);
  bool seek_room(Gang& gang, Decision& decision);
  void join_queue(Gang& gang, Decision& decision);
  void call(Gang& gang, Decision& decision);
  void give_back(Gang& gang, Decision& decision);
  std::string agrees(const Gang& gang) const;

  HostDevices& devices_;
  std::map<Number, Gang> gangs_;  // in the order in which they opened
  std::unordered_map<std::string, Number> numbers_;
  Number last_number_ = 0;
  GangQueue queue_;
  Seconds now_ = -kNever;  // of the last event that gangs have followed
};

}  // namespace gpushare
