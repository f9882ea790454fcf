// The claims of two processes that compute at once on one co-lane, as one 64-bit word:
// no crash leaves half of a change, and no lock is needed. Each fills the lane from its own end, so
// all that it has is one number, its extent.
//
// The younger may have the chunks that the elder says it will not need any more. So the elder never
// waits, unless it needs more than it said. When the elder's iteration ends, the younger becomes
// the elder. The rule goes back to Zico (Lim et al., USENIX ATC 2021), which shares memory between
// trainings by their progress within an iteration. The ends, the single word and spilling are our
// own.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

namespace gpushare {

using Chunks = std::uint32_t;

// Always, `budget` being the chunks of the lane:
//   extent(0) + extent(1) <= budget
// and where both are in an iteration, unless one needs more than it said: bound(elder) +
// extent(younger) <= budget
class Claims {
 public:
  static constexpr int kEnds = 2;
  static constexpr int kBits = 15;
  static constexpr Chunks kMost = (Chunks{1} << kBits) - 1;  // of a budget

  enum class Answer {
    kGranted,
    kWait,   // look again when the word has changed
    kSpill,  // write the own extent to a file and say `spilled`, so that the other one can go on
  };

  Claims() = default;
  // Any word has a meaning, since the other process may write anything: no extent is larger than
  // what the other one leaves of the budget.
  Claims(std::uint64_t word, Chunks budget) {
    Bits bits{word};
    for (Side& side : sides_) side.extent = std::min(bits.take(kBits), budget);
    for (Side& side : sides_) side.bound = std::min(bits.take(kBits), budget);
    sides_[1].extent = std::min(sides_[1].extent, budget - sides_[0].extent);
    elder_ = static_cast<int>(bits.take(1));
    for (Side& side : sides_) side.must_spill = bits.take(1) != 0;
  }
  std::uint64_t word() const {
    Bits bits{0};
    for (const Side& side : sides_) bits.put(side.extent, kBits);
    for (const Side& side : sides_) bits.put(side.bound, kBits);
    bits.put(static_cast<Chunks>(elder_), 1);
    for (const Side& side : sides_) bits.put(side.must_spill, 1);
    return bits.word;
  }
  bool operator==(const Claims&) const = default;

  static int other(int end) { return 1 - end; }
  // The chunks that it has, counted from its end.
  Chunks extent(int end) const { return sides_[end].extent; }
  // The most chunks that it may still come to have in this iteration; 0 between iterations.
  Chunks bound(int end) const { return sides_[end].bound; }
  bool is_inside(int end) const { return sides_[end].bound > 0; }
  int elder() const { return elder_; }
  bool must_spill(int end) const { return sides_[end].must_spill; }

  // An iteration begins that may need `most` chunks. A bound above the budget would stop both
  // forever, and one of 0 would mean that no iteration is open.
  void begin(int end, Chunks most, Chunks budget) {
    sides_[end] = {0, std::clamp<Chunks>(most, 1, budget), false};
    if (!is_inside(other(end))) elder_ = end;
  }

  // Its iteration ends, or its process has ended.
  void end(int end) {
    sides_[end] = {};
    sides_[other(end)].must_spill = false;
    elder_ = other(end);
  }

  // Frees the chunks above `to`.
  void shrink(int end, Chunks to) { sides_[end].extent = std::min(extent(end), to); }

  // No more than `most` will be needed from here on.
  void lower_bound(int end, Chunks most) {
    sides_[end].bound = std::min(bound(end), std::max({extent(end), most, Chunks{1}}));
  }

  // It wants an extent of `want` chunks, at most `budget`. The claims may change even on kWait: it
  // may be larger than it said, no longer be the elder, or have asked the other one to spill.
  Answer claim(int end, Chunks want, Chunks budget) {
    Side& own = sides_[end];
    if (own.must_spill) return Answer::kSpill;
    own.bound = std::max(own.bound, want);
    if (!is_inside(other(end))) elder_ = end;
    return elder_ == end ? claim_as_elder(end, want, budget) : claim_as_younger(end, want, budget);
  }

  // Whether a new claim of `want` chunks would do more than wait.
  bool may_go_on(int end, Chunks want, Chunks budget) const {
    Claims then = *this;
    return then.claim(end, want, budget) != Answer::kWait || then != *this;
  }

  // Its extent is in a file; it wants all of it back, after the other one.
  void spilled(int end) {
    sides_[end].extent = 0;
    sides_[end].must_spill = false;
    elder_ = other(end);
  }

 private:
  struct Side {
    Chunks extent = 0, bound = 0;
    bool must_spill = false;
    bool operator==(const Side&) const = default;
  };

  struct Bits {
    std::uint64_t word;
    int at = 0;

    Chunks take(int count) {
      const auto value = word >> at & ((std::uint64_t{1} << count) - 1);
      at += count;
      return static_cast<Chunks>(value);
    }
    void put(Chunks value, int count) {
      word |= std::uint64_t{value} << at;
      at += count;
    }
  };

  Answer claim_as_elder(int end, Chunks want, Chunks budget) {
    Side &own = sides_[end], &its = sides_[other(end)];
    if (own.bound + its.extent <= budget) {
      own.extent = want;
      its.must_spill = false;
      return Answer::kGranted;
    }
    if (its.bound + own.extent <= budget && !its.must_spill) {
      elder_ = other(end);  // that one can end with what is left
    } else {
      its.must_spill = true;
    }
    return Answer::kWait;
  }

  Answer claim_as_younger(int end, Chunks want, Chunks budget) {
    if (bound(other(end)) + want > budget) return Answer::kWait;
    sides_[end].extent = want;
    return Answer::kGranted;
  }

  std::array<Side, kEnds> sides_;
  int elder_ = 0;
};

}  // namespace gpushare
