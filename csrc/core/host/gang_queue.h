// Decides which gangs may have their devices, all or nothing. A gang is called when no other gang
// has one of its devices, or was called to it; the schedulers of these devices decide over the
// turns of single sessions (host.h).
//
// Gangs come in the order that `fair` has for the sessions of one device, under any policy: by
// priority, then by what their groups, their users and they themselves have used for their weights.
// Seconds on each of its devices count. So a gang of many devices has turns as seldom as it should,
// and a wide one is not passed over because narrow ones fit into more gaps: the devices of a gang
// that comes first and could have them are kept from gangs that come later.
//
// A gang that comes first may have to wait for turns of several others that do not end together.
// Until its aging it keeps no device idle meanwhile; after its aging it does, or it could starve.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/model/types.h"
#include "core/policies/policy.h"
#include "core/shares/fair_shares.h"

namespace gpushare {

class GangQueue {
 public:
  struct Gang {
    std::string group, user;
    double weight = 1.0;
    int priority = 0;
    std::vector<std::size_t> devices;
  };
  // Ids. Each is called once for each request, and asked to yield once for each turn.
  struct Calls {
    std::vector<std::string> called, yields;
  };

  explicit GangQueue(const Rules& rules);

  // A gang of this id is open from now on. Its user keeps the usage.
  void open(Seconds now, const std::string& id, const Gang& gang);
  void close(Seconds now, const std::string& id);
  void change(Seconds now, const std::string& id, double weight, int priority);
  void set_weights(Seconds now, FairShares::Weights groups, FairShares::Weights users);
  // The gang begins to wait to be called.
  void request(Seconds now, const std::string& id);
  // Its turn has begun: a gang that was called has all of its devices; one that opens with its turn
  // has had them since before, called or not.
  void begin(Seconds now, const std::string& id);
  // The gang no longer waits, and has none of its devices. Harmless if it never did.
  void finish(Seconds now, const std::string& id);

  Calls assign(Seconds now);
  // The next time at which time alone changes something, computed by the last assign(); kNever:
  // never.
  Seconds next_event() const { return next_; }

  bool contains(const std::string& id) const { return numbers_.contains(id); }
  bool is_called(const std::string& id) const;  // or has its devices
  std::string is_valid() const;                 // after assign(): empty, or what is wrong

 private:
  using Number = std::uint64_t;
  enum class State { idle, waits, called, runs };
  struct Entry {
    std::string id;
    Gang gang;
    FairShares::Path path;
    State state = State::idle;
    bool adopted = false;     // runs, and was not called
    Seconds since = 0;        // when it began to wait, or its turn began
    std::uint64_t order = 0;  // of requests
    bool asked = false;       // to yield
    int width() const { return static_cast<int>(gang.devices.size()); }
    bool has_devices() const { return state == State::called || state == State::runs; }
  };

  Entry& entry(const std::string& id) { return entries_.at(numbers_.at(id)); }
  void advance(Seconds now);
  void stop(Entry& entry);
  Candidate candidate(const Entry& entry) const;
  std::vector<Entry*> in_order();
  std::vector<Entry*> in_the_way_of(const Entry& waiting);
  Seconds ends_in(const Entry& holder, const Entry& waiting) const;
  std::string calls_are_right() const;
  void reserve_for(const Entry& waiting, std::set<std::size_t>& reserved, Calls& calls);

  const Policy& policy_;
  Seconds quantum_, aging_;
  FairShares shares_;
  std::map<Number, Entry> entries_;  // in the order in which they opened
  std::unordered_map<std::string, Number> numbers_;
  Number last_number_ = 0;
  std::uint64_t last_order_ = 0;
  Seconds now_ = -kNever, next_ = kNever;
};

}  // namespace gpushare
