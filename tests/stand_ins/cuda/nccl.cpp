// A libnccl.so that broadcasts among the GPUs of one process, by copies on their streams: PyTorch's
// DataParallel asks for no more. All else that PyTorch imports fails (make.py).
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace {

// Codes of nccl.h.
constexpr int kSuccess = 0;
constexpr int kUnhandledCudaError = 1;
constexpr int kInvalidArgument = 4;
constexpr std::array<size_t, 12> kBytes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // of a type

struct Communicator {
  int device, rank;
};

// The part of one device in a broadcast.
struct Part {
  void* memory;
  size_t bytes;
  bool is_root;
  int device;
  cudaStream_t stream;
};
thread_local std::vector<Part> group;

// While it lives, `device` is the current one.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    cudaGetDevice(&before_);
    cudaSetDevice(device);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

// Work of the one stream from now on comes after the work that the other has now.
void follow(const Part& later, const Part& earlier) {
  cudaEvent_t event = nullptr;
  {
    const OnDevice on(earlier.device);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, earlier.stream);
  }
  const OnDevice on(later.device);
  cudaStreamWaitEvent(later.stream, event, 0);
  cudaEventDestroy(event);
}

cudaError_t copy(const Part& to, const Part& root) {
  follow(to, root);
  {
    const OnDevice on(to.device);
    const cudaError_t error =
        cudaMemcpyAsync(to.memory, root.memory, to.bytes, cudaMemcpyDefault, to.stream);
    if (error != cudaSuccess) return error;
  }
  follow(root, to);
  return cudaSuccess;
}

}  // namespace

extern "C" {

const char* ncclGetErrorString(int) { return "a status of the fake library"; }

int ncclGetVersion(int* version) {
  *version = 22809;
  return kSuccess;
}

int ncclCommInitAll(Communicator** made, int count, const int* devices) {
  for (int rank = 0; rank < count; ++rank) made[rank] = new Communicator{devices[rank], rank};
  return kSuccess;
}

int ncclCommDestroy(Communicator* communicator) {
  delete communicator;
  return kSuccess;
}

int ncclGroupStart() { return kSuccess; }

int ncclBcast(void* memory, size_t count, int type, int root, Communicator* communicator,
              cudaStream_t stream) {
  if (type < 0 || static_cast<size_t>(type) >= kBytes.size()) return kInvalidArgument;
  const size_t bytes = count * kBytes[static_cast<size_t>(type)];
  group.push_back({memory, bytes, communicator->rank == root, communicator->device, stream});
  return kSuccess;
}

int ncclGroupEnd() {
  std::vector<Part> parts;
  parts.swap(group);
  const auto root = std::ranges::find_if(parts, &Part::is_root);
  if (root == parts.end()) return parts.empty() ? kSuccess : kInvalidArgument;
  for (const Part& part : parts) {
    if (!part.is_root && copy(part, *root) != cudaSuccess) return kUnhandledCudaError;
  }
  return kSuccess;
}

}  // extern "C"
