#include "memory/cuda/cuda_pages.h"

#include <algorithm>
#include <memory>

namespace gpushare {

CudaPages::CudaPages(const CudaDevice& device, size_t page_bytes)
    : device_(device), page_bytes_(page_bytes) {}

CudaPages::~CudaPages() {
  if (window_ == 0) return;
  clear({0, window_pages_});
  clear({0, window_pages_});  // as far as the driver has not refused
  detach();
  device_.unreserve(window_, bytes(window_pages_));
}

void* CudaPages::reserve(Page window_pages) {
  if (!shown_.open(window_pages)) return nullptr;
  window_ = device_.reserve(bytes(window_pages));
  window_pages_ = window_ == 0 ? 0 : window_pages;
  return reinterpret_cast<void*>(window_);
}

// --- the lane's memory

std::string CudaPages::check(std::span<const int> descriptors, size_t lane_bytes) const {
  if (!device_.is_open()) return "no GPU is open";
  const size_t there = bytes(descriptors.empty() ? attached() : Page(descriptors.size()));
  if (there >= lane_bytes) return {};
  return "the lane's memory has " + std::to_string(there) + " bytes, not " +
         std::to_string(lane_bytes);
}

std::string CudaPages::attach(std::span<const int> descriptors) {
  return attach_from(0, descriptors);
}

// If it fails, the memory stays attached.
std::string CudaPages::attach_from(Page first, std::span<const int> descriptors) {
  Handles handles;
  if (std::string reason = import(descriptors, handles); !reason.empty()) return reason;
  const auto kept = lane_.begin() + std::min<std::ptrdiff_t>(first, std::ssize(lane_));
  release({kept, lane_.end()});
  lane_.erase(kept, lane_.end());
  lane_.insert(lane_.end(), handles.begin(), handles.end());
  return {};
}

std::string CudaPages::import(std::span<const int> descriptors, Handles& handles) const {
  for (const int descriptor : descriptors) {
    CudaHandle handle = 0;
    const CudaResult result = device_.import(descriptor, handle);
    if (result != kCudaSuccess) {
      release(handles);
      return device_.because("the lane's memory cannot be had", result);
    }
    handles.push_back(handle);
  }
  return {};
}

void CudaPages::detach() {
  release(lane_);
  lane_.clear();
}

void CudaPages::release(const Handles& handles) const {
  for (const CudaHandle handle : handles) device_.release(handle);
}

// --- what the window shows

void CudaPages::note(Run run, Page shown, Page step) {
  for (Page page = run.first; page < run.end(); ++page, shown += step) shown_[page] = shown;
}

bool CudaPages::map(const Stretch& stretch) {
  const Run run{stretch.first, stretch.count};
  const auto chunks = std::span(lane_).subspan(stretch.lane_first, stretch.count);
  if (device_.map(at(run.first), chunks, page_bytes_) != kCudaSuccess) return false;
  note(run, kLane + stretch.lane_first, 1);
  return true;
}

// Addresses that the driver refuses to unmap cannot be used for other mappings; then the Lane
// clears again.
void CudaPages::clear(Run run) {
  for (Page page = run.first; page < run.end();) {
    Run shown{page, 0};
    while (shown.end() < run.end() && shown_[shown.end()] != kNothing) ++shown.count;
    page = shown.end() + 1;
    if (shown.count == 0) continue;
    if (device_.unmap(at(shown.first), bytes(shown.count)) == kCudaSuccess)
      note(shown, kNothing, 0);
  }
}

// --- private memory in place of the lane's

void* CudaPages::copy(Run run) {
  auto handles = std::make_unique<Handles>();
  if (create(run.count, *handles) && fill(*handles, run)) return handles.release();
  release(*handles);
  return nullptr;
}

bool CudaPages::create(Page count, Handles& handles) const {
  for (Page page = 0; page < count; ++page) {
    CudaHandle handle = 0;
    if (device_.create(page_bytes_, CudaHandleType::kNone, handle) != kCudaSuccess) return false;
    handles.push_back(handle);
  }
  return true;
}

// Copies by way of addresses that the memory has just for this.
bool CudaPages::fill(const Handles& handles, Run run) const {
  const size_t size = bytes(run.count);
  const CudaAddress passage = device_.reserve(size);
  if (passage == 0) return false;
  if (device_.map(passage, handles, page_bytes_) != kCudaSuccess) {
    device_.unreserve(passage, size);
    return false;
  }
  const CudaResult result = device_.copy(passage, at(run.first), size);
  device_.unmap_and_unreserve(passage, size);
  return result == kCudaSuccess;
}

// Between two mappings the addresses show nothing for a moment, so nothing may be using the lane.
// If the driver refuses the second mapping, the first is restored. Mapped memory lives without its
// handle.
bool CudaPages::place(void* copy, Run run) {
  const Handles before = lane_handles(run);
  if (device_.unmap(at(run.first), bytes(run.count)) != kCudaSuccess) return false;
  if (device_.map(at(run.first), *static_cast<Handles*>(copy), page_bytes_) != kCudaSuccess) {
    device_.map(at(run.first), before, page_bytes_);
    return false;
  }
  note(run, kPrivate, 0);
  discard(copy, run.count);
  return true;
}

CudaPages::Handles CudaPages::lane_handles(Run run) const {
  Handles handles;
  for (Page page = run.first; page < run.end(); ++page) {
    handles.push_back(lane_[shown_[page] - kLane]);
  }
  return handles;
}

void CudaPages::discard(void* copy, Page) {
  const std::unique_ptr<Handles> handles(static_cast<Handles*>(copy));
  release(*handles);
}

}  // namespace gpushare
