// What a session reads without Python: only text that the broker writes, and never past its end.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "handoff/handoff_token.h"
#include "handoff/mac.h"

using namespace gpushare;

namespace {

const std::string kKey(32, 'a');
const std::string kTurn = "7 1 300 2 4";

std::string handoff_token(const std::string& numbers, const std::string& key = kKey) {
  return mac(key, numbers) + " " + numbers;
}

std::string frame(const std::string& body) {
  std::string header;
  for (int shift = 24; shift >= 0; shift -= 8) header += static_cast<char>(body.size() >> shift);
  return header + body;
}

std::string yield(int turn, const std::string& successor) {
  return frame(R"({"type":"Yield","turn":)" + std::to_string(turn) + R"(,"successor":)" +
               successor + "}");
}

std::string named(const std::string& handoff_slot) {
  return R"({"handoff_slot":")" + handoff_slot + R"(","handoff_token":"key 7"})";
}

const std::string kOther = frame(R"({"type":"PageIn"})");

}  // namespace

TEST_CASE("a direct handoff gives its turn to the session with its key") {
  const auto turn = read_handoff_token(handoff_token(kTurn), kKey);
  REQUIRE(turn);
  CHECK(turn->number == 7);
  CHECK(turn->lane == 1);
  CHECK(turn->bytes == 300);
  CHECK(turn->memory == 2);
  CHECK(turn->chunks == 4);
  CHECK_FALSE(read_handoff_token(handoff_token(kTurn, std::string(32, 'b')), kKey));
  CHECK_FALSE(read_handoff_token(handoff_token(kTurn, ""), ""));
  CHECK_FALSE(read_handoff_token(kKey + " " + kTurn, kKey));
}

TEST_CASE("a direct handoff may give an end of a lane, 0 or 1, which its MAC holds") {
  CHECK(read_handoff_token(handoff_token(kTurn), kKey)->end == -1);
  for (int end = 0; end < 2; ++end) {
    const std::string whole = handoff_token(kTurn + " " + std::to_string(end));
    CHECK(read_handoff_token(whole, kKey)->end == end);
    CHECK_FALSE(read_handoff_token(whole.substr(0, whole.size() - 2), kKey));
    CHECK_FALSE(read_handoff_token(whole.substr(0, whole.size() - 1) + (end ? "0" : "1"), kKey));
  }
  for (const std::string& end : std::vector<std::string>{"2", "-1", "", "x", "0 0"})
    CHECK_FALSE(read_handoff_token(handoff_token(kTurn + " " + end), kKey));
}

TEST_CASE("a direct handoff that is no turn, or more than one, gives nothing") {
  for (size_t size = 0; size < handoff_token(kTurn).size(); ++size)
    CHECK_FALSE(read_handoff_token(handoff_token(kTurn).substr(0, size), kKey));
  for (size_t size = 0; size < kTurn.size(); ++size)
    CHECK_FALSE(read_handoff_token(handoff_token(kTurn.substr(0, size)), kKey));
  CHECK_FALSE(read_handoff_token(handoff_token(kTurn + " "), kKey));
  for (const std::string& number :
       std::vector<std::string>{"-7", "+7", "7.0", "", " 7", "x", "18446744073709551616"})
    CHECK_FALSE(read_handoff_token(handoff_token(number + " 1 300 2 4"), kKey));
}

TEST_CASE("a session that has a direct handoff cannot make another of it") {
  const std::string whole = handoff_token(kTurn);
  for (size_t at = 0; at < whole.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      CHECK_FALSE(read_handoff_token(changed, kKey));
    }
  CHECK_FALSE(read_handoff_token(whole.substr(0, kMacDigits) + " 8 1 300 2 4", kKey));
}

// The results of Python's hashlib.blake2s, by which the broker writes direct handoffs; around
// whole blocks too.
TEST_CASE("a MAC is the one that Python makes") {
  CHECK(mac("", "") == "64550d6ffe2c0a01a14aba1eade0200c");
  CHECK(mac("", "abc") == "aa4938119b1dc7b87cbad0ffd200d0ae");
  CHECK(mac(kKey, "") == "0efe3a347789c0a06434b027abb98802");
  CHECK(mac(kKey, kTurn) == "275f65066cc6fd831df31ff78de8fc2e");
  CHECK(mac(kKey, std::string(63, 'x')) == "b6f85ac00f0441a3a3e29da768fc929a");
  CHECK(mac(kKey, std::string(64, 'x')) == "43298e0a7698954abf354dabef69b3c5");
  CHECK(mac(kKey, std::string(65, 'x')) == "042a5e27e49ad0732d10fb2df8fe43bf");
  CHECK(mac(kKey, std::string(128, 'x')) == "486837e7a4aa0b582813d7d7f6912db4");
  CHECK(mac(kKey, std::string(129, 'x')) == "f631653e4db21e50c98449e38fdda8de");
  CHECK(mac(kKey, std::string(1000, 'x')) == "784ec27cac03ee11714b1b11d95cf6c6");
  CHECK(mac("", std::string(64, 'x')) == "e1d5fb352cad2589b30d4f38821b1608");
  CHECK(mac("short", "abc") == "391b67a9d482a94831889b4adc8cf391");
  CHECK(is_same("ab", "ab"));
  CHECK_FALSE(is_same("ab", "ac"));
  CHECK_FALSE(is_same("ab", "abc"));
}

TEST_CASE("the successor is found among other messages") {
  const auto found = find_successor(kOther + yield(7, named("next")) + kOther, 7);
  REQUIRE(found);
  CHECK(found->handoff_slot == "next");
  CHECK(found->handoff_token == "key 7");
}

TEST_CASE("no successor is found that is not named for this turn") {
  CHECK_FALSE(find_successor("", 7));
  CHECK_FALSE(find_successor(kOther, 7));
  CHECK_FALSE(find_successor(yield(6, named("next")), 7));
  CHECK_FALSE(find_successor(yield(7, "null"), 7));
  CHECK_FALSE(find_successor(yield(7, named(R"(next\u0041)")), 7));
}

TEST_CASE("the newest message for this turn counts") {
  const std::string first = yield(7, named("first"));
  CHECK(find_successor(first + yield(7, named("second")), 7)->handoff_slot == "second");
  CHECK_FALSE(find_successor(first + yield(7, "null"), 7));
  CHECK(find_successor(first + yield(6, "null"), 7)->handoff_slot == "first");
}

TEST_CASE("half a message names no successor, at whichever end it is half") {
  const std::string all = yield(7, named("next"));
  for (size_t size = 0; size + 1 < all.size(); ++size) {
    CHECK_FALSE(find_successor(all.substr(0, size), 7));
    CHECK_FALSE(find_successor(all.substr(size + 1) + all, 7));
  }
}

TEST_CASE("no bytes are read past the end") {
  std::mt19937 random(5);
  const std::string all = kOther + yield(7, named("next"));
  for (int round = 0; round < 20'000; ++round) {
    std::string changed = all;
    for (int times = 0; times < 3; ++times)
      changed[random() % changed.size()] = static_cast<char>(random());
    const std::string exact(changed.begin(), changed.begin() + random() % changed.size());
    (void)find_successor(exact, 7);  // the sanitizers judge
    (void)read_handoff_token(exact, exact.substr(0, exact.size() / 4));
    (void)read_handoff_token(handoff_token(exact), kKey);
  }
}
