#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "memory/lane/lane_layout.h"

namespace gpushare {

// The device's part of a Lane: a window of addresses, and the memory that each of its pages
// shows. It keeps no books; the Lane knows which block is where.
class LanePages {
 public:
  virtual ~LanePages() = default;

  virtual size_t page_bytes() const = 0;  // a power of two
  // Reserves the addresses of `window_pages` pages, which cannot be touched; null where there
  // are none. Once.
  virtual void* reserve(Page window_pages) = 0;

  // Empty, or the sentence that says why this is not memory of `bytes` bytes.
  virtual std::string check(std::span<const int> descriptors, size_t bytes) const = 0;
  // No descriptors at all stand for the attached memory.
  virtual bool is_attached(std::span<const int> descriptors) const = 0;
  // Takes this memory in place of the attached memory; nothing of either may be mapped. The
  // descriptors stay the caller's.
  virtual std::string attach(std::span<const int> descriptors) = 0;
  virtual void detach() = 0;

  // Pages of the lane appear in the window, instead of what was there. False: it is impossible.
  virtual bool map(const Stretch& stretch) = 0;
  // These pages of the window can no longer be touched, and show no memory.
  virtual void clear(Run run) = 0;

  // Until `release`, a thread that writes to these pages of the window waits, where that is
  // possible: another thread may write while they are copied and replaced.
  virtual void hold(Run) {}
  virtual void release(Run) {}

  // Pages of the window, copied to private memory elsewhere; null where there is not enough
  // memory.
  virtual void* copy(Run run) = 0;
  // As above, but the copy is in a file without a name in this directory, so that the system can
  // reclaim the memory. Null if that is impossible, as without a directory.
  virtual void* copy_to_file(Run, const std::string&) { return nullptr; }
  // The copy replaces its original: on the host atomically for all threads, and on a GPU while
  // nothing uses it. False: it is impossible, and nothing has changed.
  virtual bool place(void* copy, Run run) = 0;
  virtual void discard(void* copy, Page count) = 0;

  // Pages of the lane do not exist after a fork: the child reserves their addresses.
  virtual void fence(Run run) = 0;
};

}  // namespace gpushare
