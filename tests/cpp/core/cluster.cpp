// Events of a cluster under the sanitizers, without which the Python tests run.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>

#include "core/cluster/cluster_queue.h"

using namespace gpushare;

namespace {

// Random events of a cluster whose hosts come and go, whose gangs tell what they compute, and whose
// queue is restored after each event.
struct Story {
  explicit Story(unsigned seed) : draw(seed) {}

  int below(int limit) { return static_cast<int>(draw() % static_cast<unsigned>(limit)); }

  Gang gang(int number) {
    const int hosts = below(3), skew = below(10);
    return {std::to_string(number), 1 + below(hosts == 0 ? 7 : 4), 1, 0, skew / 10.0, hosts,
            below(10) == 0};
  }

  void event(ClusterQueue& queue) {
    const std::string id = std::to_string(below(kGangs));
    now += below(8) / 4.0;
    if (!queue.contains(id)) return queue.request(now, gang(std::stoi(id)));
    const GangProgress progress = queue.progress(id);
    const int what = below(6);
    if (what == 0) return queue.close(now, id);
    if (what == 1) queue.set_hosts(now, hosts = {below(5), below(3), 4});
    if (what == 2 && !progress.holds.empty()) {
      DeviceCounts elsewhere = progress.holds;
      std::ranges::rotate(elsewhere, elsewhere.begin() + 1);
      return queue.moved(now, id, elsewhere);
    }
    if (what > 2) queue.served(now, id, below(20));
    if (!progress.asked) return;
    queue.finish(now, id);
    queue.request(now, progress.gang);
  }

  ClusterQueue restored(const ClusterQueue& queue) {
    ClusterQueue made({4, 2, 4}, "las", queue.rules());
    made.set_hosts(now, hosts);
    for (int each = kGangs - 1; each >= 0; --each)
      if (const std::string id = std::to_string(each); queue.contains(id))
        made.restore(now, queue.progress(id));
    return made;
  }

  static constexpr int kGangs = 12;
  std::mt19937 draw;
  DeviceCounts hosts = {4, 2, 4};
  Seconds now = 0;
};

}  // namespace

TEST_CASE("the index is the chance of ending within the quantum, over the service that it takes") {
  CHECK(gittins_index({4, 8, 12}, 0, 4) == doctest::Approx(1.0 / 3 / 4));
  CHECK(gittins_index({4, 8, 12}, 4, 4) == doctest::Approx(1.0 / 2 / 4));
  CHECK(gittins_index({4, 8, 12}, 0, 8) == doctest::Approx(2.0 / (4 + 8 + 8)));
  CHECK(gittins_index({4, 8, kNever}, 8, 4) == 0);
  CHECK(gittins_index({4, 8, 12}, 12, 4) == 0);
}

TEST_CASE("a queue of a cluster stays valid while hosts come and go, and gangs move") {
  for (unsigned seed = 0; seed < 50; ++seed) {
    Story story(seed);
    GangRules rules;
    rules.thresholds = {4, 40};
    rules.knob = 2;
    rules.told = true;
    rules.least = 1;
    ClusterQueue queue({4, 2, 4}, "las", rules);
    for (int step = 0; step < 200; ++step) {
      story.event(queue);
      queue.advance(story.now);  // not each event has told it the time
      ClusterQueue restored = story.restored(queue);
      const GangDecision decision = queue.assign(story.now), other = restored.assign(story.now);
      REQUIRE(decision.yields == other.yields);
      REQUIRE(decision.grants.size() == other.grants.size());
      for (const GangGrant& grant : decision.grants)
        REQUIRE(grant.devices == restored.progress(grant.gang).holds);
      REQUIRE(queue.is_valid() == "");
      REQUIRE(restored.is_valid() == "");
    }
  }
}
