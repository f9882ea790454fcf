#pragma once
#include <sched.h>

#include <atomic>

namespace gpushare {

// A lock for critical sections of some ten instructions, where spinning is cheaper than sleeping.
class SpinLock {
 public:
  void lock() {
    for (int spins = 0; taken_.test_and_set(std::memory_order_acquire); ++spins) {
      if (spins >= 64) sched_yield();  // the holder may be preempted
    }
  }
  void unlock() { taken_.clear(std::memory_order_release); }

 private:
  std::atomic_flag taken_ = ATOMIC_FLAG_INIT;
};

}  // namespace gpushare
