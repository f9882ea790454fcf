#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "claims/claims.h"

namespace gpushare {

// The claims of two processes on one co-lane, in a page of memory that both map. It is changed
// without a lock and without the broker; a process that is killed leaves no half-done change, and
// the other one notices it while it waits. Each end has one process. Thread-safe.
class Ledger {
 public:
  Ledger() = default;
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  ~Ledger() { close(); }

  // A descriptor of a new ledger, which the caller closes; -1 where the system has none.
  static int make();

  // Takes one end of the ledger, for a lane of `budget` chunks. Returns an empty string, or the
  // sentence that says why that is impossible. An entry of a dead process at this end is gone,
  // and an end that was held until now by this `descriptor` is free (held_end.h).
  [[nodiscard]] std::string open(int descriptor, int end, Chunks budget);
  // Gives the end up, with all that it has.
  void close();
  // Called between iterations, with nothing claimed: another process may take the end, until
  // `take_up`, which returns false if another one still has it.
  void pass_on();
  [[nodiscard]] bool take_up();
  // Called in a forked child, before the parent may end: the end is the parent's.
  void forget();

  bool is_open() const { return page_ != nullptr; }
  int end() const { return end_; }
  Chunks budget() const { return budget_; }
  Claims look() const { return {page_->word.load(), budget_}; }

  // Applies `make(claims)` to the claims as they are, and wakes the other process if it waits for
  // that. `make` may be called several times. Returns the claims after it.
  template <class Make>
  Claims change(Make make) {
    std::uint64_t before = page_->word.load();
    for (;;) {
      Claims claims(before, budget_);
      make(claims);
      const std::uint64_t after = claims.word();
      if (after == before || page_->word.compare_exchange_weak(before, after)) {
        if (after != before) wake(claims);
        return claims;
      }
    }
  }

  // False once another program has written over the page, or one of the two has said that it did.
  bool is_whole() const;
  // The page is inconsistent. Both processes see it.
  void spoil();
  // As above, by a process that has no end: one of the two may never give its chunks back, so no
  // process should wait for them.
  static void spoil(int descriptor);
  // As above, for a process that has no end. A file that cannot be mapped is no ledger.
  static bool is_whole(int descriptor);

  enum class Wait { kMayGoOn, kLate, kSignal };
  // Sleeps until a claim of `want` chunks may lead on, or for `seconds`, or until a signal has
  // come.
  Wait await(Chunks want, double seconds);

  // Ends the iteration of the other end if its process has ended without doing so; returns whether
  // it has.
  bool reap() { return reap(other()); }
  // As above for either end, by a process that has none.
  static bool reap(int descriptor, int end);
  // Ends the holding of an end by this descriptor.
  static void let_go(int descriptor, int end);

 private:
  // Another process writes here, so nothing that is read is believed beyond its limits.
  struct Page {
    std::atomic<std::uint64_t> word;
    std::atomic<std::uint32_t> tick;                  // what both sleep on
    std::atomic<std::uint32_t> waits[Claims::kEnds];  // for this number of chunks; 0: it does not
    std::atomic<std::uint64_t> mark;                  // always the same
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  int other() const { return Claims::other(end_); }
  std::string map(int descriptor);
  bool lock();
  bool reap(int end);
  void wake(const Claims& claims);
  bool has_process(int end) const;

  friend class HeldEnd;

  Page* page_ = nullptr;
  int descriptor_ = -1;
  int end_ = 0;
  Chunks budget_ = 0;
  bool has_end_ = false;
};

}  // namespace gpushare
