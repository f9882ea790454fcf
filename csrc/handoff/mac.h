#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace gpushare {

constexpr size_t kMacDigits = 32;  // hexadecimal digits, for 16 bytes

// A MAC that can be written only with the key: keyed BLAKE2s of RFC 7693, which is a MAC without
// HMAC around it, and which Python has (hashlib.blake2s), so that the broker needs no
// implementation of its own. At most 32 bytes of a key count.
[[nodiscard]] std::string mac(std::string_view key, std::string_view text);

// Compares in constant time; otherwise the time of a comparison would reveal the right MAC piece by
// piece.
[[nodiscard]] bool is_same(std::string_view shown, std::string_view right);

}  // namespace gpushare
