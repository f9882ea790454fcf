#include "memory/common/predictor.h"

#include <algorithm>

namespace gpushare {
namespace {

uint64_t hash(uint64_t value) { return value * 0x9E3779B97F4A7C15u; }

}  // namespace

Predictor::Birth Predictor::next(size_t bytes) {
  Count& count = counts_[hash(bytes) >> 54];
  if (count.iteration != iteration_) count = {iteration_, 0};
  return {bytes, count.next++, iteration_};
}

// The position of the lesson of this allocation, or the free slot where it would go.
Predictor::Lesson& Predictor::lesson_of(const Birth& birth) {
  size_t slot = hash(birth.bytes + hash(birth.ordinal)) >> (64 - kSlotBits);
  while (lessons_[slot].bytes != 0 &&
         (lessons_[slot].bytes != birth.bytes || lessons_[slot].ordinal != birth.ordinal)) {
    slot = (slot + 1) % kSlots;
  }
  return lessons_[slot];
}

// The allocation is trusted to survive and gains confidence for it; `died` takes back twice as
// much.
Predictor::Note Predictor::expect(const Birth& birth) {
  Lesson& lesson = lesson_of(birth);
  if (lesson.confidence <= 0) return 0;
  lesson.confidence = std::min(lesson.confidence + 1, kCertain);
  return notes_begin() | static_cast<Note>(&lesson - lessons_.data());
}

void Predictor::survived(const Birth& birth) {
  Lesson* lesson = &lesson_of(birth);
  if (lesson->bytes == 0) {
    if (size_ == kMostLessons) {  // shapes vary endlessly: one iteration teaches what matters
      forget();
      lesson = &lesson_of(birth);
    }
    ++size_;
  }
  *lesson = {birth.bytes, birth.ordinal, kLearned};
}

void Predictor::forget() {
  lessons_.fill({});
  size_ = 0;
}

void Predictor::died(Note note) {
  if (note - note % kSlots != notes_begin()) return;  // it had survived its iteration
  Lesson& lesson = lessons_[note % kSlots];
  lesson.confidence = std::max(lesson.confidence - 2, 0);
}

}  // namespace gpushare
