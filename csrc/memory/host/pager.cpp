#include "memory/host/pager.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>

#include "memory/common/paging_file.h"
#include "memory/host/fault_net.h"
#include "memory/host/page.h"
#include "memory/host/touched_blocks.h"

#ifndef MADV_POPULATE_READ  // Linux 5.14
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace gpushare {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPiece = 8 * kHugePage;    // a thread that writes waits for at most this number of
                                            // bytes; smaller pieces cost more system calls
constexpr size_t kBatch = size_t{1} << 30;  // it is paged in as one mapping
constexpr int kReadWrite = PROT_READ | PROT_WRITE;

std::byte* round_up(std::byte* address, size_t unit) {
  return address + (unit - reinterpret_cast<uintptr_t>(address) % unit) % unit;
}

// The whole pages inside a block: its first and last bytes share their pages with the allocator.
Range whole_pages(const Range& block) {
  std::byte* begin = round_up(block.begin, kPage);
  std::byte* end = block.begin + block.bytes;
  end -= reinterpret_cast<uintptr_t>(end) % kPage;
  return {begin, begin < end ? static_cast<size_t>(end - begin) : 0};
}

// The system limits the mappings of a process, and each range may become two. Half of them is for
// other code.
size_t most_ranges() {
  size_t limit = 65'530;
  std::ifstream("/proc/sys/vm/max_map_count") >> limit;
  return limit / 4;
}

// Sorted by address; a range that overlaps one before it is left out.
void keep_disjoint(std::vector<Range>& ranges) {
  std::ranges::sort(ranges, {}, &Range::begin);
  const std::byte* end = nullptr;
  std::erase_if(ranges, [&](const Range& range) {
    if (range.begin < end) return true;
    end = range.begin + range.bytes;
    return false;
  });
}

bool overlap(const Range& a, const Range& b) {
  return a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

// Those of the disjoint ranges, sorted by address, that overlap none of `lent`.
void leave_out(std::vector<Range>& ranges, std::vector<Range> lent) {
  keep_disjoint(lent);
  auto next = lent.begin();
  std::erase_if(ranges, [&](const Range& range) {
    while (next != lent.end() && next->begin + next->bytes <= range.begin) ++next;
    return next != lent.end() && overlap(*next, range);
  });
}

void keep_largest(std::vector<Range>& ranges, size_t count) {
  if (ranges.size() <= count) return;
  const auto larger = [](const Range& a, const Range& b) { return a.bytes > b.bytes; };
  std::nth_element(ranges.begin(), ranges.begin() + static_cast<std::ptrdiff_t>(count),
                   ranges.end(), larger);
  ranges.resize(count);
}

// The pages become a mapping of the file with the same content. Returns zero, or the error: then
// they are as they were.
int replace_by_file(std::byte* begin, size_t bytes, int file, size_t offset) {
  int error = mprotect(begin, bytes, PROT_READ) == 0 ? 0 : errno;
  if (error == 0) error = write_all(file, begin, bytes, offset);
  if (error == 0 && mmap(begin, bytes, kReadWrite, MAP_PRIVATE | MAP_FIXED, file,
                         static_cast<off_t>(offset)) == MAP_FAILED) {
    error = errno;
  }
  if (error != 0) mprotect(begin, bytes, kReadWrite);
  return error;
}

// `fresh` becomes the memory of the pages, with their content. Returns zero, or the error: then
// they are as they were. The pages are read beforehand, since an error of the disk would end the
// process.
int replace_by_memory(std::byte* begin, size_t bytes, std::byte* fresh) {
  int error = mprotect(begin, bytes, PROT_READ) == 0 ? 0 : errno;
  if (error == 0 && madvise(begin, bytes, MADV_POPULATE_READ) != 0 && errno != EINVAL) {
    error = errno == EFAULT ? EIO : errno;
  }
  if (error == 0) {
    madvise(fresh, bytes, MADV_POPULATE_WRITE);  // this is faster; without it the copy does it
    std::memcpy(fresh, begin, bytes);
    void* moved = mremap(fresh, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, begin);
    if (moved == MAP_FAILED) error = errno;
  }
  if (error != 0) mprotect(begin, bytes, kReadWrite);
  return error;
}

// The pages stay a private mapping, but each has memory of its own. The system copies them one by
// one, so no thread has to wait for it, and no write is lost. Returns zero, or the error.
int read_in_place(std::byte* begin, size_t bytes) {
  if (madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno == EFAULT ? EIO : errno;
  for (std::byte* page = begin; page < begin + bytes; page += kPage) {
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(page), 0, __ATOMIC_RELAXED);
  }
  return 0;
}

// Fresh memory with the same alignment to huge pages as `begin`, so that they move whole; null if
// there is none. Pieces that are moved from one such mapping become one mapping again.
std::byte* fresh_memory(const std::byte* begin, size_t bytes) {
  void* memory = mmap(nullptr, bytes + kHugePage, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* first = static_cast<std::byte*>(memory);
  const size_t skipped =
      (reinterpret_cast<uintptr_t>(begin) - reinterpret_cast<uintptr_t>(first)) % kHugePage;
  if (skipped > 0) munmap(first, skipped);
  if (skipped < kHugePage) munmap(first + skipped + bytes, kHugePage - skipped);
  return first + skipped;
}

}  // namespace

class Pager::Turn {
 public:
  explicit Turn(Pager& pager) : pager_(pager) {
    while (pager_.has_turn_.exchange(true)) wait_a_little();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    const std::lock_guard guard(pager_.lock_);
    pager_.end_turn();
  }

 private:
  Pager& pager_;
};

std::string Pager::page_out(const Source& source, const std::string& directory,
                            const Ranges& lent) {
  const Turn turn(*this);
  cancelled_ = false;
  std::string reason = catch_faults();
  if (reason.empty()) reason = move_all_out(add_pieces(source, lent), directory);
  if (!reason.empty()) {
    const std::string unread = move_all_in(lent);
    if (!unread.empty()) reason += "; " + unread;
  }
  return reason;
}

std::string Pager::page_in(const Ranges& lent) {
  cancel();
  const Turn turn(*this);
  if (!is_active_) return {};
  const std::string reason = catch_faults();
  return reason.empty() ? move_all_in(lent) : reason;
}

// This happens under the lock, so that no fork happens in the middle: the child would find the net
// locked.
std::string Pager::catch_faults() {
  const std::lock_guard guard(lock_);
  return install_fault_net();
}

// The table is active before the source is asked: a thread that frees a block after that finds the
// block in the table.
size_t Pager::add_pieces(const Source& source, const Ranges& lent) {
  const size_t most = most_ranges();
  const std::lock_guard guard(lock_);
  is_active_ = true;
  std::vector<Range> ranges;
  source(ranges);
  for (Range& range : ranges) range = whole_pages(range);
  std::erase_if(ranges, [&](const Range& range) { return range.bytes == 0 || overlaps(range); });
  keep_disjoint(ranges);
  leave_out(ranges, lent);
  keep_largest(ranges, most);
  for (const Range& range : ranges) add_range(range);
  std::ranges::sort(pieces_, {}, &Piece::begin);
  size_t bytes = 0;
  for (const Piece& piece : pieces_) {
    if (piece.state == State::kIn) bytes += piece.bytes;
  }
  return bytes;
}

// The cuts are at the same addresses whatever the range is: whole huge pages move whole. Memory
// that was never touched cannot be given back.
void Pager::add_range(const Range& range) {
  std::byte* const end = range.begin + range.bytes;
  for (std::byte *begin = range.begin, *next; begin < end; begin = next) {
    next = std::min(end, round_up(begin + 1, kPiece));
    const auto bytes_here = static_cast<size_t>(next - begin);
    if (resident_bytes(begin, bytes_here) > 0) pieces_.push_back({begin, bytes_here});
  }
}

// The first piece that ends after the address.
Pager::Pieces::iterator Pager::first_after(const std::byte* address) {
  return std::ranges::upper_bound(pieces_, address, {}, &Piece::end);
}

bool Pager::overlaps(const Range& range) {
  const auto piece = first_after(range.begin);
  return piece != pieces_.end() && piece->begin < range.begin + range.bytes;
}

std::string Pager::move_all_out(size_t bytes, const std::string& directory) {
  if (bytes == 0) return {};
  PagingFile file;
  if (const std::string reason = file.open(directory, bytes); !reason.empty()) return reason;
  size_t offset = 0;
  for (Piece& piece : pieces_) {
    if (cancelled_) return "paging out was cancelled";
    if (const int error = move_out(piece, file.number(), offset)) {
      return because("a file in " + directory + " cannot be written", error);
    }
  }
  return {};
}

// Pages out to that offset of the file, which it advances.
int Pager::move_out(Piece& piece, int file, size_t& offset) {
  if (!begin_move(piece, State::kIn)) return 0;
  int error;
  {
    const MovingPages moving(piece.begin, piece.bytes);
    error = replace_by_file(piece.begin, piece.bytes, file, offset);
  }
  end_move(piece, error == 0 ? State::kOut : State::kIn);
  offset += piece.bytes;
  return error;
}

std::string Pager::move_all_in(const Ranges& lent) {
  int error = 0;
  for (const Range& range : lent) {
    if (const int failed = bring_back(range)) error = failed;
  }
  for (auto first = pieces_.begin(); first != pieces_.end();) {
    const auto last = end_of_batch(first);
    if (const int failed = move_batch_in(first, last)) error = failed;
    first = last;
  }
  if (error == 0) return {};
  return because(mebibytes(bytes_out_) + " cannot be read back", error);
}

// Brings back the part of a lent block that is out. Returns zero, or the error.
int Pager::bring_back(const Range& lent) {
  int error = 0;
  for (auto piece = first_after(lent.begin);
       piece != pieces_.end() && piece->begin < lent.begin + lent.bytes; ++piece) {
    if (!begin_move(*piece, State::kOut)) continue;
    const int failed = read_in_place(piece->begin, piece->bytes);
    end_move(*piece, failed == 0 ? State::kBack : State::kOut);
    if (failed != 0) error = failed;
  }
  return error;
}

// A batch is paged in to one fresh mapping. It is a run of adjacent pieces, which so become one
// mapping again, or many lone pieces, since a mapping for each would cost as much as its copy.
Pager::Pieces::iterator Pager::end_of_batch(Pieces::iterator first) {
  const bool is_run = continues(std::next(first));
  auto last = std::next(first);
  for (size_t bytes = first->bytes; last != pieces_.end(); ++last) {
    const bool belongs = is_run ? continues(last) : !continues(last) && !continues(std::next(last));
    bytes += last->bytes;
    if (!belongs || bytes > kBatch) break;
  }
  return last;
}

// Whether there is such a piece, adjacent to the one before it.
bool Pager::continues(Pieces::iterator piece) {
  return piece != pieces_.end() && piece->begin == std::prev(piece)->end();
}

// Huge pages make the copy, and the next page-out, much faster. Lone pieces do not get them,
// because the memory that one block frees would stay in use by another.
int Pager::move_batch_in(Pieces::iterator first, Pieces::iterator last) {
  size_t bytes = 0;
  for (auto piece = first; piece != last; ++piece) bytes += piece->bytes;
  std::byte* fresh = fresh_memory(first->begin, bytes);
  if (fresh == nullptr) return ENOMEM;
  const bool is_run = continues(std::next(first));
  madvise(fresh, bytes, is_run ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  int error = 0;
  for (auto piece = first; piece != last; ++piece) {
    if (const int failed = move_in(*piece, fresh)) error = failed;
    fresh += piece->bytes;
  }
  return error;
}

// Takes the fresh memory, or gives it back.
int Pager::move_in(Piece& piece, std::byte* fresh) {
  int error = 0;
  const bool moves = begin_move(piece, State::kOut);
  if (moves) {
    {
      const MovingPages moving(piece.begin, piece.bytes);
      error = replace_by_memory(piece.begin, piece.bytes, fresh);
    }
    end_move(piece, error == 0 ? State::kIn : State::kOut);
  }
  if (!moves || error != 0) munmap(fresh, piece.bytes);
  return error;
}

bool Pager::begin_move(Piece& piece, State from) {
  const std::lock_guard no_fork(gate_);
  const std::lock_guard guard(lock_);
  if (piece.state != from) return false;
  set_state(piece, State::kMoving);
  moving_ = &piece;
  return true;
}

void Pager::end_move(Piece& piece, State to) {
  const std::lock_guard guard(lock_);
  set_state(piece, to);
  moving_ = nullptr;
}

void Pager::set_state(Piece& piece, State state) {
  if (piece.state == State::kOut) bytes_out_ -= piece.bytes;
  if (state == State::kOut) bytes_out_ += piece.bytes;
  piece.state = state;
}

// Only mappings of a file are remembered.
void Pager::end_turn() {
  std::erase_if(pieces_, [](const Piece& piece) {
    return piece.state != State::kOut && piece.state != State::kBack;
  });
  is_active_ = !pieces_.empty();
  has_turn_ = false;
}

void Pager::let_go(const void* block, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(block);
  while (!try_let_go(begin, begin + bytes)) wait_a_little();
}

// False while one of the block's pieces moves.
bool Pager::try_let_go(const std::byte* begin, const std::byte* end) {
  const std::lock_guard guard(lock_);
  for (auto piece = first_after(begin); piece != pieces_.end() && piece->begin < end; ++piece) {
    if (piece->state == State::kMoving) return false;
    if (piece->state == State::kOut || piece->state == State::kBack) {  // else its room in the
      // file would stay in use, and what libc empties would read as the file, not as zeros
      mmap(piece->begin, piece->bytes, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
    set_state(*piece, State::kLeft);
  }
  return true;
}

bool Pager::is_out(const void* address) {
  const std::lock_guard guard(lock_);
  const auto* byte = static_cast<const std::byte*>(address);
  const auto piece = first_after(byte);
  return piece != pieces_.end() && piece->begin <= byte && piece->state == State::kOut;
}

// A fork happens while nothing moves, because no thread of the child could end the move.
void Pager::before_fork() {
  gate_.lock();
  lock_.lock();
  while (moving_ != nullptr) {
    lock_.unlock();
    wait_a_little();
    lock_.lock();
  }
}

void Pager::after_fork_in_parent() {
  lock_.unlock();
  gate_.unlock();
}

void Pager::after_fork_in_child() {
  end_turn();  // the turn is held by a thread of the parent
  lock_.unlock();
  gate_.unlock();
}

std::string Pager::is_valid() {
  const std::lock_guard guard(lock_);
  size_t out = 0;
  for (const Piece& piece : pieces_) {
    const auto next = std::next(pieces_.begin(), &piece - pieces_.data() + 1);
    if (reinterpret_cast<uintptr_t>(piece.begin) % kPage != 0 || piece.bytes % kPage != 0)
      return "a piece is not whole pages";
    if (piece.bytes == 0 || piece.bytes > kPiece) return "a piece has no size or too much of it";
    if (next != pieces_.end() && next->begin < piece.end()) return "two pieces overlap";
    if ((piece.state == State::kMoving) != (moving_ == &piece)) return "not just one piece moves";
    if (!has_turn_ && (piece.state == State::kIn || piece.state == State::kMoving))
      return "a piece is in, and remembered";
    if (piece.state == State::kOut) out += piece.bytes;
  }
  if (out != bytes_out_) return "the bytes that are out are miscounted";
  if (!pieces_.empty() && !is_active_) return "frees are not told of pieces";
  return {};
}

}  // namespace gpushare
