#include "memory/co_lane/held_end.h"

#include <algorithm>

#include "claims/chunk.h"

namespace gpushare {

// No process has begun at the other end, since that is granted after this: so the holder is the
// elder, and all that it may come to need is held.
std::string HeldEnd::open(int ledger, int end, size_t bytes, size_t lane_bytes) {
  release();
  const size_t chunk = chunk_bytes(lane_bytes);
  const auto budget = static_cast<Chunks>(lane_bytes / chunk);
  std::string reason = ledger_.open(ledger, end, budget);
  if (!reason.empty()) return reason;
  ledger_.reap();
  const auto extent = static_cast<Chunks>(std::min<size_t>((bytes + chunk - 1) / chunk, budget));
  ledger_.change([&](Claims& claims) {
    claims.begin(end, extent, budget);
    claims.claim(end, extent, budget);
  });
  return {};
}

void HeldEnd::release() {
  if (!ledger_.is_open()) return;
  ledger_.pass_on();
  ledger_.reap(ledger_.end());
  ledger_.close();
}

}  // namespace gpushare
