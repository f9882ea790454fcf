// A turn that goes between two iterations, by a thread of ours.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "handoff/idle_turn.h"

using namespace gpushare;

namespace {

constexpr int kAtLongest = 20'000;  // milliseconds, which only a failure takes

const std::string kYield = R"({"type":"Yield","turn":3,"successor":null})";

// A session with the turn 3, and the broker's end of its connection.
struct Session {
  std::array<int, 2> ends;
  std::atomic<bool> is_empty = true;
  std::atomic<int> evacuations = 0;
  IdleTurn turn{{[this] { return is_empty.load(); }, [this] { ++evacuations; }}};

  Session() {
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
    turn.watch(ends[0]);
    turn.prepare(3, "over");
    REQUIRE(turn.lend());
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    turn.watch(-1);  // whatever the thread does, it is done with us
    for (const int end : ends) close(end);
  }

  void broker_says(const std::string& body) const {
    const std::string frame{'\0', '\0', '\0', static_cast<char>(body.size())};
    REQUIRE(write(ends[1], (frame + body).data(), body.size() + 4) > 0);
  }
  // The bytes that the broker receives, if it receives any within the time.
  std::string heard(int milliseconds) const {
    pollfd end{ends[1], POLLIN, 0};
    if (poll(&end, 1, milliseconds) != 1) return {};
    std::array<char, 100> bytes;
    const ssize_t size = read(ends[1], bytes.data(), bytes.size());
    return {bytes.data(), size > 0 ? static_cast<size_t>(size) : 0};
  }
};

}  // namespace

TEST_CASE("a turn that is wanted goes between two iterations, once, and the next one asks again") {
  Session session;
  CHECK(session.turn.enter());
  session.turn.leave();
  CHECK(session.turn.gone_at() == 0);
  session.broker_says(kYield);
  CHECK(session.heard(kAtLongest) == "over");
  CHECK(session.turn.gone_at() > 0);
  CHECK(session.evacuations == 1);
  CHECK_FALSE(session.turn.enter());
  CHECK_FALSE(session.turn.keep());
  CHECK(session.turn.gone_at() == 0);
  session.turn.prepare(4, "over again");
  CHECK(session.turn.lend());
  CHECK(session.turn.enter());
  session.turn.leave();
  session.turn.want();
  CHECK(session.heard(kAtLongest) == "over again");
}

TEST_CASE("a turn stays during an iteration, while a block is alive, and while it is kept") {
  Session inside, alive, kept, other;
  CHECK(inside.turn.enter());
  alive.is_empty = false;
  CHECK(kept.turn.keep());
  for (const Session* session : {&inside, &alive, &kept}) session->broker_says(kYield);
  other.broker_says(R"({"type":"Yield","turn":2,"successor":null})");
  Session goes;  // later than all of them, so their threads have looked as well by then
  goes.broker_says(kYield);
  CHECK(goes.heard(kAtLongest) == "over");
  for (Session* session : {&inside, &alive, &kept, &other}) {
    CHECK(session->heard(0).empty());
    CHECK(session->turn.gone_at() == 0);
  }
  inside.turn.leave();
  alive.is_empty = true;
  CHECK(inside.heard(kAtLongest) == "over");
  CHECK(alive.heard(kAtLongest) == "over");
}

TEST_CASE("a turn goes before an iteration or after it, and never during one, in two threads") {
  Session session;
  std::atomic<bool> is_inside = false, went_inside = false, is_over = false;
  IdleTurn turn({[] { return true; }, [&] { went_inside = went_inside || is_inside; }}, false);
  turn.watch(session.ends[0]);
  std::thread looks([&] {
    while (!is_over) turn.look();
  });
  for (uint64_t number = 1; number <= 100; ++number) {
    turn.prepare(number, "over");
    CHECK(turn.lend());
    turn.want();
    while (turn.enter()) {
      is_inside = true;
      std::this_thread::yield();
      is_inside = false;
      turn.leave();
      std::this_thread::yield();
    }
    turn.leave();
    CHECK(turn.gone_at() > 0);
    CHECK(session.heard(kAtLongest) == "over");
  }
  is_over = true;
  looks.join();
  CHECK_FALSE(went_inside);
  turn.watch(-1);
}

TEST_CASE("without a connection a turn stays, and a connection that has ended tells nothing") {
  Session without, ended;
  without.turn.watch(-1);
  without.turn.want();
  REQUIRE(shutdown(ended.ends[1], SHUT_RDWR) == 0);
  Session goes;
  goes.broker_says(kYield);
  CHECK(goes.heard(kAtLongest) == "over");
  CHECK(without.turn.gone_at() == 0);
  CHECK(ended.turn.gone_at() == 0);
}
