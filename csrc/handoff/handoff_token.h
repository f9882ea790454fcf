#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpushare {

// At most this many of the bytes that have arrived are read: a Yield is among the first.
inline constexpr std::size_t kMostReadBytes = 4096;

// A turn as a Grant of the broker gives it (wire/messages.py).
struct Turn {
  uint64_t number, lane, bytes, memory, chunks;
  int end = -1;  // of a lane that two sessions use at once, 0 or 1
};

// The successor that a Yield names, and the message to be sent to its handoff slot.
struct Successor {
  std::string handoff_slot, handoff_token;
};

// The turn in a direct handoff, which is a MAC of the numbers of the turn, followed by these
// numbers with a blank before each; the last one is there only if the turn has an end. None if the
// text is anything else, or was written with another key. A session that hands a turn off has the
// message and not the key, so it can only give the turn that the broker has written into the
// message.
[[nodiscard]] std::optional<Turn> read_handoff_token(std::string_view token, std::string_view key);

// The successor that the newest Yield for `turn` names, in frames as they come from the broker; the
// last frame may be incomplete. This reads what the broker writes, byte for byte: a Yield
// that looks different is left to the code that reads all messages. If the beginning of the first
// frame was taken before, this still finds only what the broker has written, because the header of
// a frame contains control characters and its JSON contains none.
[[nodiscard]] std::optional<Successor> find_successor(std::string_view frames, uint64_t turn);

// Whether there is a Yield for `turn` in such frames, whichever successor it names.
[[nodiscard]] bool has_yield(std::string_view frames, uint64_t turn);

}  // namespace gpushare
