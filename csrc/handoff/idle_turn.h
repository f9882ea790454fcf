#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace gpushare {

// The turn of this process. A thread of ours gives it back while the process is between two
// iterations, even if other code holds Python's lock then, such as C code that never returns. One
// atomic word decides whether an iteration begins or the turn goes, so a turn never goes during an
// iteration.
//
// One thread at a time may call `prepare`, `lend`, `want` and `keep`; any thread may call the rest.
class IdleTurn {
 public:
  // The thread calls these without Python's lock. `is_empty` tells whether nothing of the process
  // is alive in its lane; `evacuate` makes the process stop using the device.
  struct Lane {
    std::function<bool()> is_empty;
    std::function<void()> evacuate;
  };

  // If `watches` is false there is no thread, and the turn goes when `look` is called.
  explicit IdleTurn(Lane lane, bool watches = true);
  IdleTurn(const IdleTurn&) = delete;
  IdleTurn& operator=(const IdleTurn&) = delete;
  ~IdleTurn() { close(); }

  // Sets the connection to the broker, and keeps a descriptor of its own of it; -1: none. After
  // the call returns, nothing is sent on the previous connection.
  void watch(int connection);
  // The next turn to lend is `number`, and `finish` is the frame that says it has ended. Called
  // while there is no turn, to keep this work off the start of the turn, when the device is idle.
  void prepare(uint64_t number, std::string finish);
  // Lets that turn go between iterations once the broker asks for it; does nothing without
  // `prepare` before it. The first call starts the thread; returns false where the system has no
  // thread left.
  bool lend();
  // The broker has asked for the turn, in a message that has been received.
  void want();
  // The turn may not go any more, or has ended. Returns false if it has gone before: then it must
  // not be handed off.
  bool keep();
  // The thread calls this again and again: the turn goes if it may and the broker wants it.
  void look();

  // An iteration begins: the turn cannot go before `leave`. Returns whether the turn is there:
  // false if it has gone.
  [[nodiscard]] bool enter() { return (word_->fetch_or(kInside) & kGone) == 0; }
  void leave() { word_->fetch_and(~kInside); }
  // The time, in seconds of the monotonic clock, at which the turn had gone and everything was
  // sent; 0 if it has not gone, or if `lend` or `keep` have been called since.
  [[nodiscard]] double gone_at() const;

  void close();
  // Called in a forked child, which has no such thread: its descriptor is closed, and nothing else
  // happens.
  void forget();

 private:
  static constexpr uint32_t kKept = 1, kGone = 2, kInside = 4, kClosed = 8;
  struct Shared;

  static void run(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;  // shared with the thread
  std::atomic<uint32_t>* word_;     // in `shared_`
  bool needs_thread_;
  bool is_prepared_ = false;
};

}  // namespace gpushare
