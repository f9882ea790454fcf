#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "handoff/letter.h"

namespace gpushare {

// Where a session finds a turn that the one before it hands on, and from where it hands its own on.
// What lies between the one's last iteration and the other's first is all here: Python is cold at
// that moment, and the device stands still. For one thread at a time, but any may close it.
class Mailbox {
 public:
  // Under a name that lies in no directory and ends with the process. Where there is none to be
  // had, or `name` is empty, it is closed from the start: then turns come from the broker alone.
  explicit Mailbox(const std::string& name);
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;
  ~Mailbox() { close(); }

  bool is_open() const { return socket_ >= 0; }
  void close();
  // From now on letters with this key count; with the empty one none does.
  void renew(std::string key) { key_ = std::move(key); }

  // Whether there is something to be received from the broker, of which nothing is taken.
  [[nodiscard]] bool look(int connection, uint64_t turn);
  // Whether who is next after `turn` has been among it.
  bool has_successor() const { return successor_.has_value(); }
  // Gives it the turn. It does not matter whether anybody is there, since the broker's own Grant
  // follows in any case.
  void hand_on();
  void send(const Successor& successor) const;

  // Waits for a letter that gives the turn `number`. None where something else has come first, by
  // `connection`, by letter or by a signal. What the broker says goes before a letter that is there
  // as well: it may be that no letter counts any more.
  [[nodiscard]] std::optional<Turn> await(int connection, uint64_t number) const;

 private:
  std::optional<Turn> receive(uint64_t number) const;

  std::string key_;
  std::atomic<int> socket_ = -1;
  std::optional<Successor> successor_;
};

}  // namespace gpushare
