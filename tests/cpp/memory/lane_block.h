#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "memory/common/predictor.h"
#include "memory/host/page.h"
#include "memory/lane/lane.h"

constexpr std::size_t kBlock = gpushare::Lane::kSmallestBlock;  // a chunk of small lanes, too

// A number at both ends of each page of a block, and nowhere else the same.
struct Block {
  unsigned char* address = nullptr;
  std::size_t bytes = 0;
  std::uint64_t number = 0;

  template <class F>
  void for_each_end(F visit) const {
    using gpushare::kPage;
    for (std::size_t at = 0; at + kPage <= bytes; at += kPage) {
      visit(address + at, number + at);
      visit(address + at + kPage - sizeof number, ~(number + at));
    }
  }
  void write() const {
    for_each_end(
        [](unsigned char* at, std::uint64_t value) { std::memcpy(at, &value, sizeof value); });
  }
  bool is_whole() const {
    bool whole = true;
    for_each_end([&](unsigned char* at, std::uint64_t value) {
      whole &= std::memcmp(at, &value, sizeof value) == 0;
    });
    return whole;
  }
};

// A block of the lane, written, if there is room; allocations that are expected to survive are
// passed.
inline Block block_in(gpushare::Lane& lane, std::size_t bytes, std::uint64_t number) {
  using gpushare::Predictor;
  gpushare::Lane::Place place = lane.allocate(bytes);
  while (place.note != 0 && (place.note & Predictor::kSpareBit) == 0) place = lane.allocate(bytes);
  const Block block{static_cast<unsigned char*>(place.address), bytes, number};
  if (block.address != nullptr) block.write();
  return block;
}
