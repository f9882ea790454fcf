#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "claims/time_curve.h"
#include "memory/co_lane/co_lane.h"
#include "memory/co_lane/low_places.h"
#include "memory/common/block_allocator.h"
#include "memory/common/predictor.h"
#include "memory/common/sparse_array.h"
#include "memory/common/spin_lock.h"
#include "memory/lane/lane_layout.h"
#include "memory/lane/lane_pages.h"
#include "memory/lane/lane_usage.h"
#include "memory/lane/lane_window.h"
#include "memory/lane/trimmed_segments.h"

namespace gpushare {

class PromotionFailed : public std::bad_alloc {
 public:
  const char* what() const noexcept override {
    return "there is not enough memory to copy what is alive in the lane";
  }
};

// The kind of blocks in a lane. It decides which threads may ask for them, and how the lane treats
// one that is still alive at a boundary.
enum class Tenant {
  kTensors,   // for the thread that entered alone; what is in the lane is alive
  kSegments,  // of PyTorch's own allocator, for every thread; it keeps them for its next iteration
};

// Bytes side by side.
struct Extent {
  const void* begin;
  size_t bytes;
};

// The lane of this process: memory that it uses in turn with other processes, mapped into a window
// of addresses. Blocks that are alive when the lane goes to another process (survivors) are
// promoted: their pages become private ones at the same addresses, until they die. Between
// `promote` and `enter` nothing of this process is in the lane, and it touches none of its pages.
// All book-keeping lies outside it. Thread-safe.
class Lane {
 public:
  static constexpr size_t kSmallestBlock =
      64 << 10;  // for smaller ones the rounding would be too much

  // A block of the lane. If there is none, give `note` to `made` and to `ended` with the block that
  // is made elsewhere instead (0: neither needs to be called).
  struct Place {
    void* address = nullptr;
    Predictor::Note note = 0;
  };

  explicit Lane(LanePages& pages, Tenant tenant = Tenant::kTensors);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Functions that return a string return an empty one, or the sentence that says why not.

  // Reserves the window, with more addresses than a lane will have bytes, since survivors take
  // some. Once per process.
  [[nodiscard]] std::string open(size_t window_bytes);
  // Uses `bytes` of the memory behind the descriptors; a further call changes its size or replaces
  // it. Called only between iterations, with nothing alive in the lane.
  [[nodiscard]] std::string attach(std::span<const int> descriptors, size_t bytes) {
    return attach(descriptors, bytes, nullptr);
  }
  [[nodiscard]] std::string attach(int descriptor, size_t bytes) {
    return attach(std::span(&descriptor, 1), bytes);
  }
  // The same with the memory that the lane has.
  [[nodiscard]] std::string attach(size_t bytes) { return attach(std::span<const int>(), bytes); }
  // The same from one end, while another process fills the lane from the other end. The part that
  // this process has follows its living blocks, and an allocation may wait until the other process
  // needs less.
  [[nodiscard]] std::string attach(int descriptor, size_t bytes, const LaneEnd& end) {
    return attach(std::span(&descriptor, 1), bytes, &end);
  }
  // Gives the memory up, under the same conditions. The predictions of survivors stay, as
  // where other memory is attached.
  [[nodiscard]] std::string detach();
  // Forgets what was learned about survivors.
  void forget();

  // An iteration begins: this thread, and no other, allocates tensors from the lane; or every
  // thread segments.
  void enter();
  // The iteration ends: no thread allocates from the lane any more.
  void leave();
  // The bytes that are alive in the lane.
  size_t survivor_bytes() const;
  // Empties the lane, after leaving it if need be; returns the bytes that were promoted. Raises
  // PromotionFailed where memory is short; then some survivors are still in the lane.
  size_t promote();
  // The turn has ended: if another process has the other end of the lane, the next process may take
  // this end, until `enter`. The lane must be empty.
  void pass_on();

  // Frees each page that has none of the `living` bytes, in the segments of the lane that were not
  // trimmed before. `living` is sorted by address. PyTorch's allocator must not use these segments
  // any more, except to end them.
  void trim(std::span<const Extent> living);
  // The largest segment that would fit now.
  size_t room() const;
  // The bytes that are left of trimmed segments in the lane: alive, and not promoted.
  size_t trimmed_bytes() const;

