#include "core/tuner/speedup_window.h"

namespace gpushare {
namespace {

// The mean number of running turns from which they count as "at once".
constexpr double kAtOnce = 1.5;
constexpr double kTogether = 8;  // quanta until it is enough to judge by

}  // namespace

void SpeedupWindow::advance(Seconds now) {
  if (running_ > 0 && is_open_) {
    seen_.running += running_ * (now - now_);
    seen_.time += now - now_;
  }
  if (running_ > 1) shared_ = now;
  now_ = now;
}

void SpeedupWindow::runs(Seconds now, int running) {
  advance(now);
  running_ = running;
  if (running > 1) shared_ = now_;
  if (is_open_ || running > lanes_) return;
  is_open_ = true;
  since_ = now_;
  clear();
}

void SpeedupWindow::set_lanes(int lanes) {
  if (lanes == lanes_) return;
  lanes_ = lanes;
  since_ = now_;
  is_open_ = false;
}

void SpeedupWindow::count(Seconds work, Seconds device) {
  seen_.work += work;
  seen_.device += device;
}

bool SpeedupWindow::runs_several() const { return at_once() >= kAtOnce; }

// Reports must cover half of the time of turns.
bool SpeedupWindow::is_enough() const {
  return seen_.time >= kTogether * quantum_ && seen_.device >= seen_.running / 2;
}

std::optional<double> SpeedupWindow::speedup() const {
  if (seen_.device <= 0 || !runs_several()) return std::nullopt;
  return seen_.work / seen_.device * at_once();
}

std::string SpeedupWindow::is_valid() const {
  return lanes_ < 1 || running_ < 0 ? "less than one lane may run" : "";
}

}  // namespace gpushare
