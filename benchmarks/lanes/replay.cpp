// Replays a trace of blocks through an allocator: `replay ALLOCATOR SECONDS`, where standard input
// has a line "BLOCK BYTES" for each step, and BYTES 0 means that the block ends. Prints the
// footprint in bytes and the nanoseconds of one step, the median of rounds. No block's content is
// touched. Each process has one allocator, so that it begins with an empty heap.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory/common/block_allocator.h"

namespace {

using gpushare::Page;

constexpr std::size_t kPageBytes = 4096;
constexpr Page kWindow = Page{1} << 22;  // 16 GiB

struct Step {
  std::uint32_t block;
  std::uint64_t bytes;
};

Page pages_of(std::uint64_t bytes) {
  return static_cast<Page>((bytes + kPageBytes - 1) / kPageBytes);
}

// Each allocator: Handle allocate(bytes), free(handle), footprint() in bytes.

class Ours {
 public:
  using Handle = Page;
  Ours() : blocks_(kWindow) { blocks_.add(0, kWindow); }
  Handle allocate(std::uint64_t bytes) { return blocks_.allocate(pages_of(bytes)); }
  void free(Handle block) { blocks_.free(block); }
  std::uint64_t footprint() { return blocks_.footprint() * kPageBytes; }

 private:
  gpushare::BlockAllocator blocks_;
};

// Called as libc10 does. The footprint is the most that glibc has from the system: its heap, and
// what it maps block by block. Alignment and headers are part of it, as in practice.
class Glibc {
 public:
  using Handle = void*;
  Handle allocate(std::uint64_t bytes) {
    void* block = nullptr;
    if (posix_memalign(&block, 64, bytes) != 0) std::abort();
    return block;
  }
  void free(Handle block) { ::free(block); }
  std::uint64_t footprint() {
    footprint_ = std::max(footprint_, from_system());
    return footprint_ - before_;
  }

 private:
  static std::uint64_t from_system() {
    const struct mallinfo2 info = mallinfo2();
    return info.arena + info.hblkhd;
  }
  std::uint64_t before_ = from_system();
  std::uint64_t footprint_ = before_;
};

// The textbook's best fit: free blocks by address and by length in trees, merged when they touch.
class BestFit {
 public:
  using Handle = Page;
  BestFit() { put(0, kWindow); }
  Handle allocate(std::uint64_t bytes) {
    const Page count = pages_of(bytes);
    const auto fit = by_length_.lower_bound({count, 0});
    if (fit == by_length_.end()) std::abort();
    const auto [length, first] = *fit;
    remove(by_address_.find(first));
    if (length > count) put(first + count, length - count);
    live_[first] = count;
    footprint_ = std::max(footprint_, first + count);
    return first;
  }
  void free(Handle first) {
    const auto block = live_.find(first);
    Page count = block->second;
    live_.erase(block);
    const auto after = by_address_.lower_bound(first);
    const auto before = after == by_address_.begin() ? by_address_.end() : std::prev(after);
    if (after != by_address_.end() && after->first == first + count) count += remove(after);
    if (before != by_address_.end() && before->first + before->second == first) {
      first = before->first;
      count += remove(before);
    }
    put(first, count);
  }
  std::uint64_t footprint() { return footprint_ * kPageBytes; }

 private:
  using ByAddress = std::map<Page, Page>;

  void put(Page first, Page count) {
    by_address_[first] = count;
    by_length_.insert({count, first});
  }
  Page remove(ByAddress::iterator block) {
    const Page count = block->second;
    by_length_.erase({count, block->first});
    by_address_.erase(block);
    return count;
  }

  ByAddress by_address_;
  std::set<std::pair<Page, Page>> by_length_;
  std::unordered_map<Page, Page> live_;
  Page footprint_ = 0;
};

template <class Allocator, class AfterEach>
void replay(Allocator& allocator, const std::vector<Step>& steps,
            std::vector<typename Allocator::Handle>& handles, AfterEach after_each) {
  for (const Step& step : steps) {
    auto& handle = handles[step.block];
    if (step.bytes > 0) {
      handle = allocator.allocate(step.bytes);
    } else {
      allocator.free(handle);
    }
    after_each();
  }
}

template <class Allocator>
int measure(const std::vector<Step>& steps, double seconds) {
  using Clock = std::chrono::steady_clock;
  std::uint64_t footprint = 0;
  std::vector<typename Allocator::Handle> handles(steps.size());
  std::vector<double> rounds;
  rounds.reserve(1 << 20);
  Allocator allocator;
  replay(allocator, steps, handles,
         [&] { footprint = std::max(footprint, allocator.footprint()); });
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    const auto begin = Clock::now();
    replay(allocator, steps, handles, [] {});
    rounds.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
  }
  std::nth_element(rounds.begin(), rounds.begin() + rounds.size() / 2, rounds.end());
  std::printf("%llu %.3f\n", static_cast<unsigned long long>(footprint),
              rounds[rounds.size() / 2] / static_cast<double>(steps.size()));
  return 0;
}

std::vector<Step> read_steps() {
  std::vector<Step> steps;
  unsigned block;
  unsigned long long bytes;
  while (std::scanf("%u %llu", &block, &bytes) == 2) steps.push_back({block, bytes});
  return steps;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto steps = read_steps();
  const double seconds = std::atof(argv[2]);
  if (!std::strcmp(argv[1], "ours")) return measure<Ours>(steps, seconds);
  if (!std::strcmp(argv[1], "glibc")) return measure<Glibc>(steps, seconds);
  if (!std::strcmp(argv[1], "best_fit")) return measure<BestFit>(steps, seconds);
  return 2;
}
