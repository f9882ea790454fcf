#include "memory/cuda/cuda_segments.h"

#include <sys/mman.h>

#include <cerrno>

namespace gpushare {
namespace {

size_t rounded_up(size_t bytes) {
  constexpr size_t kUnit = CudaDevice::kGranularity;
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

}  // namespace

CudaSegments::~CudaSegments() {
  while (!segments_.empty()) free(reinterpret_cast<void*>(segments_.begin()->first));
}

void* CudaSegments::allocate(size_t bytes) {
  const size_t size = rounded_up(bytes);
  const std::lock_guard guard(lock_);
  const CudaAddress address = device_.reserve(size);
  if (address == 0) return nullptr;
  if (show(address, size) != kCudaSuccess) {
    device_.unreserve(address, size);
    return nullptr;
  }
  segments_[address] = {size};
  return reinterpret_cast<void*>(address);
}

bool CudaSegments::free(void* address) {
  const std::lock_guard guard(lock_);
  const auto found = segments_.find(reinterpret_cast<CudaAddress>(address));
  if (found == segments_.end()) return false;
  auto& [begin, segment] = *found;
  if (segment.copy == nullptr) {
    device_.unmap_and_unreserve(begin, segment.bytes);
  } else {
    discard_copy(segment);
    device_.unreserve(begin, segment.bytes);
  }
  segments_.erase(found);
  return true;
}

// New memory, which lives without its handle as long as it is mapped.
CudaResult CudaSegments::show(CudaAddress address, size_t bytes) const {
  CudaHandle handle = 0;
  CudaResult result = device_.create(bytes, CudaHandleType::kNone, handle);
  if (result != kCudaSuccess) return result;
  result = device_.map(address, {&handle, 1}, bytes);
  device_.release(handle);
  return result;
}

// --- out and in

std::string CudaSegments::page_out(const std::string& directory) {
  const std::lock_guard guard(lock_);
  cancelled_ = false;
  std::string reason = move_all_out(directory);
  if (reason.empty()) return {};
  if (const std::string unread = move_all_in(); !unread.empty()) reason += "; " + unread;
  return reason;
}

std::string CudaSegments::page_in() {
  cancel();
  const std::lock_guard guard(lock_);
  return move_all_in();
}

std::string CudaSegments::move_all_out(const std::string& directory) {
  if (bytes_in() == 0) return {};
  PagingFile file;
  std::string reason = file.open(directory, bytes_in());
  size_t offset = 0;
  for (Entry& entry : segments_) {
    if (reason.empty() && cancelled_) reason = "paging out was cancelled";
    if (!reason.empty()) break;
    if (entry.second.copy != nullptr) continue;
    reason = move_out(entry, file, offset);
    offset += entry.second.bytes;
  }
  return reason;
}

// Pages out to that offset of the file. A segment that cannot be paged out stays in.
std::string CudaSegments::move_out(Entry& entry, const PagingFile& file, size_t offset) {
  auto& [address, segment] = entry;
  void* copy = mmap(nullptr, segment.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(),
                    static_cast<off_t>(offset));
  if (copy == MAP_FAILED) return because("the file for paging out cannot be used", errno);
  CudaResult result = device_.read(copy, address, segment.bytes);
  if (result == kCudaSuccess) result = device_.unmap(address, segment.bytes);
  if (result != kCudaSuccess) {
    munmap(copy, segment.bytes);
    return device_.because("the GPU's memory cannot be paged out", result);
  }
  segment.copy = copy;
  bytes_out_ += segment.bytes;
  return {};
}

std::string CudaSegments::move_all_in() {
  CudaResult result = kCudaSuccess;
  for (Entry& entry : segments_) {
    if (entry.second.copy == nullptr) continue;
    if (const CudaResult failed = move_in(entry); failed != kCudaSuccess) result = failed;
  }
  if (result == kCudaSuccess) return {};
  const std::string what = mebibytes(bytes_out_) + " of the GPU's memory cannot be had again";
  return device_.because(what.c_str(), result);
}

CudaResult CudaSegments::move_in(Entry& entry) {
  auto& [address, segment] = entry;
  CudaResult result = show(address, segment.bytes);
  if (result != kCudaSuccess) return result;
  result = device_.write(address, segment.copy, segment.bytes);
  if (result == kCudaSuccess) {
    discard_copy(segment);
  } else {
    device_.unmap(address, segment.bytes);
  }
  return result;
}

void CudaSegments::discard_copy(Segment& segment) {
  munmap(segment.copy, segment.bytes);
  segment.copy = nullptr;
  bytes_out_ -= segment.bytes;
}

// --- looking

bool CudaSegments::owns(const void* address) const {
  const std::lock_guard guard(lock_);
  const auto place = reinterpret_cast<CudaAddress>(address);
  auto after = segments_.upper_bound(place);
  if (after == segments_.begin()) return false;
  --after;
  return place < after->first + after->second.bytes;
}

size_t CudaSegments::bytes() const {
  const std::lock_guard guard(lock_);
  return bytes_in() + bytes_out_;
}

size_t CudaSegments::bytes_in() const {
  size_t bytes = 0;
  for (const auto& [address, segment] : segments_) {
    if (segment.copy == nullptr) bytes += segment.bytes;
  }
  return bytes;
}

std::string CudaSegments::is_valid() const {
  const std::lock_guard guard(lock_);
  CudaAddress end = 0;
  size_t out = 0;
  for (const auto& [address, segment] : segments_) {
    if (address < end) return "two segments overlap";
    if (segment.bytes == 0 || segment.bytes != rounded_up(segment.bytes)) {
      return "a segment is not whole pages";
    }
    end = address + segment.bytes;
    if (segment.copy != nullptr) out += segment.bytes;
  }
  return out == bytes_out_ ? "" : "the bytes that are out are miscounted";
}

}  // namespace gpushare
