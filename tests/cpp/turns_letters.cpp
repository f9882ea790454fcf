// What a session reads without Python: nothing but what the broker writes, and never past its end.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "turns/letter.h"

using namespace gpushare;

namespace {

const std::string kKey(32, 'a');
const std::string kTurn = " 7 1 300 2 4";

std::string frame(const std::string& body) {
  std::string header;
  for (int shift = 24; shift >= 0; shift -= 8) header += static_cast<char>(body.size() >> shift);
  return header + body;
}

std::string yield(int turn, const std::string& successor) {
  return frame(R"({"type":"Yield","turn":)" + std::to_string(turn) + R"(,"successor":)" +
               successor + "}");
}

std::string named(const std::string& mailbox) {
  return R"({"mailbox":")" + mailbox + R"(","letter":"key 7"})";
}

const std::string kOther = frame(R"({"type":"PageIn"})");

}  // namespace

TEST_CASE("a letter gives its turn to whom it is for") {
  const auto turn = read_letter(kKey + kTurn, kKey);
  REQUIRE(turn);
  CHECK(turn->number == 7);
  CHECK(turn->lane == 1);
  CHECK(turn->bytes == 300);
  CHECK(turn->memory == 2);
  CHECK(turn->chunks == 4);
  CHECK_FALSE(read_letter(std::string(32, 'b') + kTurn, kKey));
  CHECK_FALSE(read_letter(kKey + kTurn, ""));
}

TEST_CASE("a letter that is no turn, or more than one, gives nothing") {
  for (size_t size = 0; size < (kKey + kTurn).size(); ++size)
    CHECK_FALSE(read_letter((kKey + kTurn).substr(0, size), kKey));
  CHECK_FALSE(read_letter(kKey + kTurn + " ", kKey));
  for (const std::string& number :
       std::vector<std::string>{"-7", "+7", "7.0", "", " 7", "x", "18446744073709551616"})
    CHECK_FALSE(read_letter(kKey + " " + number + " 1 300 2 4", kKey));
}

TEST_CASE("the successor is found among other messages") {
  const auto found = find_successor(kOther + yield(7, named("next")) + kOther, 7);
  REQUIRE(found);
  CHECK(found->mailbox == "next");
  CHECK(found->letter == "key 7");
}

TEST_CASE("nobody is found who is not named for this turn") {
  CHECK_FALSE(find_successor("", 7));
  CHECK_FALSE(find_successor(kOther, 7));
  CHECK_FALSE(find_successor(yield(6, named("next")), 7));
  CHECK_FALSE(find_successor(yield(7, "null"), 7));
  CHECK_FALSE(find_successor(yield(7, named(R"(next\u0041)")), 7));
}

TEST_CASE("the newest message for this turn counts") {
  const std::string first = yield(7, named("first"));
  CHECK(find_successor(first + yield(7, named("second")), 7)->mailbox == "second");
  CHECK_FALSE(find_successor(first + yield(7, "null"), 7));
  CHECK(find_successor(first + yield(6, "null"), 7)->mailbox == "first");
}

TEST_CASE("half a message names nobody, at whichever end it is half") {
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
    (void)read_letter(exact, exact.substr(0, exact.size() / 4));
  }
}
