#include "core/concurrency_tuner.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gpushare {
namespace {

// More than this factor of the weighted speedup is growth. A mix that stays in one lane loses no
// more than that.
constexpr double kGrowth = 1.02;
// The part of the time that probes may cost.
constexpr double kCost = 0.01;
constexpr double kMostBackoff = 16;
// The weighted speedup that is assumed where nothing was measured.
constexpr double kUnseen = 0.5;
// The mean number of running turns from which they count as "at once".
constexpr double kAtOnce = 1.5;
constexpr double kIsFull = 0.9;
// A speed-up in company above this factor means that the workload has changed.
constexpr double kOtherWork = 1.5;

// These are in turns of one quantum, since sessions are seen at their turns' ends.
constexpr double kAlone = 1.5;  // of each, until it is known
constexpr double kRemembered = 16;
constexpr double kTogether = 8;     // until a step is judged
constexpr double kWatched = 16;     // until what is kept is judged again
constexpr double kStepOfEach = 20;  // a step with one lane ends after these for each
constexpr double kStep = 40;        // any other step ends after these
constexpr double kOld = 40;         // measurements older than this are made anew
constexpr double kGone = 8;         // a session that wants nothing for longer is not there
constexpr double kShortestPause = 40;

}  // namespace

std::optional<double> ConcurrencyTuner::Evidence::sum() const {
  if (device <= 0 || at_once() < kAtOnce) return std::nullopt;
  return work / device * at_once();
}

// --- what is seen --------------------------------------------------------------------------------

// A report that has no iterations comes from the middle of one.
void ConcurrencyTuner::report(Seconds now, SessionNumber session, std::int64_t iterations,
                              Seconds seconds) {
  pass(now);
  const auto found = workers_.find(session);
  if (found == workers_.end()) return;
  Worker& worker = found->second;
  worker.unreported += seconds;
  if (iterations == 0) return;
  const Seconds took = std::exchange(worker.unreported, 0);
  if (worker.reported >= shared_)
    count_alone(worker, static_cast<double>(iterations), took);
  else if (is_settled_ && worker.reported >= since_)
    count_together(session, worker, static_cast<double>(iterations), took);
  worker.reported = now;
}

// Counts what it did since its last report while no other session ran. Half is forgotten again and
// again.
void ConcurrencyTuner::count_alone(Worker& worker, double iterations, Seconds seconds) {
  if (seconds <= 0) return;
  if (worker.seen < since_ - turns(kOld)) worker.iterations = worker.seconds = 0;
  if (worker.seconds >= turns(kRemembered)) {
    worker.iterations /= 2;
    worker.seconds /= 2;
  }
  worker.iterations += iterations;
  worker.seconds += seconds;
  worker.seen = now_;
}

// No session is much faster in company than alone: then it does something else than before.
void ConcurrencyTuner::count_together(SessionNumber session, Worker& worker, double iterations,
                                      Seconds seconds) {
  if (!is_known(worker) || seconds <= 0) return;
  const Seconds work = iterations * worker.iteration();
  if (work > kOtherWork * seconds) {
    worker.iterations = worker.seconds = 0;
    probed_.erase(session);
    return;
  }
  evidence_.work += work;
  evidence_.device += seconds;
}

bool ConcurrencyTuner::is_known(const Worker& worker) const {
  return worker.iterations >= 2 && worker.seconds >= turns(kAlone);
}

bool ConcurrencyTuner::is_known_anew(const Worker& worker) const {
  return is_known(worker) && worker.seen >= since_ - turns(kOld);
}

// Reports must cover half of the time of turns.
bool ConcurrencyTuner::is_enough() const {
  return evidence_.time >= turns(kTogether) && evidence_.device >= evidence_.running / 2;
}

void ConcurrencyTuner::runs(Seconds now, int running) {
  pass(now);
  running_ = running;
  if (running > 1) shared_ = now_;
  if (is_settled_ || running > lanes_) return;
  is_settled_ = true;
  since_ = now_;
  evidence_ = {};
}

void ConcurrencyTuner::pass(Seconds now) {
  if (running_ > 0 && is_settled_) {
    evidence_.running += running_ * (now - now_);
    evidence_.time += now - now_;
  }
  if (running_ > 1) shared_ = now;
  now_ = now;
}

// --- what follows --------------------------------------------------------------------------------

void ConcurrencyTuner::follow(Seconds now, const std::vector<SessionNumber>& wanting) {
  pass(now);
  find_mix(wanting);
  if (mix_.size() < 2) {
    if (probe_) break_off();
  } else if (probe_) {
    follow_probe();
  } else if (now >= due()) {
    begin_probe();
  } else if (lanes_ > 1) {
    watch();
  }
}

// Between two turns a session wants nothing for a moment.
void ConcurrencyTuner::find_mix(const std::vector<SessionNumber>& wanting) {
  for (const SessionNumber session : wanting_)
    if (const auto worker = workers_.find(session); worker != workers_.end())
      worker->second.wanted = now_;
  wanting_ = wanting;
  for (const SessionNumber session : wanting)
    workers_.try_emplace(session, Worker{.reported = now_}).first->second.wanted = now_;
  mix_.clear();
  for (const auto& [session, worker] : workers_)
    if (worker.wanted >= now_ - turns(kGone)) mix_.insert(session);
}

