#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpushare {

// A turn as a Grant of the broker gives it (protocol.py).
struct Turn {
  uint64_t number, lane, bytes, memory, chunks;
};

// Who has the turn next, as a Yield names it: `letter` is to be put into `mailbox`.
struct Successor {
  std::string mailbox, letter;
};

// The turn in a letter, which is a MAC of the numbers of the turn, and these with a blank before
// each; none if it is anything else, or written with another key. Whoever hands a turn on has the
// letter and not the key: so it gives the turn that the broker has written into it, and no other.
[[nodiscard]] std::optional<Turn> read_letter(std::string_view letter, std::string_view key);

// The successor that the newest Yield for `turn` names, in frames as they come from the broker, the
// last of which may be half. What is read here is what the broker writes, byte for byte: a Yield
// that looks different is left to whoever reads all messages. Where the beginning of the first
// frame has been taken before, nothing is found that the broker has not written: in the header of a
// frame are control characters, and in its JSON are none.
[[nodiscard]] std::optional<Successor> find_successor(std::string_view frames, uint64_t turn);

// Whether there is a Yield for `turn` in such frames, whoever it names.
[[nodiscard]] bool has_yield(std::string_view frames, uint64_t turn);

}  // namespace gpushare
