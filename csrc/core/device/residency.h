// The residency state of sessions' persistent memory: on the device; there, but asked to page out;
// on disk; or on disk and waiting for room to come back. eviction.h decides which sessions are
// asked to page out.
//
// Each session has its Memory, which all may read and only the Residency changes: so the sessions
// that are out, asked to page out, or refused, are counted at all times.
//
// Invariants, which is_valid() checks: these counts; nothing is on the device and on disk
// at once; and each session that has come in has been told so.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/model/types.h"

namespace gpushare {

enum class Residence { in, leaving, out, returning };

struct Wait {
  Seconds since;
  std::uint64_t order;
};

class Residency {
 public:
  class Memory {
   public:
    Residence residence() const { return residence_; }
    bool is_out() const {
      return residence_ == Residence::out || residence_ == Residence::returning;
    }
    const Wait& back() const { return back_; }  // while it is returning
    Bytes paged_out_bytes() const { return paged_out_bytes_; }
    // True from paging in until its next iteration.
    bool was_just_paged_in() const { return page_in_.has_value(); }
    // It could not page out, and no cell of it has begun since.
    bool refused() const { return refused_; }
    // The cause in its words; absent if it has not answered.
    const std::optional<std::string>& refusal() const { return refusal_; }
    // Id of the session for which it was asked to page out; "": for programs that are not sessions.
    const std::optional<std::string>& evicted_for() const { return evicted_for_; }
    Seconds last_used() const { return last_used_; }   // when it opened, came in, or was in use
    Seconds last_evicted() const { return evicted_; }  // its last eviction while it waited

   private:
    friend class Residency;
    struct PageIn {
      Seconds since;
      Bytes bytes;
    };

    Residence residence_ = Residence::in;
    Seconds asked_to_leave_ = 0;
    Wait back_{};
    Bytes paged_out_bytes_ = 0;
    std::optional<PageIn> page_in_;
    bool refused_ = false;
    std::optional<std::string> refusal_, evicted_for_;
    Seconds last_used_ = -kNever, evicted_ = -kNever;
  };

  void advance(Seconds now) { now_ = now; }

  // It opens with these bytes on disk, or closes: then it is neither out nor asked to page out.
  void open(Memory& memory, Bytes paged_out_bytes);
  void vacate(Memory& memory);
  void use(Memory& memory) { memory.last_used_ = now_; }
  // A cell begins in it, so it may be asked to page out again.
  void begin_cell(Memory& memory) { set_refused(memory, false); }
  void iterate(Memory& memory) { memory.page_in_.reset(); }

  // The beneficiary is a session, or kNoSession for unmanaged memory.
  void ask_to_leave(Memory& memory, SessionNumber beneficiary, const std::string& id);
  void ask_to_leave(Memory& memory) { move_to(memory, Residence::leaving); }
  void let_stay(Memory& memory);  // a request to page out, if any, is withdrawn
  void refuse(Memory& memory, const std::optional<std::string>& why);
  void leave(Memory& memory, Bytes bytes);
  void note_eviction(Memory& memory) { memory.evicted_ = now_; }
  // It is out, and has wanted to come back since then.
  void call_back(Memory& memory, const Wait& since);
  void restart_wait(Memory& memory, const Wait& since) { memory.back_ = since; }
  void give_up_return(Memory& memory) { move_to(memory, Residence::out); }
  void come_in(Memory& memory, const std::string& id);
  // Ids of the sessions that came in since the last call.
  std::vector<std::string> take_came_in() { return std::exchange(came_in_, {}); }

  std::size_t out() const { return out_; }  // without those returning
  std::size_t leaving() const { return leaving_; }
  bool has_refusals() const { return refusals_ > 0; }
  // Whether sessions are paging out, the last asked for this one.
  bool is_evicting_for(SessionNumber number) const { return leaving_ > 0 && number == awaits_; }
  // The time at which its memory is on the device; in the past if it is there already; absent if
  // unknown.
  std::optional<Seconds> is_in_by(const Memory& memory) const;
  // Seconds to page in; absent if unknown.
  std::optional<Seconds> takes(Bytes bytes) const;
  // The deadline of a page-out: a session that hangs must not keep others waiting for memory.
  static Seconds leaves_by(const Memory& memory, Bytes persistent, Seconds lease);

  std::string is_valid(const std::vector<const Memory*>& all) const;

 private:
  void move_to(Memory& memory, Residence residence);
  void set_refused(Memory& memory, bool refused);
  void note_rate(const Memory& memory, Bytes bytes);

  std::size_t out_ = 0, leaving_ = 0, refusals_ = 0;
  SessionNumber awaits_ = kNoSession;  // beneficiary of the last request to page out
  std::optional<double> paging_rate_;  // of the last page-out, in bytes a second
  std::vector<std::string> came_in_;
  Seconds now_ = -kNever;
};

}  // namespace gpushare
