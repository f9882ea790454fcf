// The bytes of a lane that iterations use against their progress, learned while they run. Progress
// is the number of blocks that have begun or ended: iterations of a training are alike, whatever
// time they take, so this depends neither on load nor on waits.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "claims/claims.h"

namespace gpushare {

// One iteration, or the largest of several: chunks in at most kPoints stretches of equally many
// events.
class Curve {
 public:
  static constexpr std::uint32_t kPoints = 64;

  // One event more, after which the lane's extent is `extent`.
  void add(Chunks extent) {
    if (events_ == kPoints << shift_) fold();
    Chunks& most = most_[events_++ >> shift_];
    most = std::max(most, extent);
  }
  // Is at least `other` everywhere, and as long.
  void raise_to(Curve other) {
    while (shift_ < other.shift_) fold();
    while (other.shift_ < shift_) other.fold();
    events_ = std::max(events_, other.events_);
    for (std::uint32_t at = 0; at < kPoints; ++at) most_[at] = std::max(most_[at], other.most_[at]);
  }

  std::uint32_t events() const { return events_; }
  std::uint32_t stride() const { return 1U << shift_; }  // events in one point
  std::uint32_t size() const { return (events_ + stride() - 1) >> shift_; }
  // The point of the event after this number of events.
  std::uint32_t point(std::uint32_t events) const { return events >> shift_; }
  Chunks operator[](std::uint32_t at) const { return most_[at]; }
  Chunks peak() const { return *std::ranges::max_element(most_); }

 private:
  void fold() {
    for (std::uint32_t at = 0; at < kPoints / 2; ++at) {
      most_[at] = std::max(most_[2 * at], most_[2 * at + 1]);
    }
    std::fill(most_.begin() + kPoints / 2, most_.end(), 0);
    ++shift_;
  }

  std::array<Chunks, kPoints> most_{};
  std::uint32_t shift_ = 0, events_ = 0;
};

// The possible need of the next iteration, learned from the last kHalf to 2 * kHalf iterations.
class Envelope {
 public:
  static constexpr int kHalf = 32;
  static constexpr int kLeast = 2;  // iterations, before which nothing is known

  void add(const Curve& iteration) {
    if (in_half_ == kHalf) {
      before_ = half_;
      half_ = {};
      in_half_ = 0;
    }
    half_.raise_to(iteration);
    ++in_half_;
    seen_ = std::min(seen_ + 1, kLeast);
    learn();
  }

  bool is_known() const { return seen_ == kLeast; }
  const Curve& curve() const { return curve_; }
  Chunks peak() const { return from_[0]; }
  // The most chunks that may still be needed after a number of events: all, if it lasts longer than
  // ever.
  Chunks bound(std::uint32_t events) const {
    const std::uint32_t at = curve_.point(events);
    return at < curve_.size() ? from_[at] : peak();
  }
  // The most chunks that were in use just after a number of events.
  Chunks most(std::uint32_t events) const {
    const std::uint32_t at = curve_.point(events - 1);
    return at < curve_.size() ? curve_[at] : 0;
  }

 private:
  void learn() {
    curve_ = half_;
    curve_.raise_to(before_);
    Chunks most = 0;
    for (std::uint32_t at = Curve::kPoints; at-- > 0;)
      from_[at] = most = std::max(most, curve_[at]);
  }

  Curve before_, half_, curve_;
  std::array<Chunks, Curve::kPoints> from_{};  // the largest from each point on
  int in_half_ = 0, seen_ = 0;
};

// The open iteration, and the chunks that it may still need, learned from earlier iterations of its
// kind. The sizes of the first blocks tell kinds apart: an evaluation between two epochs needs less
// than a training, and must not be taken for one. If sizes vary and each iteration is a kind of its
// own, the estimate uses all iterations.
class Progress {
 public:
  Progress() = default;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  static constexpr int kKinds = 4;  // that are known at a time
  static constexpr int kSigns = 4;  // blocks that tell the kind

  // Returns the most chunks that it may need, at most `budget`.
  Chunks begin(Chunks budget) {
    now_ = {};
    kind_ = nullptr;
    known_ = &all_;
    sign_ = births_ = 0;
    is_as_known_ = all_.is_known();
    return bound_ = std::min(peak(), budget);
  }
  // A block of this size begins; `happened` follows.
  void born(std::uint64_t bytes) {
    if (births_ == kSigns) return;
    sign_ = std::rotl((sign_ ^ bytes) * 0x9E3779B97F4A7C15, 29);
    if (++births_ == kSigns) choose_kind();
  }
  // A block has begun or ended. Returns the most chunks that may still be needed, at least
  // `extent`; it rises only with the extent.
  Chunks happened(Chunks extent) {
    now_.add(extent);
    is_as_known_ = is_as_known_ && extent <= known_->most(now_.events());
    if (is_as_known_ && births_ == kSigns) bound_ = std::min(bound_, known_->bound(now_.events()));
    return bound_ = std::max(bound_, extent);
  }
  void end() {
    if (kind_ == nullptr) choose_kind();
    kind_->envelope.add(now_);
    all_.add(now_);
  }

  // The most chunks that any known kind needs; no limit if nothing is known.
  Chunks peak() const {
    if (!all_.is_known()) return std::numeric_limits<Chunks>::max();
    Chunks most = all_.peak();
    for (const Kind& kind : kinds_) {
      if (kind.envelope.is_known()) most = std::max(most, kind.envelope.peak());
    }
    return most;
  }

 private:
  struct Kind {
    std::uint64_t sign = 0, last_use = 0;
    Envelope envelope;
  };

  // A new kind takes the place of the one that was seen least recently.
  void choose_kind() {
    kind_ = std::ranges::find(kinds_, sign_, &Kind::sign);
    if (kind_ == kinds_.end()) {
      kind_ = std::ranges::min_element(kinds_, {}, &Kind::last_use);
      *kind_ = {sign_, 0, {}};
    }
    kind_->last_use = ++uses_;
    if (!kind_->envelope.is_known()) return;
    known_ = &kind_->envelope;
    is_as_known_ = true;
  }

  Curve now_;
  Envelope all_;
  std::array<Kind, kKinds> kinds_;
  Kind* kind_ = nullptr;             // of this iteration, once its first blocks have told
  const Envelope* known_ = nullptr;  // what holds for this iteration
  std::uint64_t sign_ = 0, births_ = 0, uses_ = 0;
  Chunks bound_ = 0;
  bool is_as_known_ = false;  // it has needed no more so far than `known_`
};

}  // namespace gpushare
