#include "memory/co_lane/low_places.h"

#include <algorithm>
#include <utility>

namespace gpushare {
namespace {

// A block gets a place if the top falls by at least this part of the lane when it ends, ...
constexpr Page kLeastFall = 16;
// ... and if it had lain on top of a hollow for at least this part of the iteration.
constexpr uint32_t kLeastTime = 16;
// A block that has not come for that number of iterations in a row loses its place. They are many,
// since evaluations between two epochs have other blocks.
constexpr uint32_t kMissed = 256;

}  // namespace

void LowPlaces::begin(Page lane_pages) {
  if (std::exchange(is_tight_, false)) {
    too_small_ = lane_pages_;
    size_ = kept_ = 0;
  }
  lane_pages_ = lane_pages;
  last_events_ = events_;
  events_ = hollow_ = 0;
  top_ = 0;
  has_kept_ = has_learned_ = false;
}

void LowPlaces::keep(BlockAllocator& blocks) {
  if (has_kept_) return;
  has_kept_ = true;
  for (Lesson& lesson : lessons()) {
    lesson.place = blocks.allocate(lesson.count);
    ++lesson.missed;
  }
}

Page LowPlaces::take(const Birth& birth) {
  Lesson* lesson = lesson_of(birth);
  if (lesson == nullptr || lesson->place == kNoPage) return kNoPage;
  lesson->missed = 0;
  return std::exchange(lesson->place, kNoPage);
}

void LowPlaces::give_back(BlockAllocator& blocks) {
  for (Lesson& lesson : lessons()) {
    if (lesson.place != kNoPage) blocks.free(std::exchange(lesson.place, kNoPage));
  }
  forget_missed();
}

bool LowPlaces::is_in_the_way(Page fall, uint32_t hollow) const {
  return hollow * kLeastTime >= std::max(last_events_, events_) && fall >= lane_pages_ / kLeastFall;
}

LowPlaces::Lesson* LowPlaces::lesson_of(const Birth& birth) {
  const auto found = std::ranges::find_if(lessons(), [&](const Lesson& lesson) {
    return lesson.bytes == birth.bytes && lesson.ordinal == birth.ordinal;
  });
  return found == lessons().end() ? nullptr : &*found;
}

void LowPlaces::learn(const Birth& birth, Page count) {
  const bool has_room =
      size_ < kMost && lane_pages_ > too_small_ && kept_ + count <= lane_pages_ / kPart;
  if (!has_room || lesson_of(birth) != nullptr) return;
  lessons_[size_++] = {birth.bytes, birth.ordinal, count, kNoPage, 0};
  kept_ += count;
  has_learned_ = has_kept_ = true;  // it gets its place from the next iteration on
}

void LowPlaces::forget_missed() {
  const auto gone = std::ranges::remove_if(
      lessons(), [](const Lesson& lesson) { return lesson.missed >= kMissed; });
  size_ -= gone.size();
  kept_ = 0;
  for (const Lesson& lesson : lessons()) kept_ += lesson.count;
}

}  // namespace gpushare
