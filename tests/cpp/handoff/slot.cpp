// Direct handoffs between two handoff slots, and other messages that can come into one.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>

#include "handoff/handoff_slot.h"
#include "handoff/mac.h"

using namespace gpushare;

namespace {

const std::string kSlotKey(32, 'k');

std::string unique(const std::string& name) { return name + "-" + std::to_string(getpid()); }

// A direct handoff that gives the turn of this number.
std::string turn(int number, const std::string& key = kSlotKey) {
  const std::string numbers = std::to_string(number) + " 1 0 0 0";
  return mac(key, numbers) + " " + numbers;
}

// A connection to a broker, whose part the test plays.
struct Connection {
  std::array<int, 2> ends;

  Connection() { REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    for (const int end : ends) close(end);
  }

  int session() const { return ends[0]; }
  void say(const std::string& body) const {
    const std::string frame{'\0', '\0', static_cast<char>(body.size() >> 8),
                            static_cast<char>(body.size())};
    REQUIRE(write(ends[1], (frame + body).data(), body.size() + 4) > 0);
  }
};

std::string yield(const std::string& handoff_slot) {
  return R"({"type":"Yield","turn":3,"successor":{"handoff_slot":")" + handoff_slot +
         R"(","handoff_token":")" + turn(7) + R"("}})";
}

// A slot whose direct handoffs have kSlotKey.
struct Own : HandoffSlot {
  explicit Own(const std::string& name) : HandoffSlot(name) { renew(kSlotKey); }
};

}  // namespace

TEST_CASE("a turn goes from one thread's slot to the other's, and nothing is taken on the way") {
  Own first(unique("first")), second(unique("second"));
  Connection ours, theirs;
  std::optional<Turn> given;
  std::thread waiting([&] { given = second.await(theirs.session(), 7); });
  CHECK_FALSE(first.look(ours.session(), 3));
  ours.say(yield(unique("second")));
  for (int twice = 0; twice < 2; ++twice) CHECK(first.look(ours.session(), 3));
  CHECK(first.has_successor());
  first.hand_off();
  waiting.join();
  REQUIRE(given);
  CHECK(given->number == 7);
  CHECK_FALSE(first.has_successor());
  CHECK(first.look(ours.session(), 3));
}

TEST_CASE("a waiting session hears the broker and its end") {
  Own handoff_slot(unique("waiter"));
  Connection connection;
  connection.say("{}");
  CHECK_FALSE(handoff_slot.await(connection.session(), 7));
  CHECK(handoff_slot.look(connection.session(), 7));
  Connection ended;
  REQUIRE(shutdown(ended.ends[1], SHUT_RDWR) == 0);
  CHECK_FALSE(handoff_slot.await(ended.session(), 7));
  CHECK_FALSE(handoff_slot.await(-1, 7));
  CHECK(handoff_slot.look(ended.session(), 7));
}

TEST_CASE("a direct handoff of another turn, or of a stranger, gives nothing") {
  Own handoff_slot(unique("waiter")), stranger(unique("stranger"));
  Connection connection;
  for (const std::string& handoff_token : {turn(6), turn(7, std::string(32, 'x')), std::string(),
                                           std::string(4096, 'x'), turn(7) + "?"}) {
    stranger.send({unique("waiter"), handoff_token});
    CHECK_FALSE(handoff_slot.await(connection.session(), 7));
  }
  stranger.send({unique("waiter"), turn(7)});
  CHECK(handoff_slot.await(connection.session(), 7));
}

TEST_CASE("a message of the broker goes before a direct handoff that has arrived as well") {
  Own handoff_slot(unique("waiter")), sender(unique("sender"));
  Connection connection;
  sender.send({unique("waiter"), turn(7)});
  connection.say("renew your key");
  CHECK_FALSE(handoff_slot.await(connection.session(), 7));
  std::array<char, 100> said;
  REQUIRE(read(connection.session(), said.data(), said.size()) > 0);
  handoff_slot.renew(std::string(32, 'n'));
  CHECK_FALSE(handoff_slot.await(connection.session(), 7));
  sender.send({unique("waiter"), turn(7, std::string(32, 'n'))});
  CHECK(handoff_slot.await(connection.session(), 7));
}

TEST_CASE("a slot that cannot be made is closed, and reports it") {
  Own handoff_slot(unique("name")), same(unique("name"));
  CHECK(handoff_slot.is_open());
  CHECK_FALSE(same.is_open());
  CHECK_FALSE(Own("").is_open());
  CHECK_FALSE(Own(std::string(200, 'n')).is_open());
  Connection connection;
  connection.say(yield(unique("name")));
  CHECK(same.look(connection.session(), 3));
  same.hand_off();  // lost, as the broker's own Grant is not
  same.send({std::string(200, 'n'), "handoff_token"});
  CHECK_FALSE(same.await(connection.session(), 7));
}

TEST_CASE("direct handoffs with the key before give nothing") {
  Own handoff_slot(unique("waiter")), sender(unique("sender"));
  Connection connection;
  for (const auto& key : {std::string(32, 'n'), std::string()}) {
    handoff_slot.renew(key);
    sender.send({unique("waiter"), turn(7)});
    CHECK_FALSE(handoff_slot.await(connection.session(), 7));
  }
}
