#pragma once
#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include "memory/common/paging_file.h"
#include "memory/cuda/cuda_device.h"

namespace gpushare {

// The private segments of PyTorch's allocator on one GPU: they persist across iterations. They are
// paged out to a file, and in again at the same addresses. The GPU cannot touch a segment that is
// out, so all must be in before it has work. Thread-safe; a thread that allocates or frees while
// segments move waits.
class CudaSegments {
 public:
  explicit CudaSegments(const CudaDevice& device) : device_(device) {}
  CudaSegments(const CudaSegments&) = delete;
  CudaSegments& operator=(const CudaSegments&) = delete;
  ~CudaSegments();

  // Null where the GPU does not have enough memory. The size is rounded up to the device's
  // granularity.
  void* allocate(size_t bytes);
  // The segment that begins there ends, whether in or out; false where none does. It waits for our
  // work, which may use the segment until then.
  bool free(void* address);

  // Segments that are in go out to a file in `directory`. Returns an empty string, or the sentence
  // that says why it is impossible: then all segments are in again, as far as the GPU still has
  // room.
  [[nodiscard]] std::string page_out(const std::string& directory);
  // All segments come back; paging out that is under way is cancelled. Returns an empty string, or
  // the sentence that says why some stayed out: these lose nothing, and the call may be repeated.
  [[nodiscard]] std::string page_in();
  // Ends paging out soon, with everything back in; does nothing where no paging out is under way.
  void cancel() { cancelled_ = true; }

  bool owns(const void* address) const;  // any byte of a segment
  size_t bytes() const;                  // of all segments, in or out
  size_t bytes_out() const { return bytes_out_; }
  std::string is_valid() const;  // empty, or the first broken invariant as a sentence

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
