#include "handoff/idle_turn.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "handoff/handoff_token.h"

namespace gpushare {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{50};  // between two checks
constexpr int kLooksWithoutTurn = 20;           // before the thread sleeps until there is a turn

double seconds_now() {
  return std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

struct IdleTurn::Shared {
  explicit Shared(Lane given) : lane(std::move(given)) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { disconnect(); }

  void disconnect() {
    if (connection >= 0) ::close(connection);
    connection = -1;
  }

  bool is_wanted() const {
    if (wanted) return true;
    std::array<char, kMostReadBytes> bytes;
    const ssize_t size = recv(connection, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
    return size > 0 && has_yield({bytes.data(), static_cast<size_t>(size)}, number);
  }

  // The turn goes at one moment only, the exchange: before it an iteration may begin, and after it
  // no iteration begins without a new request. No block comes alive in the lane between
  // iterations, so a lane that was empty stays empty.
  void look() {
    const std::lock_guard guard(mutex);
    if (word != 0 || connection < 0 || !is_wanted() || !lane.is_empty()) return;
    uint32_t idle = 0;
    if (!word.compare_exchange_strong(idle, kGone)) return;
    lane.evacuate();
    gone_at = seconds_now();
    // The frame is shorter than what the system sends in parts, so it never ends up inside another
    // frame.
    send(connection, finish.data(), finish.size(), MSG_NOSIGNAL);
  }

  const Lane lane;
  std::atomic<uint32_t> word = kKept;
  std::mutex mutex;  // guards all below; a thread that has Python's lock takes it only after
                     // releasing that one
  int connection = -1;
  uint64_t number = 0;
  std::string finish;
  bool wanted = false;
  double gone_at = 0;
};

IdleTurn::IdleTurn(Lane lane, bool watches)
    : shared_(std::make_shared<Shared>(std::move(lane))),
      word_(&shared_->word),
      needs_thread_(watches) {}

void IdleTurn::watch(int connection) {
  const std::lock_guard guard(shared_->mutex);
  shared_->disconnect();
  if (connection >= 0) shared_->connection = fcntl(connection, F_DUPFD_CLOEXEC, 0);
}

void IdleTurn::prepare(uint64_t number, std::string finish) {
  const std::lock_guard guard(shared_->mutex);
  shared_->number = number;
  shared_->finish = std::move(finish);
  shared_->wanted = false;
  is_prepared_ = true;
}

bool IdleTurn::lend() {
  if (!std::exchange(is_prepared_, false)) return true;
  if (needs_thread_) {
    try {
      std::thread(run, shared_).detach();
    } catch (const std::system_error&) {
      return false;
    }
    needs_thread_ = false;
  }
  word_->fetch_and(~(kKept | kGone));
  word_->notify_one();  // this costs nothing unless the thread sleeps
  return true;
}

void IdleTurn::want() {
  const std::lock_guard guard(shared_->mutex);
  shared_->wanted = true;
}

void IdleTurn::look() { shared_->look(); }

bool IdleTurn::keep() {
  const uint32_t before = word_->fetch_or(kKept);
  word_->fetch_and(~kGone);
  return (before & kGone) == 0;
}

double IdleTurn::gone_at() const {
  if ((*word_ & kGone) == 0) return 0;
  const std::lock_guard guard(shared_->mutex);
  return shared_->gone_at;
}

void IdleTurn::close() {
  word_->fetch_or(kClosed);
  word_->notify_one();
}

void IdleTurn::forget() {
  *word_ = kKept | kClosed;
  shared_->disconnect();
}

void IdleTurn::run(const std::shared_ptr<Shared>& shared) {
  int looks = 0;
  for (;;) {
    const uint32_t word = shared->word;
    if ((word & kClosed) != 0) return;
    looks = (word & (kKept | kGone)) == 0 ? 0 : looks + 1;
    if (looks > kLooksWithoutTurn) {
      shared->word.wait(word);
      continue;
    }
    std::this_thread::sleep_for(kLook);
    shared->look();
  }
}

}  // namespace gpushare
