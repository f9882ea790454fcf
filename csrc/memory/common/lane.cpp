#include "memory/common/lane.h"

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
    : pages_(pages), tenant_(tenant), blocks_(std::in_place, 0) {}

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
    resize(0);
    reason = pages_.attach(descriptors);
  }
  if (!reason.empty()) return reason;
  resize(co_lane_ ? co_lane_->pages() : static_cast<Page>(lane_bytes >> page_shift_));
  if (!is_stale_) return {};
  resize(0);
  co_lane_.reset();
  return "the system cannot map a lane of " + in_bytes(lane_bytes);
}

// An end is given up before another one is taken: it may be the same.
std::string Lane::change_end(const LaneEnd* end, size_t lane_bytes) {
  if (co_lane_ || end != nullptr) resize(0);
  co_lane_.reset();
  if (end == nullptr) return {};
  if (tenant_ != Tenant::kTensors) return "segments cannot be in a lane that two processes fill";
  co_lane_ = std::make_unique<CoLane>();
  std::string reason = co_lane_->open(*end, lane_bytes, bytes(1));
  if (!reason.empty()) co_lane_.reset();
  return reason;
}

std::string Lane::detach() {
  const std::lock_guard boundary(boundary_);
  const Guard guard(lock_);
  if (std::string reason = busy(); !reason.empty()) return reason;
  resize(0);
  co_lane_.reset();
  pages_.detach();
  predictor_.forget();
  return {};
}

std::string Lane::busy() const {
  const bool is_used = inside_.load() != kNoThread || (co_lane_ && co_lane_->has_sleepers());
  if (is_used) return "an iteration is using the lane";
  if (blocks_->used() == 0) return {};
  return in_bytes(bytes(blocks_->used())) + " of this process are alive in the lane";
}

void Lane::resize(Page lane_pages) {
  lane_pages_ = lane_pages;
  lay_out();
}

// Maps the lane where it should show. Nothing may be alive in it. Pages that cannot be mapped stay
// out of use, and the next iteration tries them again.
void Lane::lay_out() {
  bury();
  for (const Run& run : spare_) blocks_->take(run.first, run.count);
  const auto wanted = wanted_layout();
  for (const auto& stretch : difference(mapped_, wanted)) {
    blocks_->take(stretch.first, stretch.count);
    pages_.clear({stretch.first, stretch.count});
  }
  std::vector<Run> failed;
  for (const auto& stretch : difference(wanted, mapped_)) {
    if (pages_.map(stretch)) {
      blocks_->add(stretch.first, stretch.count);
    } else {
      failed.push_back({stretch.first, stretch.count});
      pages_.clear(failed.back());
    }
  }
  mapped_ = outside(wanted, failed);
  is_stale_ = !failed.empty();
  spare_ = spare_addresses();
  for (const Run& run : spare_) blocks_->add(run.first, run.count);
}

std::vector<Stretch> Lane::wanted_layout() const {
  if (!co_lane_) return layout(lane_pages_, blocks_->pages(), held());
  return layout_from(co_lane_->end(), lane_pages_, co_lane_->chunk_pages(), held());
}

// Where the last free block were as small as the lane, it would be a good fit for short-lived
// blocks near the peak of an iteration: they would lie high, and with them what this process has of
// a co-lane. So twice the lane's addresses are available, and a block above the lane is refused.
std::vector<Run> Lane::spare_addresses() const {
  if (!co_lane_) return {};
  return gaps({lane_pages_, std::min(lane_pages_, blocks_->pages() - lane_pages_)}, held());
}

// Gives the private pages of dead survivors back (demotes them: the lane may show there again).
void Lane::bury() {
  std::erase_if(survivors_, [&](const Survivor& survivor) {
    if (!survivor.is_alive) pages_.clear(survivor);
    return !survivor.is_alive;
  });
}

std::vector<Run> Lane::held() const { return {survivors_.begin(), survivors_.end()}; }

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
  if (is_stale_ && blocks_->used() == 0) lay_out();
  blocks_->reset_footprint();
  if (co_lane_) co_lane_->begin(blocks_->top());
  inside_ = this_thread();
}

void Lane::leave() {
  const Guard guard(lock_);
  end_iteration();
}

void Lane::end_iteration() {
  if (inside_.load() == kNoThread) return;
  inside_ = kNoThread;
  if (tenant_ == Tenant::kTensors) learn();
  predictor_.end_iteration();
  footprints_[++iterations_ % kRecent] = footprint();
  totals_.overflow_bytes = bytes(most_overflow_);
  overflow_ = most_overflow_ = 0;
  spilled_ = 0;
  if (co_lane_) co_lane_->leave(blocks_->top());
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
  const Page top = co_lane_ ? co_lane_->footprint() : blocks_->footprint();
  Page pages = spilled_;
  for (const auto& stretch : mapped_) {
    if (stretch.first >= top) break;
    pages += std::min(stretch.end(), top) - stretch.first;
  }
  return pages;
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
  totals_.promoted_pages += moved.pages;
  totals_.promoted_runs += moved.runs;
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
  const auto failed = std::find_if_not(runs.begin(), runs.end(),
                                       [&](const Run& run) { return keep(run, make_copy); });
  const Page end = failed == runs.end() ? kNoPage : failed->first;
  const auto kept =
      blocks.first(std::ranges::lower_bound(blocks, end, {}, &Run::first) - blocks.begin());
  const Guard guard(lock_);
  return {hold(kept), static_cast<size_t>(failed - runs.begin()), failed == runs.end()};
}

