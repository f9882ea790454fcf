#include "core/device/session_table.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace gpushare {
namespace {

SessionNumber number_in(const std::unique_ptr<Session>& session) { return session->number; }

}  // namespace

SessionTable::SessionTable(const SessionTable& other)
    : numbers_(other.numbers_), last_number_(other.last_number_), squeezable_(other.squeezable_) {
  sessions_.reserve(other.size());
  for (const Session& session : other) sessions_.push_back(std::make_unique<Session>(session));
}

Session& SessionTable::add(const std::string& id) {
  Session& session = *sessions_.emplace_back(std::make_unique<Session>());
  session.number = ++last_number_;
  session.id = id;
  numbers_.emplace(id, last_number_);
  return session;
}

void SessionTable::remove(const Session& session) {
  squeezable_ -= !session.demand.options.empty();
  numbers_.erase(session.id);
  sessions_.erase(sessions_.begin() + static_cast<std::ptrdiff_t>(index_of(session.number)));
}

void SessionTable::set_demand(Session& session, const Demand& demand) {
  squeezable_ -= !session.demand.options.empty();
  squeezable_ += !demand.options.empty();
  session.demand = demand;
}

const Session* SessionTable::find(SessionNumber number) const {
  const std::size_t index = index_of(number);
  return index == size() ? nullptr : sessions_[index].get();
}

SessionNumber SessionTable::number_of(const std::string& id) const {
  const auto number = numbers_.find(id);
  if (number == numbers_.end()) throw UnknownSession("no session '" + id + "' is open");
  return number->second;
}

std::size_t SessionTable::index_of(SessionNumber number) const {
  const auto found = std::ranges::lower_bound(sessions_, number, {}, number_in);
  if (found == sessions_.end() || number_in(*found) != number) return size();
  return static_cast<std::size_t>(found - sessions_.begin());
}

std::string SessionTable::is_valid() const {
  if (numbers_.size() != size()) return "a session has no id";
  if (std::ranges::adjacent_find(sessions_, std::ranges::greater_equal{}, number_in) !=
      sessions_.end())
    return "sessions are not in the order of their numbers";
  for (const Session& session : *this) {
    const auto found = numbers_.find(session.id);
    if (found == numbers_.end() || found->second != session.number)
      return "an id leads to another session";
  }
  const auto has_options = [](const Session& session) { return !session.demand.options.empty(); };
  if (std::cmp_not_equal(std::ranges::count_if(*this, has_options), squeezable_))
    return "the sessions that can be squeezed are counted wrong";
  return "";
}

}  // namespace gpushare
