#include "handoff/handoff_slot.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>

namespace gpushare {
namespace {

constexpr size_t kMostLetterBytes = 1024;
// The successor wakes during this pause. The next message tells the broker that the turn has ended;
// without the pause the broker would compete with the successor for a core, if there are few.
constexpr std::chrono::microseconds kSuccessorWakes{1};

// An address in the kernel's table of names, without a file; zero bytes long if the name is too
// long.
std::pair<sockaddr_un, socklen_t> address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() >= sizeof address.sun_path) return {address, 0};
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

const sockaddr* plain(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

}  // namespace

HandoffSlot::HandoffSlot(const std::string& name) {
  const auto [own, size] = address(name);
  if (size == 0) return;
  socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (is_open() && ::bind(socket_, plain(own), size) != 0) close();
}

void HandoffSlot::close() {
  if (const int socket = socket_.exchange(-1); socket >= 0) ::close(socket);
}

bool HandoffSlot::look(int connection, uint64_t turn) {
  std::array<char, kMostReadBytes> bytes;
  successor_.reset();
  const ssize_t size = recv(connection, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (size < 0) return errno != EAGAIN && errno != EINTR;
  successor_ = find_successor({bytes.data(), static_cast<size_t>(size)}, turn);
  return true;
}

void HandoffSlot::hand_off() {
  if (!successor_) return;
  send(*std::exchange(successor_, std::nullopt));
  std::this_thread::sleep_for(kSuccessorWakes);
}

void HandoffSlot::send(const Successor& successor) const {
  const auto [its, size] = address(successor.handoff_slot);
  const std::string& token = successor.handoff_token;
  if (size != 0) sendto(socket_, token.data(), token.size(), MSG_NOSIGNAL, plain(its), size);
}

std::optional<Turn> HandoffSlot::await(int connection, uint64_t number) const {
  if (connection < 0) return std::nullopt;  // `poll` would ignore it, and wait forever
  std::array<pollfd, 2> ends{{{connection, POLLIN, 0}, {socket_, POLLIN, 0}}};
  if (poll(ends.data(), ends.size(), -1) <= 0 || ends[0].revents != 0) return std::nullopt;
  return receive(number);
}

std::optional<Turn> HandoffSlot::receive(uint64_t number) const {
  std::array<char, kMostLetterBytes> bytes;
  const ssize_t size = recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (size < 0) return std::nullopt;
  const auto turn = read_handoff_token({bytes.data(), static_cast<size_t>(size)}, key_);
  return turn && turn->number == number ? turn : std::nullopt;
}

}  // namespace gpushare
