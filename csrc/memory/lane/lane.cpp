#include "memory/lane/lane.h"

#include <algorithm>
#include <bit>

namespace gpushare {
namespace {

const std::thread::id kNoThread;

const void* last_byte(const Extent& extent) {
  return static_cast<const std::byte*>(extent.begin) + extent.bytes - 1;
}

std::string in_bytes(size_t bytes) { return std::to_string(bytes) + " bytes"; }

}  // namespace

Lane::Lane(LanePages& pages, Tenant tenant)
    : pages_(pages), tenant_(tenant), blocks_(std::in_place, 0), window_(pages) {}

Page Lane::page_of(const void* address) const {
  return static_cast<Page>((reinterpret_cast<uintptr_t>(address) - begin_) >> page_shift_);
}

// --- the window, and the lane's memory in it

std::string Lane::open(size_t window_bytes) {
  const std::lock_guard boundary(boundary_);
  const Guard guard(lock_);
  if (window_bytes_ > 0) return "a window of addresses is open already";
  page_shift_ = std::countr_zero(pages_.page_bytes());
  const size_t pages = window_bytes >> page_shift_;
  if (pages == 0 || pages >= kNoPage) return "a window cannot have " + in_bytes(window_bytes);
  const auto window = static_cast<Page>(pages);
  void* begin = pages_.reserve(window);
  if (begin == nullptr || !births_.open(window) || !blocks_.emplace(window).is_usable()) {
    return "the system has no window of " + in_bytes(window_bytes);
  }
  begin_ = reinterpret_cast<uintptr_t>(begin);
  window_bytes_ = bytes(window);
  return {};
}

std::string Lane::attach(std::span<const int> descriptors, size_t lane_bytes, const LaneEnd* end) {
  const std::lock_guard boundary(boundary_);
  const Guard guard(lock_);
  std::string reason = busy();
  if (reason.empty() && lane_bytes > window_bytes_) {
    reason = "a lane of " + in_bytes(lane_bytes) + " does not fit into a window of " +
             in_bytes(window_bytes_);
  }
  if (reason.empty()) reason = pages_.check(descriptors, lane_bytes);
  if (reason.empty()) reason = change_end(end, lane_bytes);
  if (reason.empty() && !pages_.is_attached(descriptors)) {
    show(0);
    reason = pages_.attach(descriptors);
  }
  if (!reason.empty()) return reason;
  show(co_lane_ ? co_lane_->pages() : static_cast<Page>(lane_bytes >> page_shift_));
  if (!window_.is_stale()) return {};
  show(0);
  co_lane_.reset();
  return "the system cannot map a lane of " + in_bytes(lane_bytes);
}

// An end is given up before another one is taken: it may be the same.
std::string Lane::change_end(const LaneEnd* end, size_t lane_bytes) {
  if (co_lane_ || end != nullptr) show(0);
  co_lane_.reset();
  if (end == nullptr) return {};
  if (tenant_ != Tenant::kTensors) return "segments cannot be in a lane that two processes fill";
  co_lane_ = std::make_unique<CoLane>(progress_);
  std::string reason = co_lane_->open(*end, lane_bytes, bytes(1));
  if (!reason.empty()) co_lane_.reset();
  return reason;
}

std::string Lane::detach() {
  const std::lock_guard boundary(boundary_);
  const Guard guard(lock_);
  if (std::string reason = busy(); !reason.empty()) return reason;
  show(0);
  co_lane_.reset();
  pages_.detach();
  return {};
}

void Lane::forget() {
  const Guard guard(lock_);
  predictor_.forget();
}

std::string Lane::busy() const {
  const bool is_used = inside_.load() != kNoThread || (co_lane_ && co_lane_->has_sleepers());
  if (is_used) return "an iteration is using the lane";
  if (blocks_->used() == 0) return {};
  return in_bytes(bytes(blocks_->used())) + " of this process are alive in the lane";
}

void Lane::show(Page lane_pages) {
  std::optional<Side> side;
  if (co_lane_) side = Side{co_lane_->end(), co_lane_->chunk_pages()};
  window_.show(lane_pages, side, *blocks_);
}

std::vector<Run> Lane::living() const {
  std::vector<Run> blocks;
  if (blocks_->used() == 0) return blocks;
  blocks_->for_each_live([&](Page first, Page count) { blocks.push_back({first, count}); });
  return blocks;
}

// --- iterations

void Lane::enter() {
  const std::lock_guard boundary(boundary_);
  const Guard guard(lock_);
  if (is_inside()) return;
  end_iteration();
  if (window_.is_stale() && blocks_->used() == 0) window_.lay_out(*blocks_);
  blocks_->reset_footprint();
  if (co_lane_) {
    co_lane_->begin(blocks_->top());
    low_places_.begin(window_.lane_pages());
  }
  curve_.begin(time());
  inside_ = this_thread();
}

void Lane::leave() {
  const Guard guard(lock_);
  end_iteration();
}

void Lane::end_iteration() {
  if (inside_.load() == kNoThread) return;
  inside_ = kNoThread;
  curve_.end(time());
  low_places_.give_back(*blocks_);
  if (tenant_ == Tenant::kTensors) learn();
  predictor_.end_iteration();
  counter_.end(footprint());
  if (co_lane_) co_lane_->leave(blocks_->top(), !low_places_.has_learned());
}

void Lane::learn() {
  for (const Run& block : living()) {
    const Predictor::Birth& birth = births_[block.first];
    if (birth.iteration == predictor_.iteration()) predictor_.survived(birth);
  }
}

// Pages of the lane that lie below the highest one in use; survivors between them are not part of
// the lane, unless they were in it in this iteration.
Page Lane::footprint() const {
  return window_.shown_below(co_lane_ ? co_lane_->footprint() : blocks_->footprint());
}

size_t Lane::survivor_bytes() const {
  const Guard guard(lock_);
  return bytes(blocks_->used());
}

// No thread allocates meanwhile, but other threads may free: a block that died while it was copied
// is kept as a dead survivor.
size_t Lane::promote() {
  const std::lock_guard boundary(boundary_);
  const Moved moved = move_out(last_survivors(), [&](const Run& run) { return pages_.copy(run); });
  const Guard guard(lock_);
  counter_.promoted(moved.pages, moved.runs);
  if (co_lane_) co_lane_->died(blocks_->top());
  if (!moved.is_all) throw PromotionFailed();
  return bytes(moved.pages);
}

void Lane::pass_on() {
  const Guard guard(lock_);
  if (co_lane_) co_lane_->pass_on();
}

// These blocks leave the lane, in the order of their addresses, until one cannot be copied.
Lane::Moved Lane::move_out(std::span<const Run> blocks, const MakeCopy& make_copy) {
  const std::vector<Run> runs = merged(blocks);
  const auto failed = std::find_if_not(
      runs.begin(), runs.end(), [&](const Run& run) { return window_.replace(run, make_copy); });
  const Page end = failed == runs.end() ? kNoPage : failed->first;
  const auto kept =
      blocks.first(std::ranges::lower_bound(blocks, end, {}, &Run::first) - blocks.begin());
  const Guard guard(lock_);
  return {window_.hold(kept, *blocks_), static_cast<size_t>(failed - runs.begin()),
          failed == runs.end()};
}

std::vector<Run> Lane::last_survivors() {
  const Guard guard(lock_);
  end_iteration();
  return living();
}

std::vector<Run> Lane::blocks_of_iteration() {
  const Guard guard(lock_);
  low_places_.give_back(*blocks_);
  return is_inside() ? living() : std::vector<Run>{};
}

// --- blocks

Lane::Place Lane::allocate(size_t block_bytes, size_t alignment) {
  if (block_bytes < kSmallestBlock || !is_inside() || alignment > bytes(1)) return {};
  const Guard guard(lock_);
  if (!is_inside() || window_.lane_pages() == 0)
    return {};  // another thread may have ended the iteration
  const Predictor::Birth birth = predictor_.next(block_bytes);
  if (const auto note = predictor_.expect(birth)) {  // never, where nothing is learned
    counter_.was_expected_to_survive();
    return {nullptr, note};
  }
  const Page first = co_lane_ ? find_beside_another(birth) : find(block_bytes);
  if (first == kNoPage) {
    if (!is_inside()) return {};
    counter_.did_not_fit();
    return {nullptr, overflow_note()};
  }
  births_[first] = birth;
  happened();
  return {reinterpret_cast<void*>(begin_ + bytes(first)), 0};
}

// A block, or kNoPage where there is no room.
Page Lane::find(size_t block_bytes) {
  if (block_bytes > bytes(window_.lane_pages())) return kNoPage;
  return blocks_->allocate(static_cast<Page>(whole_pages(block_bytes)));
}

// As above, in a lane that another process fills from the other end. If the block needs more than
// this process may have, it is made only after the wait: other threads may free and fork meanwhile.
Page Lane::find_beside_another(const Predictor::Birth& birth) {
  while (is_inside()) {
    const Page first = find_low(birth);
    if (first == kNoPage) return kNoPage;
    const Page top = blocks_->top();
    const CoLane::Answer answer = co_lane_->claim(top);
    if (answer == CoLane::Answer::kGranted) {
      low_places_.born(blocks_->used(), top);
      co_lane_->born(birth.bytes, top);
      return first;
    }
    blocks_->free(first);
    if (answer == CoLane::Answer::kPrivate) {
      if (top > co_lane_->pages()) low_places_.did_not_fit();
      return kNoPage;
    }
    if (!wait(answer, top)) co_lane_->go_on_privately(answer);
  }
  return kNoPage;
}

// The place that was kept for this block, or any.
Page Lane::find_low(const Predictor::Birth& birth) {
  if (low_places_.has_any()) {
    low_places_.keep(*blocks_);
    if (const Page place = low_places_.take(birth); place != kNoPage) return place;
  }
  return find(birth.bytes);
}

// Gives the lock back meanwhile. False: this iteration must not wait any more.
bool Lane::wait(CoLane::Answer answer, Page top) {
  const CoLane::Sleeper sleeper(*co_lane_);
  const auto since = co_lane_->waits_since();
  const Unlocked unlocked(lock_);
  return answer == CoLane::Answer::kSpill ? spill() : co_lane_->sleep(top, since);
}

// Moves living blocks out of the lane in the middle of an iteration, since otherwise the other
// process cannot go on. Such a block keeps its addresses, and stays out of the lane until it ends.
bool Lane::spill() {
  const std::lock_guard boundary(boundary_);
  const std::vector<Run> blocks = blocks_of_iteration();
  Page in_memory = 0;
  const auto copy = [&](const Run& run) {
    void* pages = pages_.copy_to_file(run, co_lane_->page_directory());
    if (pages != nullptr) return pages;
    in_memory += run.count;
    return pages_.copy(run);
  };
  const Moved moved = move_out(blocks, copy);
  in_memory = std::min(in_memory, moved.pages);
  const Guard guard(lock_);
  counter_.spilled(moved.pages - in_memory);
  counter_.overflow_began(in_memory);
  const bool is_spilled = moved.is_all && is_inside();  // another thread may have ended it
  is_spilled ? co_lane_->spilled() : co_lane_->died(blocks_->top());
  return is_spilled;
}

void Lane::free(void* address) {
  const Guard guard(lock_);
  const Page first = page_of(address);
  if (!trimmed_.end(first, [&](Page part) { end_block(part); })) end_block(first);
  if (co_lane_) co_lane_->died(blocks_->top());
  if (inside_.load() != kNoThread) happened();
}

// A block has begun or ended in the lane, in an iteration.
void Lane::happened() {
  curve_.add(bytes(blocks_->used()), [&] { return time(); });
}

// Seconds of a clock that stands still while this process waits for the other one.
double Lane::time() const {
  const std::chrono::duration<double> now = CoLane::Clock::now().time_since_epoch();
  return now.count() - (co_lane_ ? co_lane_->usage().wait_seconds : 0);
}

// A block in the lane, or one promoted from it.
void Lane::end_block(Page first) {
  const Page count = blocks_->size_of(first);
  blocks_->free(first);
  if (co_lane_ && count > 0 && low_places_.died(count, blocks_->used(), blocks_->top())) {
    low_places_.learn(births_[first], count);
  }
  window_.died(first);
}

// --- segments

// The freed pages may become part of another segment before PyTorch's allocator ends this one. The
// first page is always kept, since that allocator knows segments by their addresses alone.
void Lane::trim(std::span<const Extent> extents) {
  const std::lock_guard boundary(boundary_);
  const Guard guard(lock_);
  for (const Run& block : living()) {
    if (!trimmed_.has_part(block)) trimmed_.trim(block, pages_of(extents, block), *blocks_);
  }
}

size_t Lane::room() const {
  const Guard guard(lock_);
  return bytes(blocks_->largest_free());
}

size_t Lane::trimmed_bytes() const {
  const Guard guard(lock_);
  return bytes(trimmed_.in_lane(*blocks_));
}

// The first page of a block, and the pages that contain any of these bytes.
std::vector<Run> Lane::pages_of(std::span<const Extent> extents, const Run& block) const {
  std::vector<Run> runs{{block.first, 1}};
  for (const Extent& extent : extents) {
    if (!owns(extent.begin)) continue;
    const Page first = std::max(page_of(extent.begin), runs.back().end());
    const Page end = std::min(page_of(last_byte(extent)) + 1, block.end());
    if (first < end) runs.push_back({first, end - first});
  }
  return merged(runs);
}

// --- notes

void Lane::made(Predictor::Note note, size_t block_bytes) {
  const Guard guard(lock_);
  if (note != overflow_note()) return;
  counter_.overflow_began(whole_pages(block_bytes));
}

// A block that has outlived its iteration is not part of the lane any more.
void Lane::ended(Predictor::Note note, size_t block_bytes) {
  const Guard guard(lock_);
  if (note == overflow_note()) {
    counter_.overflow_ended(whole_pages(block_bytes));
  } else if ((note & kOverflow) == 0) {
    predictor_.died(note);
  }
}

// --- forks

// The copies belong to the child. They are made here because the lane changes as soon as the
// parent continues; and they do not replace the lane's pages in the parent, because its other
// threads may be writing there.
void Lane::before_fork() {
  boundary_.lock();
  lock_.lock();
  low_places_.give_back(*blocks_);
  for (const Run& run : merged(living())) copies_.push_back({run, pages_.copy(run)});
}

void Lane::after_fork_in_parent() {
  for (const auto& [run, pages] : copies_) {
    if (pages != nullptr) pages_.discard(pages, run.count);
  }
  copies_.clear();
  lock_.unlock();
  boundary_.unlock();
}

void Lane::after_fork_in_child() {
  if (co_lane_) co_lane_->forget();
  co_lane_.reset();
  for (const auto& [run, pages] : copies_) {
    if (pages == nullptr || !pages_.place(pages, run)) pages_.fence(run);
  }
  copies_.clear();
  window_.hold(living(), *blocks_);
  window_.fence(*blocks_);
  pages_.detach();
  inside_ = kNoThread;
  lock_.unlock();
  boundary_.unlock();
}

// --- looking

LaneUsage Lane::usage() const {
  const Guard guard(lock_);
  return counter_.usage(bytes(1), window_.living_promoted());
}

TimeCurve::Known Lane::curve() const {
  const Guard guard(lock_);
  return curve_.known();
}

CoLaneUsage Lane::co_lane_usage() const {
  const Guard guard(lock_);
  return co_lane_ ? co_lane_->usage() : CoLaneUsage{};
}

std::string Lane::is_valid() const {
  const std::lock_guard boundary(boundary_);
  const Guard guard(lock_);
  std::string broken = blocks_->is_valid();
  if (broken.empty()) broken = window_.is_valid(*blocks_);
  return broken.empty() ? trimmed_.is_valid(*blocks_, window_.held()) : broken;
}

}  // namespace gpushare