void ConcurrencyTuner::set_lanes(int lanes) {
  if (lanes == lanes_) return;
  lanes_ = lanes;
  since_ = now_;
  is_settled_ = false;
}

void ConcurrencyTuner::begin_probe() {
  probe_ = Probe{now_};
  set_lanes(1);
  follow_probe();
}

void ConcurrencyTuner::follow_probe() {
  if (lanes_ > 1) return judge();
  if (!has_met_all() && now_ < end_of_step()) return;
  end_step(1);
  const bool is_any_known = std::ranges::any_of(
      mix_, [&](SessionNumber session) { return is_known(workers_.at(session)); });
  if (!is_any_known) outcome_ = {2, std::nullopt};
  is_any_known ? climb(2) : end_probe();
}

bool ConcurrencyTuner::has_met_all() const {
  return is_settled_ && std::ranges::all_of(mix_, [&](SessionNumber session) {
           return is_known_anew(workers_.at(session));
         });
}

void ConcurrencyTuner::judge() {
  if (!is_enough() && now_ < end_of_step()) return;
  const std::optional<double> sum = evidence_.sum();
  const double at_once = evidence_.at_once();
  const bool has_grown = sum && *sum >= kGrowth * *probe_->best.sum;
  end_step(sum.value_or(at_once < kAtOnce ? 1 : kUnseen));
  if (has_grown || lanes_ == 2) outcome_ = {lanes_, sum};
  if (has_grown) probe_->best = {lanes_, sum};
  const int more = std::min(2 * lanes_, static_cast<int>(mix_.size()));
  const bool goes_on = has_grown && more > lanes_ && at_once >= kIsFull * lanes_;
  goes_on ? climb(more) : end_probe();
}

void ConcurrencyTuner::climb(int lanes) {
  probe_->since = now_;
  set_lanes(lanes);
}

void ConcurrencyTuner::end_step(double sum) {
  probe_->steps.push_back({now_ - probe_->since, sum});
}

void ConcurrencyTuner::end_probe() {
  const Outcome best = probe_->best;
  const bool is_as_before = probed_ == mix_ && kept_ == best.lanes;
  backoff_ = is_as_before ? std::min(2 * backoff_, kMostBackoff) : 1;
  probed_ = mix_;
  rest(std::max(cost_of_steps(*best.sum), kCost * turns(kShortestPause)));
  kept_ = best.lanes;
  set_lanes(kept_);
}

// The sessions with which the probe began are gone.
void ConcurrencyTuner::break_off() {
  end_step(lanes_ == 1 ? 1 : kUnseen);
  rest(cost_of_steps(sum_kept()));
  set_lanes(std::max(1, kept_));
}

Seconds ConcurrencyTuner::cost_of_steps(double best) const {
  Seconds cost = 0;
  for (const Step& step : probe_->steps) cost += step.time * std::max(0.0, 1 - step.sum / best);
  return cost;
}

void ConcurrencyTuner::rest(Seconds cost) {
  probe_.reset();
  rested_ = now_;
  pause_ = cost / kCost;
}

// What others do on the machine changes too, so nothing is closed for good before each of them was
// measured anew. An outcome that was found again and again is trusted longer.
void ConcurrencyTuner::watch() {
  if (evidence_.time < turns(kWatched) * backoff_ || !is_enough()) return;
  const Evidence seen = std::exchange(evidence_, {});
  if (!seen.sum()) return;
  outcome_.sum = seen.sum();
  if (*outcome_.sum < 1) begin_probe();
}

Seconds ConcurrencyTuner::end_of_step() const {
  const double each = lanes_ > 1 ? kStep : kStepOfEach * static_cast<double>(mix_.size());
  return probe_->since + turns(each);
}

Seconds ConcurrencyTuner::due() const {
  return rested_ + pause_ * (mix_ == probed_ ? backoff_ : 1);
}

std::optional<Seconds> ConcurrencyTuner::next_event() const {
  if (mix_.size() < 2) return std::nullopt;
  return probe_ ? end_of_step() : due();
}

std::string ConcurrencyTuner::is_valid() const {
  if (lanes_ < 1 || running_ < 0) return "less than one lane may run";
  if (!probe_ && lanes_ != std::max(1, kept_)) return "other lanes may run than were kept";
  for (const SessionNumber session : mix_)
    if (!workers_.contains(session)) return "nothing is known of a session in the mix";
  return "";
}

std::optional<Reason> ConcurrencyTuner::finding() const {
  const auto percent = [](double part) { return std::lround(100 * part); };
  if (probe_ && lanes_ == 1) return Reason{.code = Code::lanes_measured_alone, .count = 2};
  if (probe_) return Reason{.code = Code::lanes_tried, .count = lanes_};
  if (kept_ == 0) return std::nullopt;
  Reason found{.code = Code::lanes_unseen, .count = outcome_.lanes};
  if (!outcome_.sum) return found;
  const double sum = *outcome_.sum;
  found.code = kept_ > 1 ? Code::lanes_gain : sum < 1 ? Code::lanes_lost : Code::lanes_gain_little;
  found.percent = percent(found.code == Code::lanes_lost ? 1 - sum : sum - 1);
  return found;
}

}  // namespace gpushare
