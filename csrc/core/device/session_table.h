// The sessions that are open on one device, by number and by id.
//
// Every pass goes over all of them several times, so they are reached through one array, in the
// order in which they opened; each stays where it is in memory for as long as it is open.
//
// Invariants, which is_valid() checks: sessions are in the order of their numbers, each is
// found by its id, and those that can be squeezed are counted, so that most passes need not look at
// each session for that: with 1,000 sessions this would take a fifth of their time.
#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/device/session.h"
#include "core/model/types.h"

namespace gpushare {

class SessionTable {
  using Sessions = std::vector<std::unique_ptr<Session>>;

  template <class Seen>  // Session, or const Session
  class Iterator {
   public:
    using value_type = Session;
    using difference_type = std::ptrdiff_t;

    Iterator() = default;
    explicit Iterator(Sessions::const_iterator at) : at_(at) {}

    Seen& operator*() const { return **at_; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) { return Iterator(at_++); }
    bool operator==(const Iterator&) const = default;

   private:
    Sessions::const_iterator at_{};
  };

 public:
  SessionTable() = default;
  SessionTable(const SessionTable& other);  // which has sessions of its own
  SessionTable& operator=(const SessionTable&) = delete;

  // The new session has its number and id, and nothing else. The id must not be open.
  Session& add(const std::string& id);
  void remove(const Session& session);
  // All changes of a demand pass here.
  void set_demand(Session& session, const Demand& demand);

  bool contains(const std::string& id) const { return numbers_.contains(id); }
  // Both raise UnknownSession.
  const Session& of(const std::string& id) const { return at(number_of(id)); }
  Session& of(const std::string& id) { return at(number_of(id)); }
  // Both raise std::out_of_range.
  const Session& at(SessionNumber number) const { return *sessions_.at(index_of(number)); }
  Session& at(SessionNumber number) { return *sessions_.at(index_of(number)); }
  const Session* find(SessionNumber number) const;  // nullptr: it is not open

  // Iterates in the order in which the sessions opened.
  auto begin() const { return Iterator<const Session>(sessions_.begin()); }
  auto end() const { return Iterator<const Session>(sessions_.end()); }
  auto begin() { return Iterator<Session>(sessions_.begin()); }
  auto end() { return Iterator<Session>(sessions_.end()); }
  std::size_t size() const { return sessions_.size(); }
  bool empty() const { return sessions_.empty(); }

  bool can_squeeze() const { return squeezable_ > 0; }

  std::string is_valid() const;  // empty, or the first broken invariant in words

 private:
  SessionNumber number_of(const std::string& id) const;
  std::size_t index_of(SessionNumber number) const;  // size(): it is not open

  Sessions sessions_;
  std::unordered_map<std::string, SessionNumber> numbers_;
  SessionNumber last_number_ = kNoSession;
  std::size_t squeezable_ = 0;  // sessions with options
};

}  // namespace gpushare
