// Whether several lanes that run at once get more done than one.
//
// Whether they do is a property of the hardware and of what runs there, so it is measured. While a
// session runs alone it tells how long an iteration takes it alone. While several run at once, each
// iteration counts as that time of work; work done in a second of time is the *weighted speedup*,
// which is 1 where one after the other has the device.
//
// A probe begins with one lane, until all are known, and climbs: 2 lanes at once, 4, 8, for as long
// as it grows. What was best is kept, and watched: the next probe comes as soon as it is below 1.
// Else it comes when the time since the last one makes its cost one part in a hundred, and later
// and later while neither the sessions nor the outcome change.
//
// Decisions are made in follow(), and nowhere else; time is an argument.
//
// What must stay true, and is_valid() looks at: what may run is what is probed or was kept, and
// each session that wants the device is known.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/types.h"

namespace gpushare {

class ConcurrencyTuner {
 public:
  explicit ConcurrencyTuner(Seconds quantum) : quantum_(quantum) {}

  // The session did `iterations` since its last report, in `seconds` of its turns.
  void report(Seconds now, SessionNumber session, std::int64_t iterations, Seconds seconds);
  // Earlier measurements of the session do not hold any more.
  void forget(SessionNumber session) { workers_.erase(session); }
  // These want the device or have it. Decides how many may run at once from now on.
  void follow(Seconds now, const std::vector<SessionNumber>& wanting);
  // `running` turns run from now on.
  void runs(Seconds now, int running);

  int lanes() const { return lanes_; }
  bool is_probing() const { return probe_.has_value(); }
  // The number of lanes that may turn out to gain; 0: unknown.
  int hoped() const { return kept_; }
  // When time alone changes something, if nothing is reported until then.
  std::optional<Seconds> next_event() const;
  std::string is_valid() const;  // empty, or the first broken invariant in words
  // The outcome of the last probe, or the probe that goes on; absent until one has begun.
  std::optional<Reason> finding() const;

 private:
  struct Worker {
    Seconds reported;          // time of its last report, or of its first appearance
    Seconds unreported = 0;    // known seconds of its turns since then
    Seconds wanted = -kNever;  // when it last wanted the device, or had it
    double iterations = 0;     // done alone, decayed
    Seconds seconds = 0;       // that these took, decayed
    Seconds seen = -kNever;    // when it was last seen alone

    Seconds iteration() const { return seconds / iterations; }
  };
  // Measurements with the present number of lanes.
  struct Evidence {
    Seconds work = 0;     // reported, in seconds of the sessions when alone
    Seconds device = 0;   // seconds of turns that this work took
    Seconds running = 0;  // seconds of all turns
    Seconds time = 0;     // in which at least one session ran

    std::optional<double> sum() const;
    double at_once() const { return time > 0 ? running / time : 0; }
  };
  struct Outcome {
    int lanes = 1;
    std::optional<double> sum = 1.0;  // absent: not measurable
  };
  struct Step {
    Seconds time;
    double sum;
  };
  struct Probe {
    Seconds since;  // of the step that goes on
    std::vector<Step> steps = {};
    Outcome best = {};
  };

  Seconds turns(double number) const { return number * quantum_; }
  void pass(Seconds now);
  void find_mix(const std::vector<SessionNumber>& wanting);
  void set_lanes(int lanes);

  // What is known.
  void count_alone(Worker& worker, double iterations, Seconds seconds);
  void count_together(SessionNumber session, Worker& worker, double iterations, Seconds seconds);
  bool is_known(const Worker& worker) const;
  bool is_known_anew(const Worker& worker) const;
  bool is_enough() const;

  // What follows from it.
  void begin_probe();
  void follow_probe();
  bool has_met_all() const;
  void judge();
  void climb(int lanes);
  void end_step(double sum);
  void end_probe();
  void break_off();
  void watch();
  void rest(Seconds cost);
  double sum_kept() const { return kept_ > 1 ? outcome_.sum.value_or(1) : 1; }
  Seconds cost_of_steps(double best) const;
  Seconds end_of_step() const;
  Seconds due() const;

  Seconds quantum_;
  std::map<SessionNumber, Worker> workers_;
  std::vector<SessionNumber> wanting_;
  std::set<SessionNumber> mix_;     // sessions that want the device, or did recently
  std::set<SessionNumber> probed_;  // the mix of the last probe
  int lanes_ = 1;
  int running_ = 0;
  int kept_ = 0;     // 0: no probe has ended
  Outcome outcome_;  // of the last probe, or of what was seen since
  std::optional<Probe> probe_;
  Evidence evidence_;
  Seconds now_ = -kNever;
  Seconds since_ = -kNever;   // when `lanes_` was set, or reached
  bool is_settled_ = true;    // no more than `lanes_` run
  Seconds shared_ = -kNever;  // when several ran last
  Seconds rested_ = -kNever;  // when the last probe ended
  Seconds pause_ = 0;         // from then to the next
  double backoff_ = 1;        // factor of the pause, where nothing has changed
};

}  // namespace gpushare
