#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "claims/curve.h"
#include "memory/co_lane/ledger.h"
#include "memory/common/block_allocator.h"

namespace gpushare {

// How a process shares a lane with another process that computes at the same time.
struct LaneEnd {
  int ledger;  // a descriptor, which stays the caller's
  int end;     // 0 or 1
  // The directory of files for blocks that leave the lane in the middle of an iteration; empty:
  // they become private memory.
  std::string page_directory;
  // Whether the calling thread may wait for the other process in an allocation: false where it has
  // a lock that other threads need.
  bool (*may_wait)() = [] { return true; };
};

struct CoLaneUsage {
  uint64_t waits = 0;              // allocations that had to wait for the other process, so far
  double wait_seconds = 0;         // so far
  uint64_t interrupted_waits = 0;  // that a signal has ended, so far
  uint64_t spills = 0;             // so far
  bool is_lost = false;  // what the ledger says cannot be true, so it is not used any more
};

// The part of a lane that this process has while another has the rest: its extent, which counts
// from its end in chunks, follows the highest page that is alive. It knows no blocks. All functions
// but `sleep` need the lane's lock.
class CoLane {
 public:
  using Clock = std::chrono::steady_clock;

  enum class Answer {
    kGranted,
    kPrivate,  // the block has to be made elsewhere
    kWait,     // `sleep` without the lock, then claim again
    kSpill,    // what is alive has to leave the lane: then say `spilled`, and claim again
  };

  // `progress` keeps its knowledge of iterations beyond this lane.
  explicit CoLane(Progress& progress) : progress_(progress) {}

  // Takes one end of a lane of `lane_bytes` bytes. Returns an empty string, or the sentence that
  // says why that is impossible.
  [[nodiscard]] std::string open(const LaneEnd& lane_end, size_t lane_bytes, size_t page_bytes);
  // Called in a forked child: the end is the parent's.
  void forget() { ledger_.forget(); }

  int end() const { return ledger_.end(); }
  Page chunk_pages() const { return Page{1} << chunk_shift_; }
  Page pages() const { return ledger_.budget() << chunk_shift_; }  // of the lane, in whole chunks
  const std::string& page_directory() const { return page_directory_; }
  // One past the highest page that was granted in the last iteration.
  Page footprint() const { return footprint_; }
  const CoLaneUsage& usage() const { return usage_; }

  // `top` is always one past the highest page that is alive. If something is still alive, this
  // continues its iteration and its claim: further memory counts as more than it said.
  void begin(Page top);
  // May this be the top?
  Answer claim(Page top);
  // A block of this size has been granted.
  void born(size_t bytes, Page top);
  // A block has ended, or left the lane.
  void died(Page top);
  // `is_usual`: the next iterations will need what this one has needed.
  void leave(Page top, bool is_usual = true);
  // Lets another process have the end between turns. Does nothing while something is still claimed.
  void pass_on();
  void spilled();
  // It could not spill, or a signal has ended its wait: no further claim of this iteration waits.
  void go_on_privately(Answer after);

  // A wait of a thread, from before it gives the lane's lock back until it has it again.
  class Sleeper {
   public:
    explicit Sleeper(CoLane& co_lane) : co_lane_(co_lane) { ++co_lane_.sleepers_; }
    ~Sleeper() { --co_lane_.sleepers_; }

   private:
    CoLane& co_lane_;
  };
  bool has_sleepers() const { return sleepers_ > 0; }
  Clock::time_point waits_since() const { return waits_since_; }
  // Sleeps until a claim of this top may be answered otherwise. Returns false when a signal has
  // come in a wait that had been long before.
  bool sleep(Page top, Clock::time_point since);

 private:
  Chunks chunks(Page top) const { return (top + chunk_pages() - 1) >> chunk_shift_; }
  // The chunks of another lane may be larger, so progress is in the smallest ones.
  Chunks least_chunks(Chunks chunks) const { return chunks << least_shift_; }
  Chunks of_least(Chunks least) const {
    return static_cast<Chunks>((least + (std::uint64_t{1} << least_shift_) - 1) >> least_shift_);
  }
  template <class Make>
  void change(Make make);
  void happened(Page top);
  void rest(Page top);
  void count_wait(Answer answer);

  Ledger ledger_;
  Progress& progress_;
  std::string page_directory_;
  bool (*may_wait_)() = nullptr;
  int chunk_shift_ = 0;  // the exponent of the pages of a chunk
  int least_shift_ = 0;  // the exponent of the smallest chunks in one
  // The ledger's entry for this end. Only this process changes that, so anything else there is
  // wrong.
  Chunks extent_ = 0, bound_ = 0;
  bool is_inside_ = false;  // an iteration is open
  bool is_private_ = false;
  bool has_end_ = true;  // in this iteration
  Page footprint_ = 0;
  int sleepers_ = 0;
  bool is_waiting_ = false;  // the open iteration
  Clock::time_point waits_since_;
  CoLaneUsage usage_;
};

}  // namespace gpushare
