#pragma once
#include <optional>

#include "memory/host/fault_net.h"
#include "memory/host/page.h"
#include "memory/lane/lane_pages.h"

namespace gpushare {

// The device `host`: a lane is a memfd, mapped shared.
class HostPages : public LanePages {
 public:
  HostPages() = default;
  ~HostPages() override;
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;

  size_t page_bytes() const override { return kPage; }
  void* reserve(Page window_pages) override;

  // One descriptor, for all of it.
  std::string check(std::span<const int> descriptors, size_t bytes) const override;
  bool is_attached(std::span<const int> descriptors) const override;
  std::string attach(std::span<const int> descriptors) override;
  void detach() override;

  bool map(const Stretch& stretch) override;
  void clear(Run run) override;
  void hold(Run run) override;
  void release(Run run) override;
  void* copy(Run run) override;
  void* copy_to_file(Run run, const std::string& directory) override;
  bool place(void* copy, Run run) override;
  void discard(void* copy, Page count) override;
  void fence(Run run) override;

 private:
  void* at(Page page) const { return window_ + page * kPage; }
  size_t bytes(Page count) const { return count * kPage; }

  std::byte* window_ = nullptr;
  size_t window_bytes_ = 0;
  int memory_ = -1;
  std::optional<MovingPages> held_;
};

}  // namespace gpushare
