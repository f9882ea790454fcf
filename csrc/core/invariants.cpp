// The invariants of a scheduler; a broken one is returned in words.
#include "core/scheduler.h"

namespace gpushare {

std::string Scheduler::is_valid() const {
  for (const std::string& broken :
       {lanes_.is_valid(), lanes_agree(), shares_.is_valid(), tuner_.is_valid(), shares_agree(),
        holds_agree(), paging_agrees(), nobody_waits_in_vain()})
    if (!broken.empty()) return broken;
  return "";
}

std::string Scheduler::lanes_agree() const {
  if (numbers_.size() != sessions_.size()) return "a session has no id";
  std::size_t placed = 0;
  for (const auto& [number, session] : sessions_) {
    if (numbers_.at(session.id) != number) return "an id leads to another session";
    if (session.request && session.turn) return "a session waits and runs at once";
    const LaneId lane = lanes_.lane_of(number);
    if (lane == kNoLane) continue;
    ++placed;
    const bool holds = lanes_.holder_of(lane) == number;
    if (holds != session.turn.has_value()) return "a lane is held and its holder does not run";
    if (!session.turn && has_outgrown(number, session)) return "a place has another size";
  }
  return placed == lanes_.size() ? "" : "a session has a place and is not open";
}

std::string Scheduler::shares_agree() const {
  for (const auto& [number, session] : sessions_)
    if (session.share().active > 1 || session.share().running != session.turn.has_value())
      return "a session's turn is counted wrong";
  return "";
}

// A session may have got a turn before it was throttled, and then it was asked to yield.
std::string Scheduler::holds_agree() const {
  for (const auto& [number, session] : sessions_) {
    if (!is_held(session)) continue;
    if (session.turn && !session.turn->asked) return "a session is held back and runs unasked";
    if (session.share().active != session.turn.has_value())
      return "a session is held back and earns credit";
  }
  return "";
}

std::string Scheduler::paging_agrees() const {
  std::vector<const Residency::Memory*> memories;
  for (const auto& [number, session] : sessions_) {
    const std::string broken = paging_agrees(number, session);
    if (!broken.empty()) return broken;
    memories.push_back(&session.memory);
  }
  return residency_.is_valid(memories);
}

std::string Scheduler::paging_agrees(SessionNumber number, const Session& session) const {
  const bool is_used = session.busy || session.request || session.turn;
  if (is_out(session) && lanes_.contains(number)) return "a session is paged out and has a place";
  if (is_out(session) && session.turn) return "a session is paged out and runs";
  if (session.memory.residence() == Residence::out && is_used)
    return "a session is used and does not want to come back";
  const bool works = session.turn || (session.busy && !session.request);
  if (session.memory.residence() == Residence::leaving && works)
    return "a session is used and asked to page out";
  return "";
}

std::string Scheduler::nobody_waits_in_vain() const {
  if (sessions_.empty()) return "";
  if (next_to_admit() != kNobody) return "a session has no place although there is one";
  if (!recovering_ && !who_should_page_out().sessions.empty())
    return "room is needed that others were not asked to make";
  Contest contest = this->contest(now_);
  if (next_to_start(contest)) return "a session waits although it could start";
  for (const Contender& holder : contest.running) {
    const bool asked = holder.session->turn->asked.has_value();
    if (holder.must_end && !asked) return "a session that must end was not asked to yield";
    if (holder.everywhere && contest.running.size() > 1 && !asked)
      return "a session that runs alone runs beside others";
  }
  return "";
}

}  // namespace gpushare
