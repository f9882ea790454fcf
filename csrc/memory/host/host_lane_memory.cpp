#include "memory/host/host_lane_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "memory/host/page.h"

namespace gpushare {
namespace {

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

[[noreturn]] void raise(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

HostLaneMemory::HostLaneMemory(std::size_t capacity_bytes)
    : capacity_(whole_pages(capacity_bytes)),
      descriptor_(memfd_create("gpushare-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (descriptor_ < 0) raise("the memory of a lane cannot be made");
  if (ftruncate(descriptor_, static_cast<off_t>(capacity_)) == 0 &&
      fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    return;
  }
  const int error = errno;
  close(descriptor_);
  errno = error;
  raise("the memory of a lane cannot be given its size");
}

HostLaneMemory::~HostLaneMemory() { close(descriptor_); }

void HostLaneMemory::shrink(std::size_t bytes) {
  const std::size_t kept = whole_pages(bytes);
  if (kept >= capacity_) return;
  const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (fallocate(descriptor_, mode, static_cast<off_t>(kept),
                static_cast<off_t>(capacity_ - kept)) != 0) {
    raise("the memory of a lane cannot be given back");
  }
}

}  // namespace gpushare
