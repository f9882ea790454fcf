#pragma once
#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace gpushare {

// A block of private memory. The whole pages in it belong to it alone.
struct Range {
  std::byte* begin;
  size_t bytes;
};

// Pages blocks out to a file and in again, at the same addresses.
//
// Memory that is out is a private mapping of the file: the system reads a page back when any
// thread or system call touches it, and a page that is written to becomes ordinary memory by
// itself. So memory that is out is slow, but never wrong; paging in makes all of it ordinary
// memory again, at the rate of a copy. The file has no name and lives as long as a mapping of it,
// here or in a forked child.
//
// Blocks move in pieces of some MiB. A thread that writes to the piece that moves waits for it
// (see fault_net.h); a system call that writes there in that moment would fail with EFAULT. So
// blocks that system calls may write to, the lent ones, never move: they do not go out, and one
// that was lent while it was out becomes memory again where it is, page by page, by the system.
//
// Thread-safe. Across a fork, hold it with `before_fork` and the two after it.
class Pager {
 public:
  // Appends the blocks to page out, one range for each: neighbours are freed one by one. It is
  // called while no `before_free` can pass, so a block that it finds is alive.
  using Source = std::function<void(std::vector<Range>&)>;
  using Ranges = std::vector<Range>;

  Pager() = default;
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  // Blocks that are not out yet go out to a file in `directory`. Returns an empty string, or the
  // sentence that says why it is impossible: then nothing is out.
  [[nodiscard]] std::string page_out(const Source& source, const std::string& directory,
                                     const Ranges& lent = {});
  // All blocks come back; paging out that is under way is cancelled. Returns an empty string, or
  // the sentence that says what could not be read: that stays out, as far as it can be read.
  [[nodiscard]] std::string page_in(const Ranges& lent = {});
  // Ends paging out soon, with everything back in; does nothing where no paging out is under way.
  void cancel() { cancelled_ = true; }

  // The block ends: call it before its memory can be used by others.
  void before_free(const void* begin, size_t bytes) {
    if (is_active_) let_go(begin, bytes);
  }

  size_t bytes_out() const { return bytes_out_; }
  bool is_out(const void* address);
  std::string is_valid();

  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  enum class State {
    kIn,
    kMoving,
    kOut,
    kBack,  // in memory, but still a mapping of the file: for good, since it is lent
    kLeft,  // freed, and no longer the concern of the pager
  };

  struct Piece {
    std::byte* begin;
    size_t bytes;
    State state = State::kIn;

    std::byte* end() const { return begin + bytes; }
  };
  using Pieces = std::vector<Piece>;

  class Turn;  // a thread that pages out or in does it alone

  std::string catch_faults();
  size_t add_pieces(const Source& source, const Ranges& lent);
  void add_range(const Range& range);
  bool overlaps(const Range& range);
  Pieces::iterator first_after(const std::byte* address);
  Pieces::iterator end_of_batch(Pieces::iterator first);
  bool continues(Pieces::iterator piece);

  std::string move_all_out(size_t bytes, const std::string& directory);
  std::string move_all_in(const Ranges& lent);
  // Returns zero, or the error.
  int move_out(Piece& piece, int file, size_t& offset);
  int bring_back(const Range& lent);
  int move_batch_in(Pieces::iterator first, Pieces::iterator last);
  int move_in(Piece& piece, std::byte* fresh);

  bool begin_move(Piece& piece, State from);
  void end_move(Piece& piece, State to);
  void set_state(Piece& piece, State state);
  void end_turn();
  void let_go(const void* begin, size_t bytes);
  bool try_let_go(const std::byte* begin, const std::byte* end);

  // A thread that begins a move passes it, before the lock; a fork keeps it closed, so that no
  // next move begins while it waits for this one.
  std::mutex gate_;
  // Guards the states and, against readers, the table; only the thread that has the turn changes
  // the table.
  std::mutex lock_;
  Pieces pieces_;                  // by address
  const Piece* moving_ = nullptr;  // at most one
  std::atomic<size_t> bytes_out_ = 0;
  std::atomic<bool> is_active_ = false;  // the table may hold something
  std::atomic<bool> has_turn_ = false;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace gpushare
