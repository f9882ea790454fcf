#include "handoff/mac.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace gpushare {
namespace {

constexpr size_t kBlockBytes = 64, kKeyBytes = 32, kMacBytes = kMacDigits / 2;
constexpr int kRounds = 10;
using Words = std::array<uint32_t, 8>;
using Block = std::array<uint32_t, 16>;

constexpr Words kStart{0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                       0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};

constexpr uint8_t kOrder[kRounds][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                         {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                         {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                         {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                         {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                         {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                         {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                         {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                         {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                         {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

// Each call mixes four words: first the columns, then the diagonals.
constexpr uint8_t kMixed[8][4] = {{0, 4, 8, 12},  {1, 5, 9, 13},  {2, 6, 10, 14}, {3, 7, 11, 15},
                                  {0, 5, 10, 15}, {1, 6, 11, 12}, {2, 7, 8, 13},  {3, 4, 9, 14}};

void mix(Block& v, const uint8_t (&at)[4], uint32_t x, uint32_t y) {
  uint32_t &a = v[at[0]], &b = v[at[1]], &c = v[at[2]], &d = v[at[3]];
  a += b + x;
  d = std::rotr(d ^ a, 16);
  c += d;
  b = std::rotr(b ^ c, 12);
  a += b + y;
  d = std::rotr(d ^ a, 8);
  c += d;
  b = std::rotr(b ^ c, 7);
}

// Reads little-endian words of at most a block of text, and zeros after it.
Block words(std::string_view text) {
  Block block{};
  for (size_t i = 0; i < text.size(); ++i)
    block[i / 4] |= uint32_t{static_cast<uint8_t>(text[i])} << (i % 4 * 8);
  return block;
}

// Takes a block into the state; `taken` bytes are in it by then.
void take(Words& state, const Block& block, uint64_t taken, bool is_last) {
  Block v{};
  std::copy(state.begin(), state.end(), v.begin());
  std::copy(kStart.begin(), kStart.end(), v.begin() + 8);
  v[12] ^= static_cast<uint32_t>(taken);
  v[13] ^= static_cast<uint32_t>(taken >> 32);
  if (is_last) v[14] = ~v[14];
  for (const auto& order : kOrder)
    for (size_t i = 0; i < 8; ++i) mix(v, kMixed[i], block[order[2 * i]], block[order[2 * i + 1]]);
  for (size_t i = 0; i < state.size(); ++i) state[i] ^= v[i] ^ v[i + 8];
}

std::string digits(const Words& state) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string shown;
  for (size_t i = 0; i < kMacBytes; ++i) {
    const uint32_t byte = state[i / 4] >> (i % 4 * 8) & 0xff;
    shown += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return shown;
}

}  // namespace

std::string mac(std::string_view key, std::string_view text) {
  key = key.substr(0, kKeyBytes);
  Words state = kStart;
  state[0] ^= 0x01010000U ^ static_cast<uint32_t>(key.size() << 8) ^ uint32_t { kMacBytes };
  uint64_t taken = 0;
  if (!key.empty()) take(state, words(key), taken = kBlockBytes, text.empty());
  while (text.size() > kBlockBytes) {
    take(state, words(text.substr(0, kBlockBytes)), taken += kBlockBytes, false);
    text.remove_prefix(kBlockBytes);
  }
  if (!text.empty() || key.empty()) take(state, words(text), taken + text.size(), true);
  return digits(state);
}

bool is_same(std::string_view shown, std::string_view right) {
  if (shown.size() != right.size()) return false;
  int difference = 0;
  for (size_t i = 0; i < right.size(); ++i) difference |= shown[i] ^ right[i];
  return difference == 0;
}

}  // namespace gpushare
