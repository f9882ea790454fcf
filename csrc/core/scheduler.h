// Decides which sessions have a turn on one device.
//
// Events go in with their time, grants and yields come out. Every event changes what is known and
// then ends in the same pass, assign(): it admits the sessions that memory allows, grants free
// lanes to the best waiting sessions, asks holders to yield whose turn should end, and asks idle
// sessions to page out where a session that waits for memory then fits. A crash is a close and
// takes no other path. What can be derived is derived anew in each pass.
//
// What must stay true, and is_valid() looks at:
//   - the safety rule of lane_allocator.h, over all sessions that have a place, and that these use
//     no more than unmanaged memory leaves, or than they did when that became less;
//   - a lane is held by one session at most, and only by one that runs;
//   - a session that runs alone (its memory is unknown) is granted only when nothing else runs,
//     and nothing is granted while it runs;
//   - no session waits that could start, and none is without a place that fits;
//   - a throttled session is granted nothing, and was asked to yield if it runs;
//   - a session that is paged out has no place and no turn, and one that is asked to page out has
//     no turn, and runs no cell or waits in it;
//   - no session waits for memory that others should page out without their being asked, and no
//     idle session stays unasked for which unmanaged memory leaves no room.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/concurrency_tuner.h"
#include "core/fair_shares.h"
#include "core/lane_allocator.h"
#include "core/policy.h"
#include "core/residency.h"
#include "core/session.h"
#include "core/types.h"

namespace gpushare {

// Closer than this counts as now: times are sums of floating point numbers, and a next_event that
// lies a rounding error ahead would be asked for again and again.
inline constexpr Seconds kSoon = 1e-6;

class Scheduler {
 public:
  Scheduler(Bytes capacity, std::string_view policy, const Rules& rules);
  Scheduler(Scheduler&&) = default;
  Scheduler& operator=(Scheduler&&) = default;

  // A session that is open already is replaced, so that a repeated open is harmless.
  Decision open(Seconds now, const std::string& id, const SessionSpec& spec);
  Decision close(Seconds now, const std::string& id);
  // Harmless if this turn waits or runs already.
  Decision request(Seconds now, const std::string& id, TurnNumber turn);
  // The turn is over; if it was not granted yet, the request is withdrawn. A turn that is neither
  // is stale and ignored.
  Decision finish(Seconds now, const std::string& id, TurnNumber turn);
  // `iterations` since the last report. A demand that has grown too large for now costs the session
  // its place, never a neighbour anything; one that can never fit is refused.
  Decision report(Seconds now, const std::string& id, std::int64_t iterations, const Demand& demand,
                  std::optional<std::int64_t> remaining_iterations);
  Decision change(Seconds now, const std::string& id, std::optional<double> weight,
                  std::optional<int> priority, std::optional<bool> paused);
  // paging.cpp. A session is busy while a cell runs in it. One that becomes busy while it is paged
  // out waits for room to come back; one that ceases to be does not want to any more.
  Decision set_busy(Seconds now, const std::string& id, bool busy);
  // Its persistent memory is on disk, so it has no place any more. A session that has come to need
  // it meanwhile waits to come back at once.
  Decision paged_out(Seconds now, const std::string& id, Bytes bytes);
  // The session stays, and is not asked again before it has been busy. `why` is shown to sessions
  // of its user that wait for its memory.
  Decision page_out_failed(Seconds now, const std::string& id, const std::string& why = "");
  // Explicit requests, whether its time is over or not. Both throw std::invalid_argument where
  // there is nothing to ask: for a session that does not run, and for one that runs a cell or is
  // out already.
  Decision recall(Seconds now, const std::string& id);
  Decision dismiss(Seconds now, const std::string& id);  // paging.cpp: asked to page out
  // Sets the throttled sessions, with one sentence each for people. One that runs is asked to
  // yield; one that waits is granted nothing, is not admitted and delays no other session, and
  // begins to wait anew once it is not throttled any more.
  Decision hold_back(Seconds now, const std::map<std::string, std::string>& sentences);
  // Weights of groups and users by name, from now on; an absent name has 1.
  Decision set_shares(Seconds now, const std::map<std::string, double>& groups,
                      const std::map<std::string, double>& users);
  Decision set_policy(Seconds now, std::string_view name);
  Decision set_running_lanes(Seconds now, int lanes);
  // Sets the unmanaged memory, used by programs that are not sessions, at most all of the device.
  // No session loses a turn or a place to it, but idle sessions are asked to page out; a new
  // session finds less room.
  Decision set_foreign(Seconds now, Bytes bytes);
  // While it recovers, a session that comes with a turn keeps it and one that requests a turn
  // waits: others may have turns that are not known yet.
  Decision set_recovering(Seconds now, bool recovering);

