#include "memory/co_lane/ledger.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>

#include "memory/common/paging_file.h"

namespace gpushare {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr double kNap = 0.1;  // seconds between two looks for a process that was killed
constexpr std::uint64_t kMark = 0x6c65646765720a01;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

timespec as_timespec(double seconds) {
  const auto whole = static_cast<time_t>(seconds);
  return {whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* time) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, time, nullptr, 0);
}

// The lock of one end: a byte of the file, held by a descriptor that was opened for it alone. So it
// stays when other descriptors of the ledger are closed, and the system gives it back when the
// process ends, after its memory is gone. It needs no process number, which another container would
// not know.
struct flock lock_of(int end, short kind) {
  struct flock lock = {};
  lock.l_type = kind;
  lock.l_whence = SEEK_SET;
  lock.l_start = end;
  lock.l_len = 1;
  return lock;
}

}  // namespace

int Ledger::make() {
  const int descriptor = memfd_create("gpushare-ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return -1;
  if (ftruncate(descriptor, kPageBytes) == 0 &&
      pwrite(descriptor, &kMark, sizeof kMark, offsetof(Page, mark)) == sizeof kMark &&
      fcntl(descriptor, F_ADD_SEALS, kSeals) == 0) {
    return descriptor;
  }
  ::close(descriptor);
  return -1;
}

std::string Ledger::open(int descriptor, int end, Chunks budget) {
  close();
  if (budget == 0 || budget > Claims::kMost) {
    return "a co-lane has 1 to " + std::to_string(Claims::kMost) + " chunks";
  }
  std::string reason = map(descriptor);
  if (!reason.empty()) return reason;
  end_ = end, budget_ = budget;
  let_go(descriptor, end);
  if (!lock()) {
    close();
    return "another process has this end of the co-lane";
  }
  page_->waits[end_] = 0;
  change([&](Claims& claims) { claims.end(end_); });
  return {};
}

// Uses a descriptor of its own, which is opened for the locks.
std::string Ledger::map(int descriptor) {
  if ((fcntl(descriptor, F_GET_SEALS) & kSeals) != kSeals) return "this is no ledger of a co-lane";
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  const int own = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) return because("the ledger of the co-lane cannot be kept", errno);
  void* page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
  std::string reason;
  if (page == MAP_FAILED) {
    reason = because("the ledger of the co-lane cannot be mapped", errno);
  } else if (static_cast<Page*>(page)->mark != kMark) {
    reason = "this is no ledger of a co-lane";
  }
  if (!reason.empty()) {
    if (page != MAP_FAILED) munmap(page, kPageBytes);
    ::close(own);
    return reason;
  }
  madvise(page, kPageBytes, MADV_DONTFORK);
  page_ = static_cast<Page*>(page);
  descriptor_ = own;
  return {};
}

bool Ledger::lock() {
  struct flock lock = lock_of(end_, F_WRLCK);
  return has_end_ = fcntl(descriptor_, F_OFD_SETLK, &lock) == 0;
}

void Ledger::close() {
  if (page_ == nullptr) return;
  if (has_end_) change([&](Claims& claims) { claims.end(end_); });
  munmap(page_, kPageBytes);
  forget();
}

void Ledger::forget() {
  page_ = nullptr;                             // the child has no such page
  if (descriptor_ >= 0) ::close(descriptor_);  // gives the lock back
  descriptor_ = -1;
  has_end_ = false;
}

void Ledger::pass_on() {
  if (!has_end_) return;
  has_end_ = false;
  let_go(descriptor_, end_);
}

// A process that had the end meanwhile left nothing, unless it was killed.
bool Ledger::take_up() {
  if (has_end_) return true;
  if (!lock()) return false;
  page_->waits[end_] = 0;
  if (look().is_inside(end_)) change([&](Claims& claims) { claims.end(end_); });
  return true;
}

void Ledger::let_go(int descriptor, int end) {
  struct flock lock = lock_of(end, F_UNLCK);
  fcntl(descriptor, F_OFD_SETLK, &lock);
}

void Ledger::wake(const Claims& claims) {
  const Chunks want = std::min<Chunks>(page_->waits[other()], budget_);
  if (want == 0 || !claims.may_go_on(other(), want, budget_)) return;
  page_->tick.fetch_add(1);
  futex(page_->tick, FUTEX_WAKE, INT_MAX, nullptr);
}

// `waits` is set before the claims are looked at: either the other process sees it after its
// change, or the change is seen here. The tick is read before, too, so no wake-up is lost.
Ledger::Wait Ledger::await(Chunks want, double seconds) {
  const double until = now() + seconds;
  page_->waits[end_] = want;
  Wait result = Wait::kLate;
  for (;;) {
    const uint32_t tick = page_->tick;
    if (look().may_go_on(end_, want, budget_)) {
      result = Wait::kMayGoOn;
      break;
    }
    const double left = until - now();
    if (left <= 0) break;
    const timespec nap = as_timespec(std::min(left, kNap));
    if (futex(page_->tick, FUTEX_WAIT, tick, &nap) != 0 && errno == EINTR) {
      result = Wait::kSignal;
      break;
    }
    reap();
  }
  page_->waits[end_] = 0;
  return result;
}

bool Ledger::is_whole() const { return page_->mark == kMark; }

void Ledger::spoil() { page_->mark = 0; }

void Ledger::spoil(int descriptor) {
  Ledger ledger;
  if (ledger.map(descriptor).empty()) ledger.spoil();
}

bool Ledger::is_whole(int descriptor) {
  Ledger ledger;
  return ledger.map(descriptor).empty() && ledger.is_whole();
}

bool Ledger::reap(int end) {
  if (!look().is_inside(end) || has_process(end)) return false;
  change([&](Claims& claims) { claims.end(end); });
  return true;
}

// The budget is not known here. The largest one wakes the other process too often rather than too
// seldom.
bool Ledger::reap(int descriptor, int end) {
  Ledger ledger;
  if (!ledger.map(descriptor).empty()) return false;
  ledger.end_ = end, ledger.budget_ = Claims::kMost;
  return ledger.reap(end);
}

bool Ledger::has_process(int end) const {
  struct flock lock = lock_of(end, F_WRLCK);
  return fcntl(descriptor_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace gpushare
