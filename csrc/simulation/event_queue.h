// The events of jobs in virtual time, and the clock that they move.
//
// Among events at one time the host's own come first; the others follow by their kind and by the
// order of jobs.
//
// The invariant of is_valid(): a job has at most one event of each kind.
#pragma once

#include <array>
#include <set>
#include <string>
#include <vector>

#include "core/model/types.h"

namespace gpushare {

class EventQueue {
 public:
  // The order is that in which they happen at one time.
  enum class Kind { paged, wakes, computes, boundary, leaves };
  struct Event {
    Seconds time = kNever;
    Kind kind{};
    std::size_t job = 0;
    auto operator<=>(const Event&) const = default;
  };

  explicit EventQueue(std::size_t jobs);

  // Sets when the event is due, in place of an earlier time.
  void schedule(Kind kind, std::size_t job, Seconds time);
  void cancel(Kind kind, std::size_t job) { schedule(kind, job, kNever); }

  Seconds next() const { return events_.empty() ? kNever : events_.begin()->time; }
  Event take();             // the next event, which happens now
  void wake(Seconds time);  // an event of the host, before all others of that time
  void wait(Seconds time);  // until then, without an event

  Seconds now() const { return now_; }
  const Event& present() const { return present_; }  // what happens now
  std::string is_valid() const;  // empty, or the first broken invariant in words

 private:
  static constexpr std::size_t kKinds = 5;

  std::set<Event> events_;
  std::vector<std::array<Seconds, kKinds>> due_;  // of each job
  Seconds now_ = 0;
  Event present_;
};

}  // namespace gpushare