  Decision assign(Seconds now);
  // Whether this session would keep its place, or find one, if its persistent memory were at least
  // this.
  bool may_keep(const std::string& id, Bytes persistent) const;
  // When time alone changes something: a turn that should end, a lease or aging that runs out.
  std::optional<Seconds> next_event(Seconds now) const;
  Picture picture(Seconds now) const;
  std::string is_valid() const;  // empty, or the first broken invariant in words

  std::string_view policy() const { return policy_->name; }
  Bytes free() const { return lanes_.free(); }
  Bytes foreign() const { return lanes_.foreign(); }
  bool recovering() const { return recovering_; }
  // Whether there is room for it, so that it waits for turns alone, and not for memory.
  bool has_place(const std::string& id) const;
  bool has_turn(const std::string& id) const;
  bool was_asked(const std::string& id) const;                // to yield the turn that it has
  const std::string& held_back(const std::string& id) const;  // why, or empty
  std::vector<Holder> holders(Seconds now) const;             // in the order in which they opened
  bool contains(const std::string& id) const { return numbers_.contains(id); }
  std::size_t size() const { return sessions_.size(); }
  Bytes lane_bytes(LaneId lane) const;  // 0 if there is no such lane

 private:
  Scheduler(const Scheduler&) = default;  // refers to the shares of the other: see copy()
  std::unique_ptr<Scheduler> copy() const;

  using Successor = Session::Successor;
  using Turn = Session::Turn;
  using Entry = std::map<SessionNumber, Session>::value_type;
  // A session that waits or runs, in one pass.
  struct Contender {
    Contender(const Scheduler&, SessionNumber, const Session&, Seconds now);

    Candidate view;
    SessionNumber number;
    const Session* session;
    LaneId lane;               // none: it waits for memory, or runs and could not be placed
    bool everywhere = false;   // excludes all others, whatever their lanes
    bool must_end = false;     // runs, and should not
    bool promised = false;     // has named a session that still waits; or waits, and has been named
    Seconds ends_in = kNever;  // runs: until a waiting session should have its turn
    const Contender* successor = nullptr;  // runs, and should end: the next in its lane
  };
  struct Contest {
    std::vector<Contender> running, waiting;
  };
  // When waiting sessions begin, if no other session comes; absent where that is unknown. It is
  // made anew as soon as that costs little of the time since, so a reader may get the last one.
  struct Begin {  // of a turn, as far as that is known
    TurnNumber turn = 0;
    Seconds usual = kNever, worst = kNever;
  };
  struct Forecast {
    Seconds made = kNever, kept = -kNever;  // when, and until when it answers
    std::unordered_map<SessionNumber, Begin> begins;

    bool is_cheap() const { return kept - made < 0.02; }
  };
  friend class Rehearsal;    // forecast.cpp
  friend class LongestWait;  // longest_wait.h
  // The sessions that should be asked to page out, longest idle first, and for which session:
  // kNobody, if unmanaged memory takes the room.
  struct PageOuts {
    SessionNumber beneficiary = kNobody;
    std::vector<SessionNumber> sessions;
  };

  SessionNumber number_of(const std::string& id) const;
  void check(const SessionSpec& spec) const;
  void check(const Demand& demand) const;
  static void check_paged_out(Bytes bytes);
  void advance(Seconds now);
  void happen(Seconds now);
  Seconds latest(Seconds now) const;  // time does not go back

  // Changes of one session.
  SessionNumber prepare(const std::string& id, const SessionSpec& spec);
  void vacate(SessionNumber number, Session& session);
  void forget(SessionNumber number);
  void adopt_turn(SessionNumber number, Session& session, TurnNumber turn);
  void start_successor(Decision& decision);
  void take_lane(SessionNumber number, const Session& session);
  void begin_turn(Session& session, TurnNumber turn);
  void end_turn(SessionNumber number, Session& session);
  void begin_wait(Session& session, TurnNumber turn);
  void end_wait(Session& session);
  void wait_anew(Session& session);
  void follow_pace(Session& session, std::int64_t iterations, Seconds seconds,
                   const Demand& demand);
  void fit_to_demand(SessionNumber number, const Session& session);

  // paging.cpp: where their memory is.
  void begin_cell(Session& session);
  std::optional<Seconds> is_in_by(const Session& session) const {
    return residency_.is_in_by(session.memory);
  }
  void call_back(Session& session);
  void count_return(Session& session);
  void give_up_return(Session& session);
  void bring_in(Session& session);
  bool all_make_way() const { return rules_.page_waiting && !residency_.has_refusals(); }
  std::vector<const Entry*> idle_sessions() const;
  std::vector<const Entry*> who_waits_behind(const Contender& first) const;
  std::optional<Contender> first_aged() const;
  std::vector<SessionNumber> who_must_leave(const Demand& room, Demand staying,
                                            const std::vector<const Entry*>& may_leave) const;
  Demand what_stays(const std::vector<const Entry*>& may_leave) const;
  Seconds leaves_by(const Session& session) const;
  void give_up_those_who_do_not_leave();
  PageOuts who_should_page_out() const;
  PageOuts who_should_make_way(const std::vector<const Entry*>& idle) const;
  void ask_to_page_out(Decision& decision);

