// Whether several lanes that run at once get more done than one.
//
// This depends on the hardware and on the workload, so it is measured. A session that runs alone
// reports how long its iteration takes alone. While several run at once, each iteration counts as
// that time of work. Work done in a second is the *weighted speedup*, which is 1 if sessions use
// the device one after the other.
//
// A probe begins with one lane, until the pace of each session alone is known, and then tries 2, 4,
// 8 lanes at once for as long as the weighted speedup grows. The best number is kept and watched:
// the next probe comes as soon as its speedup is below 1. Otherwise it comes when the time since
// the last one makes its cost one hundredth, and later each time while neither the sessions nor the
// outcome change.
//
// A SessionMix has the pace of each session alone, and the progress of several together is in a
// SpeedupWindow. Decisions are made in follow(), and nowhere else; time is an argument.
//
// Invariants, which is_valid() checks: what may run is what is probed or was kept, and
// what must stay true of the mix and of the window.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/model/types.h"
#include "core/tuner/concurrency_probe.h"
#include "core/tuner/session_mix.h"
#include "core/tuner/speedup_window.h"

namespace gpushare {

class ConcurrencyTuner {
 public:
  explicit ConcurrencyTuner(Seconds quantum) : quantum_(quantum), mix_(quantum), window_(quantum) {}

  // The session did `iterations` since its last report, in `seconds` of its turns.
  void report(Seconds now, SessionNumber session, std::int64_t iterations, Seconds seconds);
  // Earlier measurements of the session do not hold any more.
  void forget(SessionNumber session) { mix_.forget(session); }
  // These want the device or have it. Decides how many may run at once from now on.
  void follow(Seconds now, const std::vector<SessionNumber>& wanting);
  // `running` turns run from now on.
  void runs(Seconds now, int running) { window_.runs(now, running); }

  int lanes() const { return window_.lanes(); }
  bool is_probing() const { return probe_.has_value(); }
  // The number of lanes that may turn out to gain; 0: unknown.
  int hoped() const { return kept_; }
  // When time alone changes something, if nothing is reported until then.
  std::optional<Seconds> next_event() const;
  std::string is_valid() const;  // empty, or the first broken invariant in words
  // The outcome of the last probe, or the probe that goes on; absent until one has begun.
  std::optional<Reason> finding() const;

 private:
  using Outcome = ConcurrencyProbe::Outcome;

  Seconds turns(double number) const { return number * quantum_; }
  void count_together(SessionNumber session, SoloPace& pace, const SoloPace::Interval& did);
  Seconds since() const;

  // The probe.
  void begin_probe();
  void follow_probe();
  void judge();
  void climb(int lanes);
  void end_step(double speedup) { probe_->end_step(window_.now(), speedup); }
  Seconds end_of_step() const;
  void end_probe();
  void break_off();

  // Called between two probes.
  void watch();
  void rest(Seconds cost);
  double speedup_kept() const { return kept_ > 1 ? outcome_.speedup.value_or(1) : 1; }
  Seconds due() const;

  Seconds quantum_;
  SessionMix mix_;
  SpeedupWindow window_;
  std::set<SessionNumber> probed_;  // the mix of the last probe
  int kept_ = 0;                    // 0: no probe has ended
  Outcome outcome_;                 // of the last probe, or of what was seen since
  std::optional<ConcurrencyProbe> probe_;
  Seconds rested_ = -kNever;  // when the last probe ended
  Seconds pause_ = 0;         // from then to the next
  double backoff_ = 1;        // factor of the pause, where nothing has changed
};

}  // namespace gpushare
