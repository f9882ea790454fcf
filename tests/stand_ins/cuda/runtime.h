#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "fake_gpu.h"

// A libcudart.so over the fake driver: what PyTorch's libraries import of the CUDA runtime, as it
// is documented. Copies, sets, streams, events and graphs are real; kernels do nothing, but for
// PyTorch's own fill of memory side by side.

namespace fake_runtime {

// Returns the error, and keeps it for the next cudaGetLastError.
cudaError_t fail(cudaError_t error);
inline cudaError_t from(int code) { return fail(static_cast<cudaError_t>(code)); }

// The primary context is current in this thread from its first call on.
cudaError_t ready();
// The same, for what may not happen while a graph is captured.
cudaError_t ready_outside_of_captures();

inline fake_gpu::Stream* as_stream(cudaStream_t stream) {
  return reinterpret_cast<fake_gpu::Stream*>(stream);
}
inline CUdeviceptr as_address(const void* address) {
  return reinterpret_cast<CUdeviceptr>(address);
}

// Submits to the stream, or to the graph that is captured from it.
cudaError_t submit(cudaStream_t stream, fake_gpu::Work work);
bool is_capturing(cudaStream_t stream);
bool is_capturing_anything();  // as this thread is to care about it
// An event that is recorded in a capture brings those that wait for it into the capture.
bool record_in_capture(cudaEvent_t event, cudaStream_t stream);
bool wait_in_capture(cudaStream_t stream, cudaEvent_t event);

}  // namespace fake_runtime
