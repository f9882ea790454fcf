#include "memory/co_lane/co_lane.h"

#include <algorithm>
#include <bit>

#include "claims/chunk.h"

namespace gpushare {
namespace {

constexpr double kLook = 1;  // seconds after which a claim is looked at again, whatever is said
// A wait that is as old as this ends by a signal: the user interrupts it.
constexpr auto kShort = std::chrono::milliseconds(200);

}  // namespace

std::string CoLane::open(const LaneEnd& lane_end, size_t lane_bytes, size_t page_bytes) {
  if (lane_end.end != 0 && lane_end.end != 1) return "a lane has the ends 0 and 1";
  const size_t chunk = std::max<size_t>(chunk_bytes(lane_bytes), page_bytes);
  chunk_shift_ = std::countr_zero(chunk) - std::countr_zero(page_bytes);
  least_shift_ = std::countr_zero(chunk / kLeastChunk);
  page_directory_ = lane_end.page_directory;
  may_wait_ = lane_end.may_wait;
  return ledger_.open(lane_end.ledger, lane_end.end, static_cast<Chunks>(lane_bytes / chunk));
}

template <class Make>
void CoLane::change(Make make) {
  if (usage_.is_lost) return;
  const Claims after = ledger_.change([&](Claims& claims) {
    usage_.is_lost =
        !ledger_.is_whole() || claims.extent(end()) != extent_ || claims.bound(end()) != bound_;
    if (!usage_.is_lost) make(claims);
  });
  if (usage_.is_lost) {
    ledger_.spoil();
  } else {
    extent_ = after.extent(end()), bound_ = after.bound(end());
  }
}

void CoLane::begin(Page top) {
  is_inside_ = true;
  is_private_ = is_waiting_ = false;
  footprint_ = top;
  const Chunks most = of_least(progress_.begin(least_chunks(ledger_.budget())));
  if (top > 0) return;
  has_end_ = ledger_.take_up();
  if (!has_end_) return;
  change([&](Claims& claims) { claims.begin(end(), most, ledger_.budget()); });
}

// A claim that does not wait leaves nothing behind when it is refused.
CoLane::Answer CoLane::claim(Page top) {
  const Chunks want = chunks(top);
  if (usage_.is_lost || !has_end_) return Answer::kPrivate;
  if (want <= extent_) return Answer::kGranted;
  const bool may_wait = !is_private_ && may_wait_();
  auto answer = Claims::Answer::kWait;
  if (want <= ledger_.budget()) {
    change([&](Claims& claims) {
      Claims then = claims;
      answer = then.claim(end(), want, ledger_.budget());
      if (may_wait || answer == Claims::Answer::kGranted) claims = then;
    });
  }
  Answer result = answer == Claims::Answer::kSpill ? Answer::kSpill : Answer::kWait;
  if (!may_wait || want > ledger_.budget() || usage_.is_lost) result = Answer::kPrivate;
  if (want <= extent_) result = Answer::kGranted;
  count_wait(result);
  return result;
}

void CoLane::count_wait(Answer answer) {
  const bool waits = answer == Answer::kWait || answer == Answer::kSpill;
  if (waits == is_waiting_) return;
  is_waiting_ = waits;
  if (waits) {
    waits_since_ = Clock::now();
    ++usage_.waits;
  } else {
    usage_.wait_seconds += std::chrono::duration<double>(Clock::now() - waits_since_).count();
  }
}

bool CoLane::sleep(Page top, Clock::time_point since) {
  const auto woken = ledger_.await(chunks(top), kLook);
  return woken != Ledger::Wait::kSignal || Clock::now() - since < kShort;
}

void CoLane::go_on_privately(Answer after) {
  is_private_ = true;
  usage_.interrupted_waits += after == Answer::kWait;
}

void CoLane::born(size_t bytes, Page top) {
  footprint_ = std::max(footprint_, top);
  progress_.born(bytes);
  happened(top);
}

void CoLane::died(Page top) { is_inside_ ? happened(top) : rest(top); }

void CoLane::happened(Page top) {
  const Chunks extent = chunks(top);
  const Chunks bound = of_least(progress_.happened(least_chunks(extent)));
  if (extent >= extent_ && bound >= bound_) return;
  change([&](Claims& claims) {
    claims.shrink(end(), extent);
    claims.lower_bound(end(), bound);
  });
}

void CoLane::leave(Page top, bool is_usual) {
  if (!is_inside_) return;
  if (is_usual) progress_.end();
  is_inside_ = false;
  rest(top);
}

// Between iterations it claims only what is alive, which ends or is promoted.
void CoLane::rest(Page top) {
  if (bound_ == 0) return;
  change([&](Claims& claims) {
    if (top == 0) return claims.end(end());
    claims.shrink(end(), chunks(top));
    claims.lower_bound(end(), chunks(top));
  });
}

void CoLane::pass_on() {
  if (!is_inside_ && bound_ == 0) ledger_.pass_on();
}

void CoLane::spilled() {
  ++usage_.spills;
  change([&](Claims& claims) { claims.spilled(end()); });
}

}  // namespace gpushare
