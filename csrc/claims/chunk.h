// The size of a chunk. Both processes of a co-lane derive it, and so does the core, which makes a
// lane as wide as a whole number of them: all three must find the same size.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

namespace gpushare {

inline constexpr std::uint64_t kLeastChunk = 64 << 10;  // bytes
inline constexpr std::uint64_t kMostChunks = 1024;      // of a lane, or a few more

constexpr std::uint64_t chunk_bytes(std::uint64_t lane_bytes) {
  return std::max(kLeastChunk, std::bit_ceil(lane_bytes / kMostChunks));
}

}  // namespace gpushare
