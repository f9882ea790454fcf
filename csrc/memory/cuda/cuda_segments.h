#pragma once
#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include "memory/common/paging_file.h"
#include "memory/cuda/cuda_device.h"

namespace gpushare {

// The private segments of PyTorch's allocator on one GPU: what persists across iterations. They are
// paged out to a file, and in again at the same addresses. The GPU cannot touch what is out, so all
// must be in before it has work. Thread-safe; who allocates or frees while segments move waits.
class CudaSegments {
 public:
  explicit CudaSegments(const CudaDevice& device) : device_(device) {}
  CudaSegments(const CudaSegments&) = delete;
  CudaSegments& operator=(const CudaSegments&) = delete;
  ~CudaSegments();

  // Null where the GPU has not so much memory. Rounded up to the device's granularity.
  void* allocate(size_t bytes);
  // The segment that begins there ends, in or out; false where none does. Waits for our work, which
  // may use it until then.
  bool free(void* address);

  // What is in goes out to a file in `directory`. Returns an empty string, or the sentence that
  // says why not: then nothing is out, as far as the GPU has the room still.
  [[nodiscard]] std::string page_out(const std::string& directory);
  // All comes back; paging out that is under way is cancelled. Returns an empty string, or the
  // sentence that says why some stayed out: then nothing of it is lost, and it may be tried again.
  [[nodiscard]] std::string page_in();
  // Ends paging out soon, with everything back in; nothing where none is under way.
  void cancel() { cancelled_ = true; }

  size_t bytes() const;  // of all segments, in or out
  size_t bytes_out() const { return bytes_out_; }
  std::string is_valid() const;  // empty, or the first broken invariant in words

 private:
  struct Segment {
    size_t bytes;
    void* copy = nullptr;  // a mapping of the file; null while it is in
  };
  using Entry = std::map<CudaAddress, Segment>::value_type;

  CudaResult show(CudaAddress address, size_t bytes) const;
  size_t bytes_in() const;
  std::string move_all_out(const std::string& directory);
  std::string move_all_in();
  std::string move_out(Entry& entry, const PagingFile& file, size_t offset);
  CudaResult move_in(Entry& entry);
  void discard_copy(Segment& segment);

  const CudaDevice& device_;
  mutable std::mutex lock_;
  std::map<CudaAddress, Segment> segments_;
  std::atomic<size_t> bytes_out_ = 0;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace gpushare