  // assign.cpp: the pass.
  bool packs() const { return policy_->packs && rules_.running_lanes == 0; }
  int limit() const;   // lanes that may run at once; 0: no limit
  int wanted() const;  // lanes that should find room at once; 0: no limit
  void follow_tuner();
  void admit();
  bool all_have_places() const { return lanes_.size() + residency_.out() == sessions_.size(); }
  SessionNumber next_to_admit() const;
  bool may_come_in(const Session& session, Seconds now) const;
  int lanes_at_once(const Session* newcomer) const;
  SessionNumber first_with_room(const std::function<bool(const Session&)>& has_room) const;
  void settle_clocks();
  void boost_cells();
  Seconds boost_of(const Session& session, std::optional<FairShares::ClocksBelow>& below,
                   Seconds now) const;
  Contest look(Seconds now, Seconds ordered) const;  // ordered by their values at `ordered`
  Contest contest(Seconds now) const;                // of sessions that may have turns now
  std::optional<Seconds> next_change(const Contest& contest, Seconds now) const;
  void mark_promises(Contest& contest, Seconds now) const;
  bool promises(const Turn& turn, const Successor& waiting, Seconds now) const;
  bool is_promised(SessionNumber number, const Session& session) const;
  static Successor successor_of(const Contender& waiting);
  void mark_those_who_must_end(std::vector<Contender>& running) const;
  void mark_who_needs_lanes_merged(std::vector<Contender>& waiting, Seconds now) const;
  void grant(Contest& contest, Decision& decision);
  Contender* next_to_start(Contest& contest) const;
  bool can_start(const Contender& waiting) const;
  void ask_to_yield(Contest& contest, Decision& decision);
  Yield yield_of(const Contender& holder, const Contest& contest, Turn& turn) const;
  bool may_pass_on(const Contender& holder, const Contender& to, const Contest& contest) const;
  void time_turns(Contest& contest, Seconds now) const;
  void time_turn(Contender& holder, std::vector<const Contender*>& left) const;

  // What follows from a session.
  bool has_outgrown(SessionNumber number, const Session& session) const;
  bool has_waited_too_long(const Session& session, Seconds now) const;
  bool reserves(SessionNumber number, const Session& session, Seconds now) const;
  Seconds ages_at(const Session& session) const;
  bool goes_before(const Contender& a, const Contender& b) const;
  bool is_admitted_before(const Contender& a, const Contender& b, Seconds now) const;
  Candidate candidate(const Session& session, Seconds now) const;
  Seconds quantum() const { return rules_.quantum * policy_->turn; }

  // picture.cpp
  Contest in_order(Seconds now) const;
  State state(const Session& session, Seconds now) const;
  SessionState session_state(const Contender& of, const Contest& contest, Seconds now) const;
  std::vector<LaneState> lane_states() const;
  std::vector<const Contender*> queue(const Contest& contest, Seconds now) const;
  std::optional<Seconds> expected_wait(const Session& session, Seconds now) const;
  bool may_be_overtaken(const Session& session) const;
  Forecast forecast(Seconds now) const;
  void bound_those_that_begin_soon(Forecast& forecast) const;
  Why why(const Contender& of, const Contest& contest, Seconds now) const;
  Why why_it_runs(const Session& session, const Contest& contest) const;
  Why why_it_waits(const Contender& of, const Contest& contest, Seconds now) const;
  std::optional<Code> particular(const Session& holder, Seconds now) const;
  Why why_no_place(const Contender& of, const Contest& contest, Seconds now) const;
  Why why_no_room(const Contender& of, const Demand& room, Seconds now) const;
  std::optional<Reason> who_could_not_leave(const Session& of) const;
  const Contender* who_is_in_the_way(const Contender& of, const Contest& contest) const;

  // invariants.cpp
  std::string lanes_agree() const;
  std::string shares_agree() const;
  std::string holds_agree() const;
  std::string nobody_waits_in_vain() const;
  std::string paging_agrees() const;
  std::string paging_agrees(SessionNumber number, const Session& session) const;

  Rules rules_;
  const Policy* policy_;
  LaneAllocator lanes_;
  FairShares shares_;
  Residency residency_;
  ConcurrencyTuner tuner_;
  std::map<SessionNumber, Session> sessions_;  // in the order in which they opened
  std::unordered_map<std::string, SessionNumber> numbers_;
  bool recovering_ = false;
  Successor due_;  // of a turn that this event has ended
  mutable Forecast forecast_;
  std::optional<Contest> seen_;  // by the last pass, if it changed nothing; until an event
  Seconds now_ = -kNever;
  // When something happened last that may explain another order of the waiting sessions. Time alone
  // does not: what is shown is their order then.
  Seconds ordered_ = -kNever;
  SessionNumber last_number_ = kNobody;
  std::uint64_t last_order_ = 0;
};

}  // namespace gpushare