std::vector<Run> Lane::last_survivors() {
  const Guard guard(lock_);
  end_iteration();
  return living();
}

std::vector<Run> Lane::blocks_of_iteration() {
  const Guard guard(lock_);
  return is_inside() ? living() : std::vector<Run>{};
}

bool Lane::keep(const Run& run, const MakeCopy& make_copy) {
  pages_.hold(run);
  const bool is_kept = replace(run, make_copy);
  pages_.release(run);
  return is_kept;
}

bool Lane::replace(const Run& run, const MakeCopy& make_copy) {
  void* copy = make_copy(run);
  if (copy == nullptr) return false;
  if (pages_.place(copy, run)) return true;
  pages_.discard(copy, run.count);
  return false;
}

// Copies have replaced these blocks, so they are not part of the lane any more.
Page Lane::hold(std::span<const Run> blocks) {
  for (const Run& block : blocks) {
    survivors_.push_back({block, blocks_->size_of(block.first) > 0});
    blocks_->free(block.first);
  }
  std::ranges::sort(survivors_, {}, &Run::first);
  const std::vector<Run> runs = merged(blocks);
  mapped_ = outside(mapped_, runs);
  is_stale_ |= !blocks.empty();
  Page pages = 0;
  for (const Run& run : runs) {
    blocks_->take(run.first, run.count);
    pages += run.count;
  }
  return pages;
}

// --- blocks

Lane::Place Lane::allocate(size_t block_bytes, size_t alignment) {
  if (block_bytes < kSmallestBlock || !is_inside() || alignment > bytes(1)) return {};
  const Guard guard(lock_);
  if (!is_inside() || lane_pages_ == 0) return {};  // another thread may have ended the iteration
  const Predictor::Birth birth = predictor_.next(block_bytes);
  if (const auto note = predictor_.expect(birth)) {  // never, where nothing is learned
    ++totals_.expected_survivors;
    return {nullptr, note};
  }
  const Page first = co_lane_ ? find_beside_another(block_bytes) : find(block_bytes);
  if (first == kNoPage) {
    if (!is_inside()) return {};
    ++totals_.overflows;
    return {nullptr, overflow_note()};
  }
  births_[first] = birth;
  return {reinterpret_cast<void*>(begin_ + bytes(first)), 0};
}

// A block, or kNoPage where there is no room.
Page Lane::find(size_t block_bytes) {
  if (block_bytes > bytes(lane_pages_)) return kNoPage;
  return blocks_->allocate(static_cast<Page>(whole_pages(block_bytes)));
}

// The same in a lane of which another process has the rest. Where the block would need more than
// this process may have, it is not made before the wait is over: others may free and fork
// meanwhile.
Page Lane::find_beside_another(size_t block_bytes) {
  while (is_inside()) {
    const Page first = find(block_bytes);
    if (first == kNoPage) return kNoPage;
    const Page top = blocks_->top();
    const CoLane::Answer answer = co_lane_->claim(top);
    if (answer == CoLane::Answer::kGranted) {
      co_lane_->born(block_bytes, top);
      return first;
    }
    blocks_->free(first);
    if (answer == CoLane::Answer::kPrivate) return kNoPage;
    if (!wait(answer, top)) co_lane_->go_on_privately(answer);
  }
  return kNoPage;
}

// Gives the lock back meanwhile. False: this iteration is not to wait any more.
bool Lane::wait(CoLane::Answer answer, Page top) {
  const CoLane::Sleeper sleeper(*co_lane_);
  const auto since = co_lane_->waits_since();
  const Unlocked unlocked(lock_);
  return answer == CoLane::Answer::kSpill ? spill() : co_lane_->sleep(top, since);
}

// What is alive leaves the lane in the middle of an iteration, since the other process cannot go on
// else. It keeps its addresses, and stays out of the lane until it ends.
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
  spilled_ += moved.pages - in_memory;
  overflow_ += in_memory;
  most_overflow_ = std::max(most_overflow_, overflow_);
  const bool is_spilled = moved.is_all && is_inside();  // another thread may have ended it
  is_spilled ? co_lane_->spilled() : co_lane_->died(blocks_->top());
  return is_spilled;
}

void Lane::free(void* address) {
  const Guard guard(lock_);
  const Page first = page_of(address);
  const auto is_its = [&](const Part& part) { return part.segment == first; };
  for (const Part& part : parts_) {
    if (is_its(part)) end_block(part.first);
  }
  if (std::erase_if(parts_, is_its) == 0) end_block(first);
  if (co_lane_) co_lane_->died(blocks_->top());
}

