#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace gpushare {

constexpr size_t kMacDigits = 32;  // hexadecimal ones, of 16 bytes

// What only those can write who have the key: keyed BLAKE2s of RFC 7693, which is a MAC without
// HMAC around it, and which Python has (hashlib.blake2s), so that the broker needs none of its own.
// Of a key at most 32 bytes count.
[[nodiscard]] std::string mac(std::string_view key, std::string_view text);

// Takes as long wherever they differ, or the right one could be found out piece by piece.
[[nodiscard]] bool is_same(std::string_view shown, std::string_view right);

}  // namespace gpushare
