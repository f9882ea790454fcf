// The block allocator against a reference that is slow and obvious.
#include "memory/common/block_allocator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

using namespace gpushare;

namespace {

// The state of every page, one by one, and the live blocks by their first page.
class Reference {
 public:
  explicit Reference(Page pages) : pages_(pages, State::unavailable) {}

  void add(Page first, Page count) { change(first, count, State::unavailable, State::free); }
  bool take(Page first, Page count) {
    for (Page page = first; page < first + count; ++page) {
      if (pages_[page] != State::free) return false;
    }
    change(first, count, State::free, State::unavailable);
    return true;
  }
  bool allocate(Page first, Page count) {  // false where the pages are not all free
    if (!take(first, count)) return false;
    change(first, count, State::unavailable, State::live);
    live_[first] = count;
    return true;
  }
  void free(Page first) {
    change(first, live_.at(first), State::live, State::free);
    live_.erase(first);
  }

  const std::map<Page, Page>& live() const { return live_; }
  Page size_of(Page first) const { return live_.contains(first) ? live_.at(first) : 0; }
  Page end() const { return live_.empty() ? 0 : live_.rbegin()->first + live_.rbegin()->second; }
  Page used() const { return count(State::live); }
  Page available() const { return used() + count(State::free); }
  Page longest_free() const {
    Page longest = 0, run = 0;
    for (const State state : pages_) {
      run = state == State::free ? run + 1 : 0;
      longest = std::max(longest, run);
    }
    return longest;
  }

 private:
  enum class State { unavailable, free, live };

  void change(Page first, Page count, State from, State to) {
    const auto begin = pages_.begin() + first;
    std::replace(begin, begin + count, from, to);
  }
  Page count(State state) const {
    return static_cast<Page>(std::count(pages_.begin(), pages_.end(), state));
  }

  std::vector<State> pages_;
  std::map<Page, Page> live_;
};

std::map<Page, Page> live_blocks(const BlockAllocator& blocks) {
  std::map<Page, Page> live;
  blocks.for_each_live([&](Page first, Page count) { live[first] = count; });
  return live;
}

// Both sides by side: each step is done to both, and then they must agree.
class Pair {
 public:
  Pair(Page pages, unsigned seed) : blocks_(pages), reference_(pages), random_(seed) {}

  void step() {
    const Page first = below(blocks_.pages());
    switch (below(16)) {
      case 0:
        add(first, below(blocks_.pages() - first) / 4);
        break;
      case 1:
        take(first, below(blocks_.pages() - first) / 16);
        break;
      case 2:
        reset_footprint();
        break;
      case 3:
        blocks_.free(first);  // mostly of no block: then nothing happens
        if (reference_.size_of(first) > 0) reference_.free(first);
        break;
      case 4:
        claim(first, below(blocks_.pages() - first) / 16);
        break;
      default:
        below(32) < allocations_ ? allocate(1 + below(1U << below(8))) : free_any();
    }
    if (below(500) == 0) allocations_ = 32 - allocations_;
  }

  void check() {
    REQUIRE(blocks_.is_valid() == "");
    REQUIRE(blocks_.used() == reference_.used());
    REQUIRE(blocks_.available() == reference_.available());
    REQUIRE(blocks_.footprint() == footprint_);
    REQUIRE(blocks_.top() == reference_.end());
  }
  void check_every_page() const {
    REQUIRE(live_blocks(blocks_) == reference_.live());
    REQUIRE(blocks_.largest_free() == reference_.longest_free());
    for (Page page = 0; page < blocks_.pages(); ++page) {
      REQUIRE(blocks_.size_of(page) == reference_.size_of(page));
    }
  }

 private:
  Page below(Page n) { return n == 0 ? 0 : static_cast<Page>(random_() % n); }

  void add(Page first, Page count) {
    blocks_.add(first, count);
    reference_.add(first, count);
  }
  void take(Page first, Page count) {
    REQUIRE(blocks_.take(first, count) == reference_.take(first, count));
  }
  void claim(Page first, Page count) {
    const bool claimed = count > 0 && reference_.allocate(first, count);
    REQUIRE(blocks_.claim(first, count) == claimed);
    if (claimed) footprint_ = std::max(footprint_, first + count);
  }
  void reset_footprint() {
    blocks_.reset_footprint();
    footprint_ = reference_.end();
  }
  void allocate(Page count) {
    const bool fits = count <= reference_.longest_free();
    const Page first = blocks_.allocate(count);
    REQUIRE((first != kNoPage) == fits);
    if (!fits) return;
    REQUIRE(reference_.allocate(first, count));
    footprint_ = std::max(footprint_, first + count);
  }
  void free_any() {
    if (reference_.live().empty()) return;
    const Page first =
        std::next(reference_.live().begin(), below(static_cast<Page>(reference_.live().size())))
            ->first;
    blocks_.free(first);
    reference_.free(first);
  }

  BlockAllocator blocks_;
  Reference reference_;
  std::mt19937 random_;
  Page footprint_ = 0;
  Page allocations_ = 22;  // of 32 steps: the range fills, then it empties
};

}  // namespace

