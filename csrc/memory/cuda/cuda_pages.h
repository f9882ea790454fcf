#pragma once
#include <vector>

#include "memory/common/sparse_array.h"
#include "memory/cuda/cuda_device.h"
#include "memory/lane/lane_pages.h"

namespace gpushare {

// A device `cuda:N`. A page is a chunk: memory with a handle of its own, since the driver maps
// whole handles. A forked child has no CUDA, and so nothing of this.
class CudaPages : public LanePages {
 public:
  explicit CudaPages(const CudaDevice& device, size_t page_bytes = CudaDevice::kGranularity);
  ~CudaPages() override;
  CudaPages(const CudaPages&) = delete;
  CudaPages& operator=(const CudaPages&) = delete;

  size_t page_bytes() const override { return page_bytes_; }
  // The size of a chunk is the same in all processes that use the lane: a power of two, and a
  // multiple of the device's granularity. Large ones map fast, and small ones take less when they
  // survive. Called before `reserve`.
  void set_page_bytes(size_t bytes) { page_bytes_ = bytes; }
  void* reserve(Page window_pages) override;

  // One descriptor for each chunk, in their order. It cannot be told from a descriptor of CUDA
  // whether it is attached, but no descriptors at all stand for the attached memory.
  std::string check(std::span<const int> descriptors, size_t bytes) const override;
  bool is_attached(std::span<const int> descriptors) const override { return descriptors.empty(); }
  std::string attach(std::span<const int> descriptors) override;
  void detach() override;
  // Replaces the chunks of the attached memory from `first` on by more chunks. None of these may
  // show in the window.
  [[nodiscard]] std::string attach_from(Page first, std::span<const int> descriptors);
  Page attached() const { return static_cast<Page>(lane_.size()); }

  bool map(const Stretch& stretch) override;
  void clear(Run run) override;
  void* copy(Run run) override;
  bool place(void* copy, Run run) override;
  void discard(void* copy, Page count) override;
  void fence(Run) override {}

 private:
  using Handles = std::vector<CudaHandle>;

  // The memory behind a page of the window: a number above these two is that of a page of the lane.
  static constexpr Page kNothing = 0;
  static constexpr Page kPrivate = 1;
  static constexpr Page kLane = 2;

  CudaAddress at(Page page) const { return window_ + bytes(page); }
  size_t bytes(Page count) const { return count * page_bytes_; }
  Handles lane_handles(Run run) const;
  std::string import(std::span<const int> descriptors, Handles& handles) const;
  void release(const Handles& handles) const;
  bool create(Page count, Handles& handles) const;
  bool fill(const Handles& handles, Run run) const;
  void note(Run run, Page shown, Page step);

  const CudaDevice& device_;
  size_t page_bytes_;
  CudaAddress window_ = 0;
  Page window_pages_ = 0;
  SparseArray<Page> shown_;
  Handles lane_;
};

}  // namespace gpushare
