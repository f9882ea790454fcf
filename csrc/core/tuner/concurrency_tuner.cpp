#include "core/tuner/concurrency_tuner.h"

#include <algorithm>
#include <cmath>

namespace gpushare {
namespace {

// More than this factor of the weighted speedup is growth. A mix that stays in one lane loses at
// most this.
constexpr double kGrowth = 1.02;
// The part of the time that probes may cost.
constexpr double kCost = 0.01;
constexpr double kMostBackoff = 16;
// The weighted speedup that is assumed if none was measured.
constexpr double kUnseen = 0.5;
constexpr double kIsFull = 0.9;
// A speed-up in company above this factor means that the workload has changed.
constexpr double kOtherWork = 1.5;

// These are in turns of one quantum, since sessions are seen at their turns' ends.
constexpr double kWatched = 16;     // until what is kept is judged again
constexpr double kStepOfEach = 20;  // a step with one lane ends after these for each
constexpr double kStep = 40;        // any other step ends after these
constexpr double kOld = 40;         // measurements older than this are made again
constexpr double kShortestPause = 40;

}  // namespace

// --- what is seen --------------------------------------------------------------------------------

void ConcurrencyTuner::report(Seconds now, SessionNumber session, std::int64_t iterations,
                              Seconds seconds) {
  window_.advance(now);
  SoloPace* pace = mix_.find(session);
  const auto did = pace ? pace->report(now, iterations, seconds) : std::nullopt;
  if (!did) return;
  if (window_.is_alone_since(did->since))
    pace->count(*did, now, since(), quantum_);
  else if (window_.is_open_since(did->since))
    count_together(session, *pace, *did);
}

// No session is much faster in company than alone: then it does something else than before.
void ConcurrencyTuner::count_together(SessionNumber session, SoloPace& pace,
                                      const SoloPace::Interval& did) {
  if (!pace.is_known(quantum_) || did.seconds <= 0) return;
  const Seconds work = pace.work(did.iterations);
  if (work <= kOtherWork * did.seconds) return window_.count(work, did.seconds);
  pace.forget();
  probed_.erase(session);
}

// Measurements of sessions alone from before this time are made again.
Seconds ConcurrencyTuner::since() const { return window_.since() - turns(kOld); }

// --- what follows --------------------------------------------------------------------------------

void ConcurrencyTuner::follow(Seconds now, const std::vector<SessionNumber>& wanting) {
  window_.advance(now);
  mix_.follow(now, wanting);
  if (mix_.size() < 2) {
    if (probe_) break_off();
  } else if (probe_) {
    follow_probe();
  } else if (now >= due()) {
    begin_probe();
  } else if (lanes() > 1) {
    watch();
  }
}

void ConcurrencyTuner::begin_probe() {
  probe_.emplace(window_.now());
  window_.set_lanes(1);
  follow_probe();
}

void ConcurrencyTuner::follow_probe() {
  if (lanes() > 1) return judge();
  const bool has_met_all = window_.is_open() && mix_.are_all_known(since());
  if (!has_met_all && window_.now() < end_of_step()) return;
  end_step(1);
  if (mix_.is_any_known()) return climb(2);
  outcome_ = {2, std::nullopt};
  end_probe();
}

void ConcurrencyTuner::judge() {
  if (!window_.is_enough() && window_.now() < end_of_step()) return;
  const Outcome seen{lanes(), window_.speedup()};
  const bool has_grown = seen.speedup && *seen.speedup >= kGrowth * *probe_->best().speedup;
  end_step(seen.speedup.value_or(window_.runs_several() ? kUnseen : 1));
  if (has_grown || lanes() == 2) outcome_ = seen;
  if (has_grown) probe_->set_best(seen);
  const int more = std::min(2 * lanes(), mix_.size());
  const bool goes_on = has_grown && more > lanes() && window_.at_once() >= kIsFull * lanes();
  goes_on ? climb(more) : end_probe();
}

void ConcurrencyTuner::climb(int lanes) {
  probe_->begin_step(window_.now());
  window_.set_lanes(lanes);
}

void ConcurrencyTuner::end_probe() {
  const Outcome best = probe_->best();
  const bool is_as_before = probed_ == mix_.sessions() && kept_ == best.lanes;
  backoff_ = is_as_before ? std::min(2 * backoff_, kMostBackoff) : 1;
  probed_ = mix_.sessions();
  rest(std::max(probe_->cost(*best.speedup), kCost * turns(kShortestPause)));
  kept_ = best.lanes;
  window_.set_lanes(kept_);
}

// The sessions with which the probe began are gone.
void ConcurrencyTuner::break_off() {
  end_step(lanes() == 1 ? 1 : kUnseen);
  rest(probe_->cost(speedup_kept()));
  window_.set_lanes(std::max(1, kept_));
}

Seconds ConcurrencyTuner::end_of_step() const {
  const double each = lanes() > 1 ? kStep : kStepOfEach * mix_.size();
  return probe_->step_began() + turns(each);
}

void ConcurrencyTuner::rest(Seconds cost) {
  probe_.reset();
  rested_ = window_.now();
  pause_ = cost / kCost;
}

// Other load of the machine changes too, so no number is ruled out before each session was measured
// again. An outcome that is found repeatedly is trusted longer.
void ConcurrencyTuner::watch() {
  if (window_.time() < turns(kWatched) * backoff_ || !window_.is_enough()) return;
  const std::optional<double> speedup = window_.speedup();
  window_.clear();
  if (!speedup) return;
  outcome_.speedup = speedup;
  if (*speedup < 1) begin_probe();
}

Seconds ConcurrencyTuner::due() const {
  return rested_ + pause_ * (mix_.sessions() == probed_ ? backoff_ : 1);
}

std::optional<Seconds> ConcurrencyTuner::next_event() const {
  if (mix_.size() < 2) return std::nullopt;
  return probe_ ? end_of_step() : due();
}

std::string ConcurrencyTuner::is_valid() const {
  if (!probe_ && lanes() != std::max(1, kept_)) return "other lanes may run than were kept";
  for (const std::string& broken : {window_.is_valid(), mix_.is_valid()})
    if (!broken.empty()) return broken;
  return "";
}

std::optional<Reason> ConcurrencyTuner::finding() const {
  const auto percent = [](double part) { return std::lround(100 * part); };
  if (probe_ && lanes() == 1) return Reason{.code = Code::lanes_measured_alone, .count = 2};
  if (probe_) return Reason{.code = Code::lanes_tried, .count = lanes()};
  if (kept_ == 0) return std::nullopt;
  Reason found{.code = Code::lanes_unseen, .count = outcome_.lanes};
  if (!outcome_.speedup) return found;
  const double speedup = *outcome_.speedup;
  found.code = kept_ > 1     ? Code::lanes_gain
               : speedup < 1 ? Code::lanes_lost
                             : Code::lanes_gain_little;
  found.percent = percent(found.code == Code::lanes_lost ? 1 - speedup : speedup - 1);
  return found;
}

}  // namespace gpushare
