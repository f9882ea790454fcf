// The progress of sessions with the present number of lanes, beside their progress alone.
//
// The window opens when no more turns run than lanes may, and closes when their number is set
// again: in between, turns of the number before still run. Time in which no session runs does not
// count.
#pragma once

#include <optional>
#include <string>

#include "core/model/types.h"

namespace gpushare {

class SpeedupWindow {
 public:
  explicit SpeedupWindow(Seconds quantum) : quantum_(quantum) {}

  void advance(Seconds now);
  // `running` turns run from now on.
  void runs(Seconds now, int running);
  void set_lanes(int lanes);
  // Counts work that was done in `device` seconds of turns; `work` is what it takes the session
  // alone, in seconds.
  void count(Seconds work, Seconds device);
  // Starts to measure again.
  void clear() { seen_ = {}; }

  int lanes() const { return lanes_; }
  Seconds now() const { return now_; }
  Seconds since() const { return since_; }  // when the number of lanes was set, or reached
  bool is_open() const { return is_open_; }
  // Whether one session at most has run since then; whether the window has been open.
  bool is_alone_since(Seconds then) const { return then >= shared_; }
  bool is_open_since(Seconds then) const { return is_open_ && then >= since_; }

  Seconds time() const { return seen_.time; }  // in which at least one session ran
  double at_once() const { return seen_.time > 0 ? seen_.running / seen_.time : 0; }
  bool runs_several() const;  // at once, most of the time
  bool is_enough() const;     // to judge by
  // The weighted speedup; absent where too few ran at once.
  std::optional<double> speedup() const;
  std::string is_valid() const;  // empty, or the first broken invariant in words

 private:
  struct Seen {
    Seconds work = 0;     // reported, in seconds of the sessions when alone
    Seconds device = 0;   // seconds of turns that this work took
    Seconds running = 0;  // seconds of all turns
    Seconds time = 0;
  };

  Seconds quantum_;
  int lanes_ = 1;
  int running_ = 0;
  bool is_open_ = true;
  Seconds now_ = -kNever;
  Seconds since_ = -kNever;
  Seconds shared_ = -kNever;  // when several ran last
  Seen seen_;
};

}  // namespace gpushare
