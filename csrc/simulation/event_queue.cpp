#include "simulation/event_queue.h"

#include <algorithm>

namespace gpushare {

EventQueue::EventQueue(std::size_t jobs) : due_(jobs) {
  for (auto& due : due_) due.fill(kNever);
}

void EventQueue::schedule(Kind kind, std::size_t job, Seconds time) {
  Seconds& due = due_[job][static_cast<std::size_t>(kind)];
  if (due != kNever) events_.erase({due, kind, job});
  if (time != kNever) events_.insert({time, kind, job});
  due = time;
}

EventQueue::Event EventQueue::take() {
  present_ = *events_.begin();
  now_ = present_.time;
  cancel(present_.kind, present_.job);
  return present_;
}

void EventQueue::wake(Seconds time) {
  wait(time);
  present_ = {now_, Kind{}, 0};
}

void EventQueue::wait(Seconds time) { now_ = std::max(now_, time); }

std::string EventQueue::is_valid() const {
  std::size_t due = 0;
  for (const auto& times : due_) due += times.size() - std::ranges::count(times, kNever);
  const bool are_due = std::ranges::all_of(events_, [&](const Event& event) {
    return due_[event.job][static_cast<std::size_t>(event.kind)] == event.time;
  });
  return are_due && due == events_.size() ? "" : "an event happens that is not due";
}

}  // namespace gpushare
