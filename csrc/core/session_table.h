// The sessions that are open on one device, by number and by id.
//
// What must stay true, and is_valid() looks at: each session is found by its number and by its id,
// and those that can be squeezed are counted, so that most passes need not look at each session for
// that: with 1,000 sessions this would take a fifth of their time.
#pragma once

#include <map>
#include <ranges>
#include <string>
#include <unordered_map>

#include "core/session.h"
#include "core/types.h"

namespace gpushare {

class SessionTable {
 public:
  // The new session has its number and id, and nothing else. The id must not be open.
  Session& add(const std::string& id);
  void remove(const Session& session);
  // All changes of a demand pass here.
  void set_demand(Session& session, const Demand& demand);

  bool contains(const std::string& id) const { return numbers_.contains(id); }
  // Both raise UnknownSession.
  const Session& of(const std::string& id) const { return sessions_.at(number_of(id)); }
  Session& of(const std::string& id) { return sessions_.at(number_of(id)); }
  const Session& at(SessionNumber number) const { return sessions_.at(number); }
  Session& at(SessionNumber number) { return sessions_.at(number); }
  const Session* find(SessionNumber number) const;  // nullptr: it is not open

  // In the order in which they opened.
  auto begin() const { return std::views::values(sessions_).begin(); }
  auto end() const { return std::views::values(sessions_).end(); }
  auto begin() { return std::views::values(sessions_).begin(); }
  auto end() { return std::views::values(sessions_).end(); }
  std::size_t size() const { return sessions_.size(); }
  bool empty() const { return sessions_.empty(); }

  bool can_squeeze() const { return squeezable_ > 0; }

  std::string is_valid() const;  // empty, or the first broken invariant in words

 private:
  SessionNumber number_of(const std::string& id) const;

  std::map<SessionNumber, Session> sessions_;
  std::unordered_map<std::string, SessionNumber> numbers_;
  SessionNumber last_number_ = kNoSession;
  std::size_t squeezable_ = 0;  // sessions with options
};

}  // namespace gpushare