// A block in the lane, or one promoted from it.
void Lane::end_block(Page first) {
  blocks_->free(first);
  const auto survivor = std::ranges::lower_bound(survivors_, first, {}, &Run::first);
  if (survivor == survivors_.end() || survivor->first != first) return;
  survivor->is_alive = false;
  is_stale_ = true;
}

// --- segments

// The pages that are free again may be part of another segment before PyTorch's allocator ends this
// one. The first page is always kept, since that allocator knows segments by their addresses alone.
void Lane::trim(std::span<const Extent> extents) {
  const std::lock_guard boundary(boundary_);
  const Guard guard(lock_);
  for (const Run& block : living()) {
    if (is_part(block)) continue;
    blocks_->free(block.first);
    for (const Run& run : pages_of(extents, block)) {
      blocks_->claim(run.first, run.count);
      parts_.push_back({run, block.first});
    }
  }
}

bool Lane::is_part(const Run& block) const {
  return std::ranges::find(parts_, block) != parts_.end();
}

size_t Lane::room() const {
  const Guard guard(lock_);
  return bytes(blocks_->largest_free());
}

size_t Lane::trimmed_bytes() const {
  const Guard guard(lock_);
  Page pages = 0;
  for (const Part& part : parts_) pages += blocks_->size_of(part.first);
  return bytes(pages);
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
  overflow_ += whole_pages(block_bytes);
  most_overflow_ = std::max(most_overflow_, overflow_);
}

// A block that has outlived its iteration is not part of the lane any more.
void Lane::ended(Predictor::Note note, size_t block_bytes) {
  const Guard guard(lock_);
  if (note == overflow_note()) {
    overflow_ -= whole_pages(block_bytes);
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
  hold(living());
  for (const auto& stretch : mapped_) {
    blocks_->take(stretch.first, stretch.count);
    pages_.fence({stretch.first, stretch.count});
  }
  for (const Run& run : spare_) blocks_->take(run.first, run.count);
  mapped_.clear();
  spare_.clear();
  lane_pages_ = 0;
  pages_.detach();
  inside_ = kNoThread;
  lock_.unlock();
  boundary_.unlock();
}

// --- looking

LaneUsage Lane::usage() const {
  const Guard guard(lock_);
  LaneUsage usage = totals_;
  usage.footprint = bytes(footprints_[iterations_ % kRecent]);
  usage.largest_footprint = bytes(*std::ranges::max_element(footprints_));
  for (const Survivor& survivor : survivors_) {
    if (survivor.is_alive) usage.living_promoted_bytes += bytes(survivor.count);
  }
  return usage;
}

CoLaneUsage Lane::co_lane_usage() const {
  const Guard guard(lock_);
  return co_lane_ ? co_lane_->usage() : CoLaneUsage{};
}

std::string Lane::is_valid() const {
  const std::lock_guard boundary(boundary_);
  const Guard guard(lock_);
  std::string broken = blocks_->is_valid();
  if (broken.empty()) broken = mapping_is_right();
  if (broken.empty()) broken = survivors_are_right();
  if (broken.empty()) broken = parts_are_right();
  return broken;
}

std::string Lane::mapping_is_right() const {
  std::vector<Run> shown;
  Page pages = 0;
  for (const auto& stretch : mapped_) {
    if (stretch.count == 0 || stretch.end() > blocks_->pages()) return "a stretch has no place";
    if (&stretch != mapped_.data() && (&stretch)[-1].end() > stretch.first) {
      return "two stretches are at one place";
    }
    shown.push_back({stretch.lane_first, stretch.count});
    pages += stretch.count;
  }
  for (const Run& run : spare_) pages += run.count;
  if (pages != blocks_->available()) return "other pages are available than are mapped";
  std::ranges::sort(shown, {}, &Run::first);
  for (size_t i = 0; i + 1 < shown.size(); ++i) {
    if (shown[i].end() > shown[i + 1].first) return "a page of the lane is mapped twice";
  }
  if (!shown.empty() && shown.back().end() > lane_pages_) return "a page past the lane is mapped";
  if (!is_stale_ && mapped_ != wanted_layout()) {
    return "the lane is not where it should be";
  }
  return {};
}

std::string Lane::survivors_are_right() const {
  const std::vector<Run> runs = held();
  for (size_t i = 0; i + 1 < runs.size(); ++i) {
    if (runs[i].end() > runs[i + 1].first) return "two survivors overlap";
  }
  if (!runs.empty() && runs.back().end() > blocks_->pages()) return "a survivor has no place";
  if (outside(mapped_, runs) != mapped_) return "the lane is mapped where a survivor is";
  return {};
}

std::string Lane::parts_are_right() const {
  const std::vector<Run> promoted = held();
  for (const Part& part : parts_) {
    const bool has_first = std::ranges::find(parts_, part.segment, &Part::first) != parts_.end();
    if (part.first < part.segment || !has_first) return "a part has no segment";
    const bool is_promoted = std::ranges::find(promoted, Run(part)) != promoted.end();
    if (is_promoted == (blocks_->size_of(part.first) == part.count)) {
      return "a part is not just once alive";
    }
  }
  return {};
}

}  // namespace gpushare
