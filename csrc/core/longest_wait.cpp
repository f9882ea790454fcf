#include "core/longest_wait.h"

#include <algorithm>

namespace gpushare {

LongestWait::LongestWait(const Scheduler& scheduler, Seconds now, Seconds horizon)
    : it_(scheduler), now_(now), horizon_(horizon), clocks_(scheduler.clocks_below(now)) {
  for (const auto& [number, session] : it_.sessions_) add(number, session);
}

// Who is paused or held back ends the turn that it has, and has no other.
void LongestWait::add(SessionNumber number, const Session& session) {
  const Seconds longest = turn(number, session);
  Other other{&session, view(session), longest, left_of_turn(number, session, longest),
              false,    false};
  other.asked = session.turn && session.turn->asked;
  const Seconds in_cell = session.device_seconds - session.before_cell;
  const bool may_be_new = !session.request || !session.share.active;
  other.may_boost = it_.policy_->boosts && (may_be_new || in_cell < it_.rules_.boost);
  groups_[&session.group->second.share][&session.user->second.share].push_back(other);
}

Candidate LongestWait::view(const Session& session) const {
  Candidate view = it_.candidate(session, now_);
  view.clock = entry(session.share, &session.user->second.share);
  if (session.turn || session.request) return view;
  view.order = view.queue_order = it_.last_order_ + 1;
  return view;
}

// From its grant on. One that has several devices is not asked for one of them.
Seconds LongestWait::turn(SessionNumber number, const Session& session) const {
  const auto worst = session.pace.worst();
  if (!worst || session.alone) return kNever;
  const bool needs_room = Scheduler::waits(session) && !it_.lanes_.contains(number);
  if (needs_room && it_.all_make_way() && it_.loses_patience_at(session) <= now_ + horizon_)
    return kNever;  // those behind it may have to make way for it
  return pages_in(session) + it_.quantum() + *worst;
}

Seconds LongestWait::pages_in(const Session& session) const {
  if (!it_.is_out(session)) return std::max(0.0, it_.is_in_by(session).value_or(kNever) - now_);
  return it_.paging_rate_ ? static_cast<double>(session.paged_out_bytes) / *it_.paging_rate_
                          : kNever;
}

Seconds LongestWait::left_of_turn(SessionNumber number, const Session& session,
                                  Seconds turn) const {
  if (!session.turn) return it_.is_promised(number, session) ? turn : 0;
  if (turn == kNever) return kNever;
  const auto& own = *session.turn;
  const Seconds asked = own.asked.value_or(std::max(now_, own.since + it_.quantum()));
  const Seconds latest =
      session.pace.latest(std::max(0.0, asked - own.boundary), *session.pace.worst());
  return std::max(0.0, own.boundary + latest - now_);
}

// The lowest clock with which it waits, now or once it begins to.
Faded LongestWait::entry(const Share& share, const Share* above) const {
  const Faded own = it_.clock(share, now_);
  const auto peers = clocks_.find(above);
  if (share.active > 0 || peers == clocks_.end() || !peers->second.lowest) return own;
  const Faded as_if_run = own + (now_ - share.idle_since) / share.weight;
  return std::max(own, std::min(*peers->second.lowest, as_if_run));
}

Seconds LongestWait::of(SessionNumber number) const {
  const Session& waiting = it_.sessions_.at(number);
  if (const auto promised = promised_in(number)) return *promised;
  const Seconds in_user = by_sessions(waiting);
  const Seconds in_group = in_user + by_users(waiting, in_user);
  return in_group + by_groups(waiting, in_group);
}

Seconds LongestWait::by_sessions(const Session& waiting) const {
  const Candidate of_waiting = view(waiting);
  Seconds all = 0;
  for (const Other& other :
       groups_.at(&waiting.group->second.share).at(&waiting.user->second.share))
    if (other.session != &waiting)
      all += served(part_of({&other, 1}, waiting.priority), room(other, of_waiting));
  return all;
}

Seconds LongestWait::by_users(const Session& waiting, Seconds before) const {
  const Share *group = &waiting.group->second.share, *own = &waiting.user->second.share;
  Seconds all = 0;
  for (const auto& [share, others] : groups_.at(group))
    if (share != own)
      all += served(part_of(others, waiting.priority), room(*share, *own, group, before));
  return all;
}

Seconds LongestWait::by_groups(const Session& waiting, Seconds before) const {
  const Share* own = &waiting.group->second.share;
  Seconds all = 0;
  for (const auto& [share, users] : groups_) {
    if (share == own) continue;
    Part part;
    for (const auto& [user, others] : users) part.add(part_of(others, waiting.priority));
    all += served(part, room(*share, *own, nullptr, before));
  }
  return all;
}

// Whoever holds its turn has named it as the next one, whatever happens.
std::optional<Seconds> LongestWait::promised_in(SessionNumber number) const {
  const Session& session = it_.sessions_.at(number);
  for (const auto& [other, holder] : it_.sessions_)
    if (holder.turn && it_.promises(*holder.turn, {number, session.request->number}, now_))
      return left_of_turn(other, holder, turn(other, holder));
  return std::nullopt;
}

// How long it may be served before the one that waits, its last turn aside; below 0: not at all.
// What it has declared ends with its cell, and then it comes as one with a new one.
Seconds LongestWait::room(const Other& other, const Candidate& waiting) const {
  const Policy& policy = *it_.policy_;
  const Session& session = *other.session;
  const auto lead = [&](const Candidate& view, bool goes) {
    const Seconds lead = policy.lead(view, waiting, it_.quantum());
    return goes ? std::max(0.0, lead) : std::min(lead, -kSoon);
  };
  const bool goes_on = session.turn && !other.asked;
  const bool goes = goes_on || may_go_before(other.view, waiting);
  const Seconds now = std::min(declared(session), lead(other.view, goes));
  if (!goes && session.request) return now;
  Candidate anew = other.view;
  anew.remaining.reset();
  if (session.turn) {
    anew.queued = 0;
    anew.order = anew.queue_order = it_.last_order_ + 1;
  }
  return std::max(now, lead(anew, may_go_before(anew, waiting)));
}

// What it has declared takes at most so long.
Seconds LongestWait::declared(const Session& session) {
  const auto left = session.remaining_iterations.value_or(0);
  const auto worst = session.pace.worst();
  return left > 0 && worst ? static_cast<double>(left) * *worst : kNever;
}

// Now, or after both have waited until the horizon.
bool LongestWait::may_go_before(Candidate other, Candidate waiting) const {
  const Policy& policy = *it_.policy_;
  if (policy.before(other, waiting)) return true;
  other.queued += horizon_;
  waiting.queued += horizon_;
  return policy.before(other, waiting);
}

// Until its clock has passed that of `own`, below which others are served `before`; below 0: it
// has.
Seconds LongestWait::room(const Share& share, const Share& own, const Share* above,
                          Seconds before) const {
  const Faded clock = it_.clock(own, now_) + before / own.weight;
  return (clock - entry(share, above)) * share.weight;
}

LongestWait::Part LongestWait::part_of(std::span<const Other> others, int priority) {
  Part part;
  for (const Other& other : others) {
    const Session& session = *other.session;
    (other.asked ? part.asked : part.has) += other.has;
    if (session.paused || Scheduler::is_held(session) || session.priority < priority) continue;
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

// So long, if their clocks have so much room.
Seconds LongestWait::served(const Part& part, Seconds room) const {
  if (part.goes_first) return kNever;
  const Seconds has = part.asked + part.has;
  const Seconds boosted = part.may_boost ? room + it_.rules_.boost : room;
  if (!part.runs || boosted < 0) return has;
  if (room < 0) return has + boosted + part.boosted_turn;
  return (it_.limit() == 1 ? part.asked : has) + boosted + part.turn;
}

}  // namespace gpushare
