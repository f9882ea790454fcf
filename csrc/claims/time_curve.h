// The bytes of an iteration in its lane against time, learned while iterations run: for people, and
// for simulations. A session states what it still needs by events instead (curve.h).
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace gpushare {

class TimeCurve {
 public:
  static constexpr std::uint32_t kParts = 32;   // of the time of an iteration
  static constexpr std::uint32_t kPoints = 64;  // of an iteration while it runs
  static constexpr std::uint32_t kEvery = 7;    // iteration is looked at, once one is known
  // An iteration with less than half as many events, such as an evaluation, replaces the known one
  // only after kOthers such iterations in a row.
  static constexpr std::uint32_t kOthers = 8;

  struct Known {
    double seconds = 0;                         // of an iteration; 0: none has ended
    std::array<std::uint64_t, kParts> bytes{};  // the most in each of equal parts of its time
  };

  // Times are seconds of any clock that does not run backwards.
  void begin(double now) {
    is_looked_at_ = known_.seconds == 0 || ++iterations_ % kEvery == 0;
    if (!is_looked_at_) return;
    began_ = now;
    shift_ = enough_for(std::max(events_, 1U));
    events_ = 0;
  }
  // A block has begun or ended; `bytes` are alive now. `now` is called once for each point.
  template <class Now>
  void add(std::uint64_t bytes, Now now) {
    if (!is_looked_at_) return;
    if (events_ == kPoints << shift_) fold();
    Point& point = points_[events_ >> shift_];
    if ((events_++ & ((1U << shift_) - 1)) == 0) point = {bytes, now()};
    point.most = std::max(point.most, bytes);
  }
  void end(double now) {
    if (!is_looked_at_ || events_ == 0 || !(now > began_)) return;
    is_looked_at_ = false;
    if (events_ < known_events_ / 2 && ++others_ < kOthers) return;
    others_ = 0;
    known_events_ = events_;
    known_ = {now - began_, {}};
    const std::uint32_t size = ((events_ - 1) >> shift_) + 1;
    for (std::uint32_t at = 0; at < size; ++at)
      draw(points_[at].most, points_[at].since, at + 1 < size ? points_[at + 1].since : now);
  }

  const Known& known() const { return known_; }

 private:
  struct Point {
    std::uint64_t most;  // bytes
    double since;
  };

  // An iteration with as many events as the one before takes each point, and the time, once.
  static std::uint32_t enough_for(std::uint32_t events) {
    return static_cast<std::uint32_t>(std::bit_width((events - 1) / kPoints));
  }
  void fold() {
    for (std::uint32_t at = 0; at < kPoints / 2; ++at) {
      const Point &first = points_[2 * at], &second = points_[2 * at + 1];
      points_[at] = {std::max(first.most, second.most), first.since};
    }
    ++shift_;
  }
  // Notes that it had these bytes from one time to another.
  void draw(std::uint64_t bytes, double since, double until) {
    const auto part = [&](double time) {
      const double at = (time - began_) / known_.seconds * kParts;
      return static_cast<std::uint32_t>(std::clamp(at, 0.0, kParts - 1.0));
    };
    for (std::uint32_t at = part(since); at <= part(until); ++at)
      known_.bytes[at] = std::max(known_.bytes[at], bytes);
  }

  std::array<Point, kPoints> points_{};
  double began_ = 0;
  std::uint32_t events_ = 0, shift_ = 0;
  Known known_;
  std::uint32_t known_events_ = 0, others_ = 0, iterations_ = 0;
  bool is_looked_at_ = false;  // the open iteration
};

}  // namespace gpushare
