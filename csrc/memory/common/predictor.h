#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace gpushare {

// Learns which allocations of an iteration survive it. Iterations of a training are alike, so an
// allocation is known by its size and by the number of allocations of that size before it in its
// iteration. One survival is enough to learn it; dying several times in a row makes it forget. It
// is bounded, never calls malloc, and is not thread-safe.
class Predictor {
 public:
  // Which allocation a block came from.
  struct Birth {
    uint64_t bytes;
    uint32_t ordinal;
    uint32_t iteration;
  };

  // Names one expectation; 0: there is none. The highest bit is free for other uses.
  using Note = uint32_t;
  static constexpr Note kSpareBit = Note{1} << 31;

  // The next allocation of this size.
  Birth next(size_t bytes);
  // Whether this allocation is expected to survive. If so, `died` must be told of its end.
  Note expect(const Birth& birth);
  // An allocation that was not expected to survive did survive.
  void survived(const Birth& birth);
  // A block that was expected to survive ended, now or long after its iteration.
  void died(Note note);

  void end_iteration() { ++iteration_; }
  void forget();
  uint32_t iteration() const { return iteration_; }

 private:
  // The number of allocations of each size. Sizes with the same hash share a count: as long as
  // iterations are alike, that is as good an ordinal.
  struct Count {
    uint32_t iteration;
    uint32_t next;
  };

  // Linear probing in a power of two of slots; a slot with bytes 0 is free.
  struct Lesson {
    uint64_t bytes;
    uint32_t ordinal;
    int32_t confidence;  // expected to survive while it is above 0
  };

  static constexpr unsigned kSlotBits = 13;
  static constexpr size_t kSlots = size_t{1} << kSlotBits;
  static constexpr size_t kMostLessons = kSlots / 4 * 3;
  static constexpr size_t kCounts = 1024;
  static constexpr int32_t kLearned = 2;
  static constexpr int32_t kCertain = 5;

  Note notes_begin() const { return iteration_ << kSlotBits & ~kSpareBit; }
  Lesson& lesson_of(const Birth& birth);

  std::array<Count, kCounts> counts_{};
  std::array<Lesson, kSlots> lessons_{};
  size_t size_ = 0;
  uint32_t iteration_ = 1;
};

}  // namespace gpushare