  Place allocate(size_t bytes, size_t alignment = 1);
  bool owns(const void* address) const {
    return reinterpret_cast<uintptr_t>(address) - begin_.load(std::memory_order_relaxed) <
           window_bytes_.load(std::memory_order_relaxed);
  }
  void free(void* address);
  // A block was made elsewhere with this note, and ended.
  void made(Predictor::Note note, size_t bytes);
  void ended(Predictor::Note note, size_t bytes);

  LaneUsage usage() const;
  // The bytes of a usual iteration in the lane, against its time without waits for another process.
  TimeCurve::Known curve() const;
  // Nothing but zeros where no other process has an end of the lane.
  CoLaneUsage co_lane_usage() const;
  std::string is_valid() const;  // empty, or the first broken invariant as a sentence

  // Called around a fork: the child has no lane, but all that was alive in it, in private pages.
  // Nothing changes in the parent.
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  using Guard = std::lock_guard<SpinLock>;
  struct Unlocked {  // within a Guard
    explicit Unlocked(SpinLock& taken) : lock(taken) { lock.unlock(); }
    ~Unlocked() { lock.lock(); }
    SpinLock& lock;
  };

  using MakeCopy = LaneWindow::MakeCopy;
  struct Moved {
    Page pages;
    size_t runs;
    bool is_all;
  };
  struct Copy {
    Run run;
    void* pages;
  };

  static constexpr Predictor::Note kOverflow = Predictor::kSpareBit;

  bool is_inside() const {
    const auto inside = inside_.load(std::memory_order_relaxed);
    return inside == this_thread() || (tenant_ == Tenant::kSegments && inside != std::thread::id());
  }
  static std::thread::id this_thread() { return std::this_thread::get_id(); }
  std::string attach(std::span<const int> descriptors, size_t bytes, const LaneEnd* end);
  std::string change_end(const LaneEnd* end, size_t bytes);
  std::string busy() const;
  void end_iteration();
  void learn();
  Page footprint() const;

  size_t bytes(uint64_t pages) const { return pages << page_shift_; }
  size_t whole_pages(size_t bytes) const { return (bytes + this->bytes(1) - 1) >> page_shift_; }
  Page page_of(const void* address) const;

  void show(Page lane_pages);
  std::vector<Run> living() const;
  Moved move_out(std::span<const Run> blocks, const MakeCopy& make_copy);
  std::vector<Run> last_survivors();
  std::vector<Run> blocks_of_iteration();
  Page find(size_t block_bytes);
  Page find_beside_another(const Predictor::Birth& birth);
  Page find_low(const Predictor::Birth& birth);
  bool wait(CoLane::Answer answer, Page top);
  bool spill();
  void end_block(Page first);
  void happened();
  double time() const;
  std::vector<Run> pages_of(std::span<const Extent> living, const Run& block) const;
  Predictor::Note overflow_note() const { return kOverflow | predictor_.iteration(); }

  LanePages& pages_;
  const Tenant tenant_;
  int page_shift_ = 0;  // the exponent of the page size; written once, as the window is
  std::atomic<uintptr_t> begin_ = 0;  // of the window; written once
  std::atomic<size_t> window_bytes_ = 0;

  // The boundary lock is taken first, by functions that change mappings: that may take long, and
  // then other threads must still be able to free.
  mutable std::mutex boundary_;
  mutable SpinLock lock_;

  std::optional<BlockAllocator>
      blocks_;  // of the window; available are the pages that show the lane
  SparseArray<Predictor::Birth> births_;  // the births of the blocks in the lane, by first page
  LaneWindow window_;
  TrimmedSegments trimmed_;
  std::vector<Copy> copies_;  // from before a fork until after it

  std::atomic<std::thread::id> inside_ =
      std::thread::id();             // the thread that may allocate; empty: no thread
  Progress progress_;                // of iterations in all co-lanes so far
  std::unique_ptr<CoLane> co_lane_;  // while another process may have the other end
  LowPlaces low_places_;             // in use while there is a co-lane
  TimeCurve curve_;
  Predictor predictor_;
  LaneUsageCounter counter_;
};

}  // namespace gpushare
