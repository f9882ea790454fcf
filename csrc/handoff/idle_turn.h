#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace gpushare {

// The turn of this process, which a thread of ours gives back while the process is between two
// iterations: whatever holds Python's lock then, as code in C that never returns. One atomic word
// decides whether an iteration begins or the turn goes; so a turn never goes under an iteration.
//
// `lend`, `want` and `keep` are for one thread at a time, all else for any.
class IdleTurn {
 public:
  // Asked and called by that thread, without any lock of Python: whether nothing of the process is
  // alive in its lane, and what makes it use the device no more.
  struct Lane {
    std::function<bool()> is_empty;
    std::function<void()> evacuate;
  };

  // Where it does not watch, there is no thread, and the turn goes when somebody calls `look`.
  explicit IdleTurn(Lane lane, bool watches = true);
  IdleTurn(const IdleTurn&) = delete;
  IdleTurn& operator=(const IdleTurn&) = delete;
  ~IdleTurn() { close(); }

  // The connection to the broker from now on, of which it keeps a descriptor of its own; -1: none.
  // From the return on nothing is said on the one before.
  void watch(int connection);
  // The turn `number` may go between iterations, once the broker asks for it; `finish` is the frame
  // that says it is over. The first call starts the thread; false where the system has none more.
  bool lend(uint64_t number, std::string finish);
  // The broker has asked for it, in what has been received.
  void want();
  // It may not go any more, or is over. False if it has gone before: then nobody may hand it on.
  bool keep();
  // What the thread does again and again: the turn goes if it may, and is wanted.
  void look();

  // An iteration begins: the turn cannot go before `leave`. Whether it is there: not if it has
  // gone.
  [[nodiscard]] bool enter() { return (word_->fetch_or(kInside) & kGone) == 0; }
  void leave() { word_->fetch_and(~kInside); }
  // When the turn has gone, in seconds of the monotonic clock, and all is said by then; 0 if it has
  // not, or if `lend` or `keep` have come since.
  [[nodiscard]] double gone_at() const;

  void close();
  // In a forked child, which has no such thread: its descriptor goes, and nothing else happens.
  void forget();

 private:
  static constexpr uint32_t kKept = 1, kGone = 2, kInside = 4, kClosed = 8;
  struct Shared;

  static void run(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;  // with the thread
  std::atomic<uint32_t>* word_;     // of these
  bool needs_thread_;
};

}  // namespace gpushare
