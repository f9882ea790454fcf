#include "core/view/longest_wait.h"

#include <algorithm>
#include <utility>

#include "core/pass/admission.h"
#include "core/pass/run_queue.h"

namespace gpushare {

LongestWait::LongestWait(const DeviceState& state, Seconds now, Seconds horizon)
    : state_(state),
      now_(now),
      horizon_(horizon),
      all_(state_.shares.root()),
      clocks_(state_.shares.clocks_below(now)) {
  for (const Session& session : state_.sessions) add(session);
  for (const auto& [group, users] : groups_) {
    entries_[all_].add(group, entry(*group, all_));
    for (const auto& [user, others] : users) {
      entries_[group].add(user, entry(*user, group));
      for (const Other& other : others)
        entries_[user].add(other.session->shares.back(), other.view.clock);
    }
  }
}

void LongestWait::Entries::add(const Node* node, const Faded& entry) {
  if (!first || entry < *first) {
    second = std::exchange(first, entry);
    of_first = node;
  } else
    second = std::min(second.value_or(entry), entry);
}

// A session that waits in its cell ends the cell only after it had a turn.
void LongestWait::add(const Session& session) {
  const bool may_begin = !session.request || !session.share().active;
  const Seconds in_cell = session.device_seconds - session.before_cell;
  const Seconds longest = iteration(session);
  const auto [group, user, own] = session.shares;
  groups_[group][user].push_back({
      .session = &session,
      .view = view(session),
      .turn = longest,
      .has = left_of_turn(session, longest),
      .asked = session.turn && session.turn->asked,
      .may_begin = may_begin || !has_begun(session),
      .may_boost = state_.policy->boosts && (may_begin || in_cell < state_.rules.boost),
  });
}

Candidate LongestWait::view(const Session& session) const {
  Candidate view = candidate(state_, session, now_);
  view.clock = entry(*session.shares[2], session.shares[1]);
  if (session.turn || session.request) return view;
  view.order = view.queue_order = state_.last_order + 1;
  return view;
}

bool LongestWait::has_begun(const Session& session) {
  return session.turn || session.device_seconds > session.before_cell;
}

// Its longest iteration, from its grant on. A gang is not asked to yield one of its devices.
Seconds LongestWait::iteration(const Session& session) const {
  const auto worst = session.pace.worst();
  if (!worst || session.alone) return kNever;
  const bool needs_room = waits(session) && !state_.has_place(session);
  if (needs_room && state_.evicts_waiting() &&
      Admission::ages_at(state_, session) <= now_ + horizon_)
    return kNever;  // sessions behind it may have to page out for it
  return pages_in(session) + *worst;
}

Seconds LongestWait::pages_in(const Session& session) const {
  if (!is_out(session)) return std::max(0.0, state_.is_in_by(session).value_or(kNever) - now_);
  return state_.residency.takes(session.memory.paged_out_bytes()).value_or(kNever);
}

// The rest of its turn, or of the turn that it was promised.
Seconds LongestWait::left_of_turn(const Session& session, Seconds longest) const {
  if (!session.turn) return state_.is_promised(session) ? state_.quantum() + longest : 0;
  if (longest == kNever) return kNever;
  const auto& turn = *session.turn;
  const Seconds asked = turn.asked.value_or(std::max(now_, turn.since + state_.quantum()));
  const Seconds latest =
      session.pace.latest(std::max(0.0, asked - turn.boundary), *session.pace.worst());
  return std::max(0.0, turn.boundary + latest - now_);
}

// The lowest clock that it has while it waits, now or once it begins to.
Faded LongestWait::entry(const Node& node, const Node* above) const {
  const Share& share = node.share;
  const Faded own = state_.shares.clock(share, now_);
  const auto peers = clocks_.find(above);
  if (share.active > 0 || peers == clocks_.end() || !peers->second.lowest) return own;
  const Faded as_if_run = own + (now_ - share.idle_since) / share.weight;
  return std::max(own, std::min(*peers->second.lowest, as_if_run));
}

// --- one that waits ------------------------------------------------------------------------------

Seconds LongestWait::of(const Session& session) const {
  if (const auto promised = promised_in(session)) return *promised;
  if (const auto first = of_first_turn(session)) return *first;
  const Waiting waiting{&session, view(session), state_.quantum(), state_.rules.boost, false};
  const Seconds in_user = by_sessions(waiting);
  const Seconds in_group = in_user + by_users(waiting, in_user);
  return in_group + by_groups(waiting, in_group);
}

// Present if a holder has named the session as its successor, which then is next whatever happens.
std::optional<Seconds> LongestWait::promised_in(const Session& session) const {
  for (const Session& holder : state_.sessions)
    if (holder.turn && state_.promises(*holder.turn, session, now_))
      return left_of_turn(holder, iteration(holder));
  return std::nullopt;
}

// The first turn of a cell goes before all turns but other first ones, and holders are asked to
// yield for it at once. What others of its user have before it must not take it too far ahead for
// that.
std::optional<Seconds> LongestWait::of_first_turn(const Session& session) const {
  if (!state_.policy->boosts || has_begun(session)) return std::nullopt;
  const Waiting waiting{&session, view(session), 0, 0, true};
  const auto [group, user, own] = session.shares;
  const Seconds in_user = by_sessions(waiting);
  const Seconds in_group = in_user + by_users(waiting, in_user);
  const bool stays_first = is_boosted(*own, user, 0) && is_boosted(*user, group, in_user) &&
                           is_boosted(*group, all_, in_group);
  return stays_first ? std::optional(in_group + by_groups(waiting, in_group)) : std::nullopt;
}

// Whether it stays boosted once others below it were served `before`.
bool LongestWait::is_boosted(const Node& node, const Node* above, Seconds before) const {
  const Share& share = node.share;
  const auto& entries = entries_.at(above);
  const auto lowest = entries.of_first == &node ? entries.second : entries.first;
  if (!lowest) return true;
  const Seconds ahead = state_.shares.clock(share, now_) + before / share.weight - *lowest;
  return ahead * share.weight < state_.rules.boost;
}

Seconds LongestWait::by_sessions(const Waiting& waiting) const {
  const Session& own = *waiting.session;
  Seconds all = 0;
  for (const Other& other : groups_.at(own.shares[0]).at(own.shares[1]))
    if (other.session != &own)
      all += served(waiting, part_of({&other, 1}, waiting), room(other, waiting.view));
  return all;
}

Seconds LongestWait::by_users(const Waiting& waiting, Seconds before) const {
  const Node* group = waiting.session->shares[0];
  const Node* own = waiting.session->shares[1];
  Seconds all = 0;
  for (const auto& [node, others] : groups_.at(group))
    if (node != own)
      all += served(waiting, part_of(others, waiting), room(*node, *own, group, before));
  return all;
}

Seconds LongestWait::by_groups(const Waiting& waiting, Seconds before) const {
  const Node* own = waiting.session->shares[0];
  Seconds all = 0;
  for (const auto& [node, users] : groups_) {
    if (node == own) continue;
    Part part;
    for (const auto& [user, others] : users) part.add(part_of(others, waiting));
    all += served(waiting, part, room(*node, *own, all_, before));
  }
  return all;
}

// --- what others may do --------------------------------------------------------------------------

// How long it may be served before the waiting session, without its last turn; below 0: not at all.
// Declared work ends with its cell, and then the session is considered with a new cell. Under a
// policy by remaining work, one that declares may begin any number of cells that declare less.
Seconds LongestWait::room(const Other& other, const Candidate& waiting) const {
  const Session& session = *other.session;
  const auto lead = [&](const Candidate& view, bool goes) {
    const Seconds lead = state_.policy->lead(view, waiting, state_.quantum());
    return goes ? std::max(0.0, lead) : std::min(lead, -kSoon);
  };
  const bool goes_on = session.turn && !other.asked;
  const bool goes = goes_on || may_go_before(other.view, waiting);
  const Seconds now = std::min(declared(session), lead(other.view, goes));
  if (!goes && session.request) return now;
  if (state_.policy->by_remaining && session.remaining_iterations) return kNever;
  const Candidate anew = in_new_cell(other);
  return std::max(now, lead(anew, may_go_before(anew, waiting)));
}

Candidate LongestWait::in_new_cell(const Other& other) const {
  Candidate view = other.view;
  view.remaining.reset();
  if (!other.session->turn) return view;
  view.queued = 0;
  view.order = view.queue_order = state_.last_order + 1;
  return view;
}

// The time that its declared work takes at most.
Seconds LongestWait::declared(const Session& session) {
  const auto left = session.remaining_iterations.value_or(0);
  const auto worst = session.pace.worst();
  return left > 0 && worst ? static_cast<double>(left) * *worst : kNever;
}

// Whether it goes first now, or after both have waited until the horizon.
bool LongestWait::may_go_before(Candidate other, Candidate waiting) const {
  const Policy& policy = *state_.policy;
  if (policy.before(other, waiting)) return true;
  other.queued += horizon_;
  waiting.queued += horizon_;
  return policy.before(other, waiting);
}

// The time until its clock has passed that of `own`, below which others are served `before`; below
// 0: it has passed.
Seconds LongestWait::room(const Node& node, const Node& own, const Node* above,
                          Seconds before) const {
  const Faded clock = state_.shares.clock(own.share, now_) + before / own.share.weight;
  return (clock - entry(node, above)) * node.share.weight;
}

LongestWait::Part LongestWait::part_of(std::span<const Other> others, const Waiting& waiting) {
  const int priority = waiting.session->priority;
  Part part;
  for (const Other& other : others) {
    const Session& session = *other.session;
    (other.asked ? part.asked : part.has) += other.has;
    if (session.paused || is_throttled(session) || session.priority < priority) continue;
    if (waiting.is_first && session.priority == priority && !other.may_begin) continue;
    part.runs = true;
    part.goes_first = part.goes_first || session.priority > priority;
    part.turn = std::max(part.turn, other.turn);
    if (!other.may_boost) continue;
    part.may_boost = true;
    part.boosted_turn = std::max(part.boosted_turn, other.turn);
  }
  return part;
}

void LongestWait::Part::add(const Part& other) {
  runs = runs || other.runs;
  goes_first = goes_first || other.goes_first;
  may_boost = may_boost || other.may_boost;
  turn = std::max(turn, other.turn);
  boosted_turn = std::max(boosted_turn, other.boosted_turn);
  asked += other.asked;
  has += other.has;
}

// The time that they are served, if their clocks have `room`.
Seconds LongestWait::served(const Waiting& waiting, const Part& part, Seconds room) const {
  if (part.goes_first) return kNever;
  const Seconds has = part.asked + part.has;
  const Seconds boosted = part.may_boost ? room + waiting.boost : room;
  if (!part.runs || boosted < 0) return has;
  if (room < 0) return has + boosted + waiting.quantum + part.boosted_turn;
  return (state_.limit() == 1 ? part.asked : has) + boosted + waiting.quantum + part.turn;
}

}  // namespace gpushare
