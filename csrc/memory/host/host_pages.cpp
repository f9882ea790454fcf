#include "memory/host/host_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "memory/common/paging_file.h"

namespace gpushare {
namespace {

constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;  // with PROT_NONE

bool is_same(int a, int b) {
  struct stat first, second;
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

HostPages::~HostPages() {
  detach();
  if (window_ != nullptr) munmap(window_, window_bytes_);
}

void* HostPages::reserve(Page window_pages) {
  void* addresses = mmap(nullptr, bytes(window_pages), PROT_NONE, kNothing, -1, 0);
  if (addresses == MAP_FAILED) return nullptr;
  window_bytes_ = bytes(window_pages);
  return window_ = static_cast<std::byte*>(addresses);
}

// A page that the file does not have would end the process at its first touch.
std::string HostPages::check(std::span<const int> descriptors, size_t bytes) const {
  struct stat status;
  if (fstat(descriptors.empty() ? memory_ : descriptors.front(), &status) != 0) {
    return std::string("the lane's memory cannot be read: ") + std::strerror(errno);
  }
  if (static_cast<size_t>(status.st_size) >= bytes) return {};
  return "the lane's memory has " + std::to_string(status.st_size) + " bytes, not " +
         std::to_string(bytes);
}

bool HostPages::is_attached(std::span<const int> descriptors) const {
  return memory_ >= 0 && (descriptors.empty() || is_same(memory_, descriptors.front()));
}

std::string HostPages::attach(std::span<const int> descriptors) {
  const int copy = fcntl(descriptors.front(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return std::string("the lane's memory cannot be kept: ") + std::strerror(errno);
  detach();
  memory_ = copy;
  return {};
}

void HostPages::detach() {
  if (memory_ >= 0) close(memory_);
  memory_ = -1;
}

// Only this process may have its pages of a lane: a child would write into the memory of the
// session that has the lane next.
bool HostPages::map(const Stretch& stretch) {
  void* const place = at(stretch.first);
  const size_t size = bytes(stretch.count);
  const auto offset = static_cast<off_t>(bytes(stretch.lane_first));
  return mmap(place, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_, offset) ==
             place &&
         madvise(place, size, MADV_DONTFORK) == 0;
}

void HostPages::clear(Run run) {
  mmap(at(run.first), bytes(run.count), PROT_NONE, kNothing | MAP_FIXED, -1, 0);
}

// Without a net writes continue, and one that comes between copy and replacement is lost.
void HostPages::hold(Run run) {
  if (!install_fault_net().empty()) return;
  held_.emplace(window_ + bytes(run.first), bytes(run.count));
  mprotect(at(run.first), bytes(run.count), PROT_READ);
}

void HostPages::release(Run run) {
  mprotect(at(run.first), bytes(run.count), PROT_READ | PROT_WRITE);
  held_.reset();
}

void* HostPages::copy(Run run) {
  const size_t size = bytes(run.count);
  void* pages = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  return std::memcpy(pages, at(run.first), size);
}

// Later writes go to private memory.
void* HostPages::copy_to_file(Run run, const std::string& directory) {
  const size_t size = bytes(run.count);
  PagingFile file;
  if (directory.empty() || !file.open(directory, size).empty()) return nullptr;
  if (write_all(file.number(), static_cast<std::byte*>(at(run.first)), size, 0) != 0) {
    return nullptr;
  }
  void* pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.number(), 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

bool HostPages::place(void* copy, Run run) {
  const size_t size = bytes(run.count);
  return mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at(run.first)) != MAP_FAILED;
}

void HostPages::discard(void* copy, Page count) { munmap(copy, bytes(count)); }

void HostPages::fence(Run run) {
  mmap(at(run.first), bytes(run.count), PROT_NONE, kNothing | MAP_FIXED_NOREPLACE, -1, 0);
}

}  // namespace gpushare
