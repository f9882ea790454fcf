#pragma once
#include <cstddef>

namespace gpushare {

// The memory of one lane on the host, as the broker keeps it: a file without a name, whose pages
// exist once a process has touched them. Sessions map it through its descriptor.
class HostLaneMemory {
 public:
  // `capacity_bytes` is the largest size that the lane may ever have. It costs nothing before it
  // is used, and no process can change it, since a page that ceases to exist would end every
  // process that maps it. Raises std::system_error.
  explicit HostLaneMemory(std::size_t capacity_bytes);
  HostLaneMemory(const HostLaneMemory&) = delete;
  HostLaneMemory& operator=(const HostLaneMemory&) = delete;
  ~HostLaneMemory();

  int descriptor() const { return descriptor_; }
  // Gives the memory above `bytes` back to the system; it reads as zeros from then on.
  void shrink(std::size_t bytes);

 private:
  std::size_t capacity_;
  int descriptor_;
};

}  // namespace gpushare
