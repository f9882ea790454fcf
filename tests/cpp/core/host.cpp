// Random events of gangs and of sessions beside them; after each one every invariant must hold,
// and the messages to clients must agree with the host.
#include "core/host/host.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace gpushare;

namespace {

constexpr int kHostEvents = 100'000;
const std::vector<std::string> kDevices{"0", "1", "2", "3"};

// Sessions of fixed devices, and the turns that they were told of.
class HostClients {
 public:
  explicit HostClients(unsigned seed)
      : random_(seed),
        host_({{"0", 100}, {"1", 100}, {"2", 80}, {"3", 100}}, "fair",
              {.quantum = 0.25, .half_life = 60, .lease = 2, .aging = 3, .boost = 0.5}) {
    for (int i = 0; i < 8; ++i) {
      Client& client = clients_["n" + std::to_string(i)];
      client.devices = {kDevices[below(4)]};
      if (i >= 4) continue;
      std::vector<std::string> others = kDevices;
      std::ranges::shuffle(others, random_);
      client.devices.assign(others.begin(), others.begin() + 2 + below(3));
    }
  }

  void run(int events) {
    for (int i = 0; i < events; ++i) {
      now_ += static_cast<double>(below(4)) * 0.1;
      try {
        take(step());
      } catch (const UnknownSession&) {
      } catch (const std::invalid_argument&) {  // there is no turn to end
      }
      look(i % 16 == 0);
    }
  }

  // All sessions want turns, and end them soon after they are asked.
  void serve() {
    for (auto& [id, client] : clients_) take(open(id, {10, 20, true}, false));
    take(host_.set_recovering(now_, false));
    for (const std::string& device : kDevices) {
      take(host_.throttle(now_, device, {}));
      take(host_.set_unmanaged(now_, device, 0));
      take(host_.set_policy(now_, device, "fair"));
    }
    std::set<std::string> served;
    for (int round = 0; round < 1000 && served.size() < clients_.size(); ++round) {
      for (auto& [id, client] : clients_) {
        if (client.has) served.insert(id);
        if (client.has && client.asked) take(finish(id));
        if (!client.has) take(host_.request(now_, id, client.wants ? client.turn : next(client)));
        look(false);
      }
      now_ += 0.1;
      take(host_.assign(now_));
    }
    CHECK(served.size() == clients_.size());
  }

 private:
  struct Client {
    std::vector<std::string> devices;
    TurnNumber turn = 0;
    bool open = false, wants = false, has = false, asked = false;
  };

  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  std::string any() { return "n" + std::to_string(below(8)); }
  const std::string& device() { return kDevices[below(4)]; }
  Demand demand() { return {below(25), below(55), below(8) != 0}; }

  static TurnNumber next(Client& client) {
    client.wants = true;
    return ++client.turn;
  }

  Decision step() {
    const std::string id = any();
    Client& client = clients_.at(id);
    const auto kind = below(100);
    if (kind < 8) return open(id, demand(), below(4) == 0);
    if (kind < 11) return close(id);
    if (kind < 35) return host_.request(now_, id, client.has ? client.turn : request(client));
    if (kind < 60) return finish(id);
    if (kind < 68) return host_.report(now_, id, below(3), demand(), std::nullopt);
    if (kind < 74) return host_.set_busy(now_, id, below(2) == 0);
    if (kind < 76) return host_.page_out_failed(now_, id);
    if (kind < 82)
      return host_.change(now_, id, 1.0 + below(3), static_cast<int>(below(2)), below(3) == 0);
    if (kind < 84) return host_.set_policy(now_, device(), policies()[below(6)].name);
    if (kind < 86) return host_.set_shares(now_, device(), {{"group0", 2.0}}, {{"user1", 3.0}});
    if (kind < 88) return host_.set_unmanaged(now_, device(), below(2) == 0 ? 0 : below(90));
    if (kind < 89) return host_.set_recovering(now_, below(4) == 0);
    if (kind < 91) return throttle();
    if (kind < 93) return host_.preempt(now_, id);
    now_ = host_.next_event(now_).value_or(now_);
    return host_.assign(now_);
  }

  TurnNumber request(Client& client) {
    if (!client.open) return client.turn + 1;
    client.has = client.asked = false;
    return next(client);
  }
  Decision open(const std::string& id, const Demand& demand, bool holding) {
    Client& client = clients_.at(id);
    SessionSpec spec;
    spec.user = "user" + std::to_string(below(3));
    spec.group = "group" + std::to_string(below(2));
    spec.demand = demand;
    // Two sessions of one device that both say they have a turn would both have it.
    spec.holding = holding && client.has;
    spec.waiting = !spec.holding && below(2) == 0;
    spec.turn = spec.holding ? client.turn : ++client.turn;
    client.open = true;
    client.wants = spec.holding || spec.waiting;
    client.has = spec.holding;
    client.asked = false;
    return host_.open(now_, id, client.devices, spec);
  }
  Decision close(const std::string& id) {
    Client& client = clients_.at(id);
    client.open = client.wants = client.has = client.asked = false;
    return host_.close(now_, id);
  }
  Decision finish(const std::string& id) {
    Client& client = clients_.at(id);
    client.wants = client.has = client.asked = false;
    return host_.finish(now_, id, client.turn);
  }
  Decision throttle() {
    const std::string& there = device();
    std::map<std::string, Why> reasons;
    for (const auto& [id, client] : clients_)
      if (host_.contains(id) && below(4) == 0 && std::ranges::count(client.devices, there) > 0)
        reasons[id] = {{Code::throttled_for_class}};
    return host_.throttle(now_, there, reasons);
  }

  void take(const Decision& decision) {
    for (const Grant& grant : decision.grants) {
      Client& client = clients_.at(grant.session);
      REQUIRE(client.wants);
      REQUIRE_FALSE(client.has);
      REQUIRE(grant.turn == client.turn);
      client.has = true;
    }
    for (const Yield& yield : decision.yields) {
      Client& client = clients_.at(yield.session);
      REQUIRE(client.has);
      REQUIRE_FALSE(client.asked);
      client.asked = true;
    }
  }

  // Whether it has its turn: a gang's is on all of its devices.
  bool runs(const std::string& id, const Client& client) const {
    const HostDevices& host = host_.devices();
    return std::ranges::all_of(client.devices, [&](const std::string& device) {
      return host.state(host.number_of(device)).sessions.of(id).turn.has_value();
    });
  }

  void look(bool closely) {
    REQUIRE(host_.is_valid() == "");
    std::map<std::string, int> users;
    for (const auto& [id, client] : clients_) {
      if (!client.open) continue;
      REQUIRE(runs(id, client) == client.has);
      for (const std::string& device : client.devices)
        if (client.has) ++users[device];
    }
    for (const auto& [id, client] : clients_)
      if (client.has && client.devices.size() > 1)
        for (const std::string& device : client.devices) REQUIRE(users.at(device) == 1);
    if (!closely) return;
    for (const std::string& device : kDevices)
      for (const SessionState& state : host_.snapshot(device, now_).sessions)
        REQUIRE(clients_.at(state.id).has ==
                (state.state == State::running || state.state == State::overdue));
  }

  std::mt19937 random_;
  Host host_;
  std::map<std::string, Client> clients_;
  Seconds now_ = 0;
};

}  // namespace

TEST_CASE("a gang has all of its devices to itself, or none, whatever happens") {
  for (unsigned seed = 0; seed < 5; ++seed) {
    HostClients clients(seed);
    clients.run(kHostEvents / 5);
    clients.serve();
  }
}
