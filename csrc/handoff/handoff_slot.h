#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "handoff/handoff_token.h"

namespace gpushare {

// The handoff slot: a session receives a direct handoff here, and sends its own turn to the next
// session from here. The whole path from the last iteration of one session to the first of the next
// is in C++, because Python code is cold at that moment and the device is idle. One thread uses it
// at a time, but any thread may close it.
class HandoffSlot {
 public:
  // It has a name that lies in no directory and ends with the process. If no such name is
  // available, or `name` is empty, it is closed from the start: then turns come from the broker
  // alone.
  explicit HandoffSlot(const std::string& name);
  HandoffSlot(const HandoffSlot&) = delete;
  HandoffSlot& operator=(const HandoffSlot&) = delete;
  ~HandoffSlot() { close(); }

  bool is_open() const { return socket_ >= 0; }
  void close();
  // Accepts only direct handoffs with this key from now on; with an empty key, none.
  void renew(std::string key) { key_ = std::move(key); }

  // Whether there is something to receive from the broker; takes nothing.
  [[nodiscard]] bool look(int connection, uint64_t turn);
  // Whether that look found a successor after `turn`.
  bool has_successor() const { return successor_.has_value(); }
  // Gives the turn to the successor. It does not matter whether a process receives it, since the
  // broker's own Grant follows in any case.
  void hand_off();
  void send(const Successor& successor) const;

  // Waits for a direct handoff of the turn `number`. Returns none if a message on `connection`,
  // another handoff or a signal comes first. A message of the broker takes precedence over a
  // handoff that has also arrived, because it may say that no handoff is valid any more.
  [[nodiscard]] std::optional<Turn> await(int connection, uint64_t number) const;

 private:
  std::optional<Turn> receive(uint64_t number) const;

  std::string key_;
  std::atomic<int> socket_ = -1;
  std::optional<Successor> successor_;
};

}  // namespace gpushare