TEST_CASE("random operations agree with the reference, and break no invariant") {
  for (const Page pages : {1U, 17U, 300U, 2000U}) {
    Pair pair(pages, pages);
    for (int i = 0; i < 50'000; ++i) {
      pair.step();
      pair.check();
      if (i % 64 == 0) pair.check_every_page();
    }
  }
}

TEST_CASE("no page is available before it is added") {
  BlockAllocator blocks(100);
  CHECK(blocks.available() == 0);
  CHECK(blocks.allocate(1) == kNoPage);
  CHECK(blocks.is_valid() == "");
}

TEST_CASE("all freed in random order gives one block") {
  std::mt19937 random(7);
  BlockAllocator blocks(10'000);
  blocks.add(0, 10'000);
  for (int round = 0; round < 20; ++round) {
    std::vector<Page> live;
    while (true) {
      const Page first = blocks.allocate(1 + random() % 60);
      if (first == kNoPage) break;
      live.push_back(first);
    }
    std::shuffle(live.begin(), live.end(), random);
    for (const Page first : live) blocks.free(first);
    CHECK(blocks.used() == 0);
    CHECK(blocks.is_valid() == "");
    const Page whole = blocks.allocate(10'000);
    CHECK(whole == 0);
    blocks.free(whole);
  }
}

TEST_CASE("where there are gaps, all freed gives one block between two of them") {
  BlockAllocator blocks(100);
  blocks.add(0, 40);
  blocks.add(60, 40);
  const Page low = blocks.allocate(40), high = blocks.allocate(40);
  CHECK(blocks.allocate(1) == kNoPage);
  blocks.free(low);
  blocks.free(high);
  CHECK(blocks.is_valid() == "");
  CHECK(blocks.allocate(41) == kNoPage);
  blocks.add(40, 20);
  CHECK(blocks.allocate(100) == 0);
}

TEST_CASE("pages are taken all or not at all") {
  BlockAllocator blocks(100);
  blocks.add(0, 50);
  CHECK(blocks.allocate(10) == 0);
  CHECK_FALSE(blocks.take(5, 10));
  CHECK_FALSE(blocks.take(45, 10));
  CHECK_FALSE(blocks.take(95, 10));
  CHECK(blocks.available() == 50);
  CHECK(blocks.take(20, 10));
  CHECK(blocks.available() == 40);
  CHECK_FALSE(blocks.take(20, 1));
  CHECK(blocks.is_valid() == "");
}

TEST_CASE("pages that are added twice are available once") {
  BlockAllocator blocks(100);
  blocks.add(10, 10);
  const Page first = blocks.allocate(10);
  blocks.add(0, 100);
  CHECK(blocks.available() == 100);
  CHECK(blocks.size_of(first) == 10);
  CHECK(blocks.is_valid() == "");
}

TEST_CASE("pages outside the range change nothing") {
  BlockAllocator blocks(100);
  blocks.add(0, 100);
  blocks.add(99, 2);
  blocks.add(200, kNoPage);
  CHECK(blocks.available() == 100);
  CHECK_FALSE(blocks.take(100, 1));
  CHECK_FALSE(blocks.take(1, kNoPage));
  CHECK(blocks.allocate(0) == kNoPage);
  CHECK(blocks.allocate(kNoPage) == kNoPage);
  blocks.free(100);
  blocks.free(kNoPage);
  CHECK(blocks.size_of(kNoPage) == 0);
  CHECK(blocks.is_valid() == "");
}

TEST_CASE("the footprint is the highest page that was used since the last reset") {
  BlockAllocator blocks(100);
  blocks.add(0, 100);
  const Page low = blocks.allocate(10), high = blocks.allocate(20);
  CHECK(low == 0);
  CHECK(blocks.footprint() == 30);
  blocks.free(high);
  CHECK(blocks.footprint() == 30);
  blocks.reset_footprint();
  CHECK(blocks.footprint() == 10);
  blocks.free(low);
  blocks.reset_footprint();
  CHECK(blocks.footprint() == 0);
}

TEST_CASE("of blocks that fit equally the lowest is used") {
  BlockAllocator blocks(100);
  blocks.add(0, 50);
  for (int i = 0; i < 5; ++i) CHECK(blocks.allocate(10) == Page(i) * 10);
  for (const Page first : {20U, 40U, 0U}) blocks.free(first);
  CHECK(blocks.allocate(10) == 0);
  CHECK(blocks.allocate(10) == 20);
  CHECK(blocks.allocate(10) == 40);
}

TEST_CASE("a block is found however many smaller ones of its class come first") {
  BlockAllocator blocks(1000);
  for (Page i = 0; i < 20; ++i) blocks.add(i * 40, 32 + (i == 0));
  CHECK(blocks.allocate(33) == 0);
  CHECK(blocks.allocate(33) == kNoPage);
}

TEST_CASE("a range of two to the thirty-two pages costs nothing until it is used") {
  BlockAllocator blocks(kNoPage);
  REQUIRE(blocks.is_usable());
  blocks.add(0, kNoPage);
  CHECK(blocks.allocate(kNoPage - 1) == 0);
  CHECK(blocks.allocate(2) == kNoPage);
  CHECK(blocks.allocate(1) == kNoPage - 1);
  CHECK(blocks.is_valid() == "");
}
