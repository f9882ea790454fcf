#include "runtime.h"

using namespace fake_runtime;

struct CUevent_st {
  fake_gpu::Event event;
  int device = fake_gpu::current_device();
};

namespace {

// A look, which says cudaErrorNotReady without making it the last error.
template <class F>
cudaError_t look(F is_done) {
  const cudaError_t error = ready_outside_of_captures();
  if (error != cudaSuccess) return error;
  return is_done() ? cudaSuccess : cudaErrorNotReady;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  if (const cudaError_t error = ready(); error != cudaSuccess) return error;
  *stream = reinterpret_cast<cudaStream_t>(fake_gpu::new_stream(priority));
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  fake_gpu::end_stream(as_stream(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = fake_gpu::priority_of(as_stream(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (is_capturing(stream)) return fail(cudaErrorStreamCaptureUnsupported);
  const cudaError_t error = ready();
  if (error != cudaSuccess) return error;
  return fake_gpu::is_idle(as_stream(stream)) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const cudaError_t error = ready_outside_of_captures();
  return error == cudaSuccess ? from(fake_gpu::finish(as_stream(stream))) : error;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (const cudaError_t error = ready(); error != cudaSuccess) return error;
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  if (const cudaError_t error = ready(); error != cudaSuccess) return error;
  if (fake_gpu::device_of(as_stream(stream)) != event->device) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  if (!record_in_capture(event, stream)) fake_gpu::record(event->event, as_stream(stream));
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return look([=] { return fake_gpu::is_done(event->event); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const cudaError_t error = ready_outside_of_captures();
  return error == cudaSuccess ? from(fake_gpu::finish(event->event)) : error;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = static_cast<float>(1e3 * (end->event.seconds - begin->event.seconds));
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const cudaError_t error = ready(); error != cudaSuccess) return error;
  if (!wait_in_capture(stream, event)) fake_gpu::wait(as_stream(stream), event->event);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (const cudaError_t error = ready(); error != cudaSuccess) return error;
  return submit(stream, [=] {
    function(data);
    return fake_gpu::kSuccess;
  });
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data,
                                  unsigned) {
  if (const cudaError_t error = ready(); error != cudaSuccess) return error;
  return submit(stream, [=] {
    function(stream, cudaSuccess, data);
    return fake_gpu::kSuccess;
  });
}

}  // extern "C"
