#include "core/session_table.h"

#include <algorithm>
#include <utility>

namespace gpushare {

Session& SessionTable::add(const std::string& id) {
  numbers_.emplace(id, ++last_number_);
  Session& session = sessions_[last_number_];
  session.number = last_number_;
  session.id = id;
  return session;
}

void SessionTable::remove(const Session& session) {
  const SessionNumber number = session.number;
  squeezable_ -= !session.demand.options.empty();
  numbers_.erase(session.id);
  sessions_.erase(number);
}

void SessionTable::set_demand(Session& session, const Demand& demand) {
  squeezable_ -= !session.demand.options.empty();
  squeezable_ += !demand.options.empty();
  session.demand = demand;
}

const Session* SessionTable::find(SessionNumber number) const {
  const auto found = sessions_.find(number);
  return found == sessions_.end() ? nullptr : &found->second;
}

SessionNumber SessionTable::number_of(const std::string& id) const {
  const auto number = numbers_.find(id);
  if (number == numbers_.end()) throw UnknownSession("no session '" + id + "' is open");
  return number->second;
}

std::string SessionTable::is_valid() const {
  if (numbers_.size() != sessions_.size()) return "a session has no id";
  for (const auto& [number, session] : sessions_) {
    if (session.number != number) return "a session has the number of another one";
    const auto found = numbers_.find(session.id);
    if (found == numbers_.end() || found->second != number) return "an id leads to another session";
  }
  const auto has_options = [](const Session& session) { return !session.demand.options.empty(); };
  if (std::cmp_not_equal(std::ranges::count_if(std::views::values(sessions_), has_options),
                         squeezable_))
    return "the sessions that can be squeezed are counted wrong";
  return "";
}

}  // namespace gpushare
