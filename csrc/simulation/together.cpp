#include "simulation/together.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "claims/claims.h"
#include "core/model/validation.h"

namespace gpushare {
namespace {

constexpr Bytes kChunks = 1024;  // of a lane, as in the memory of a session
constexpr std::int64_t kLeast = 8, kEnough = 64, kMost = 4096;  // iterations

void check_curve(const IterationCurve& curve, Bytes lane_bytes) {
  require(curve.seconds > 0 && std::isfinite(curve.seconds), "an iteration takes some time");
  require(curve.load >= 0 && curve.load <= 1, "the load of a session is a part of the device");
  require(!curve.bytes.empty(), "a curve has a part at least");
  require(*std::ranges::min_element(curve.bytes) >= 0, "bytes must not be negative");
  require(curve.peak() <= lane_bytes, "an iteration has to fit into the lane");
}

// A session at one end of the lane.
class Side {
 public:
  Side(const IterationCurve& curve, Bytes chunk, Chunks budget)
      : curve_(curve), wants_(curve.bytes.size()), bounds_(curve.bytes.size()) {
    Chunks bound = 0;
    for (std::size_t at = wants_.size(); at-- > 0;) {
      wants_[at] = std::min(static_cast<Chunks>((curve.bytes[at] + chunk - 1) / chunk), budget);
      bounds_[at] = bound = std::max(bound, wants_[at]);
    }
  }

  bool computes() const { return left_ > 0; }
  Seconds left() const { return left_; }
  double load() const { return computes() ? curve_.load : 0; }
  Bytes has() const { return has_; }
  std::int64_t done() const { return done_; }
  double speed(Seconds time) const {
    const double part = static_cast<double>(at_) / static_cast<double>(wants_.size());
    return (static_cast<double>(done_) + part) * curve_.seconds / time;
  }

  // Begins the next part, if it may. Returns whether anything has changed.
  bool go_on(Claims& claims, int end, Chunks budget) {
    if (computes()) return false;
    if (!claims.is_inside(end)) claims.begin(end, bounds_[0], budget);
    if (wants_[at_] > claims.extent(end)) {
      const Claims before = claims;
      const Claims::Answer answer = claims.claim(end, wants_[at_], budget);
      if (answer == Claims::Answer::kSpill) {
        claims.spilled(end);
        has_ = 0;
      }
      if (answer != Claims::Answer::kGranted) return claims != before;
    }
    claims.shrink(end, wants_[at_]);
    claims.lower_bound(end, bounds_[at_]);
    has_ = curve_.bytes[at_];
    left_ = curve_.seconds / static_cast<double>(wants_.size());
    return true;
  }
  void compute(Seconds seconds, Claims& claims, int end) {
    if (!computes()) return;
    left_ -= seconds;
    if (left_ > 1e-9 * curve_.seconds) return;
    left_ = 0;
    if (++at_ < wants_.size()) return;
    at_ = 0;
    has_ = 0;
    ++done_;
    claims.end(end);
  }

 private:
  const IterationCurve& curve_;
  std::vector<Chunks> wants_, bounds_;  // in each part, and from it on
  std::size_t at_ = 0;
  Seconds left_ = 0;  // of the part that it computes
  Bytes has_ = 0;
  std::int64_t done_ = 0;
};

class Pair {
 public:
  Pair(const IterationCurve& a, const IterationCurve& b, Bytes lane_bytes)
      : chunk_(std::max<Bytes>(1, (lane_bytes + kChunks - 1) / kChunks)),
        budget_(std::max(Chunks{1}, static_cast<Chunks>(lane_bytes / chunk_))),
        sides_{Side(a, chunk_, budget_), Side(b, chunk_, budget_)} {}

  Together run() {
    while (!is_over()) {
      settle();
      compute();
    }
    return {{sides_[0].speed(now_), sides_[1].speed(now_)}, most_};
  }

 private:
  bool is_over() const {
    const auto [fewer, more] = std::minmax({sides_[0].done(), sides_[1].done()});
    return (fewer >= kLeast && more >= kEnough) || more >= kMost;
  }
  void settle() {
    for (bool has_changed = true; has_changed;) {
      const int first = claims_.elder();
      has_changed = sides_[first].go_on(claims_, first, budget_);
      has_changed |= sides_[1 - first].go_on(claims_, 1 - first, budget_);
    }
    most_ = std::max(most_, sides_[0].has() + sides_[1].has());
  }
  void compute() {
    const double speed = 1 / std::max(1.0, sides_[0].load() + sides_[1].load());
    Seconds next = kNever;
    for (const Side& side : sides_)
      if (side.computes()) next = std::min(next, side.left());
    if (next == kNever) throw std::logic_error("two sessions wait for each other");
    now_ += next / speed;
    for (int end = 0; end < Claims::kEnds; ++end) sides_[end].compute(next, claims_, end);
  }

  const Bytes chunk_;
  const Chunks budget_;
  Claims claims_;
  std::array<Side, Claims::kEnds> sides_;
  Seconds now_ = 0;
  Bytes most_ = 0;
};

}  // namespace

Bytes IterationCurve::peak() const { return *std::ranges::max_element(bytes); }

Together together(const IterationCurve& a, const IterationCurve& b, Bytes lane_bytes) {
  for (const IterationCurve* curve : {&a, &b}) check_curve(*curve, lane_bytes);
  return Pair(a, b, lane_bytes).run();
}

}  // namespace gpushare
