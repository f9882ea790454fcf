// A graph is the list of what was submitted while it was captured.
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime.h"

using namespace fake_runtime;
using fake_gpu::Work;

struct CUgraph_st {
  std::vector<Work> works;
};

struct CUgraphExec_st {
  std::vector<Work> works;
};

namespace {

struct Capture {
  cudaGraph_t graph;  // null once it has ended
  unsigned long long number;
  bool binds_others;  // threads that are not relaxed about it
};

struct Captures {
  std::mutex mutex;
  std::map<cudaStream_t, std::shared_ptr<Capture>> of_streams;
  std::map<cudaEvent_t, std::shared_ptr<Capture>> of_events;
  unsigned long long last = 0;
  int binding = 0;
};

Captures& captures() {
  static auto* const all = new Captures;
  return *all;
}

thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

std::shared_ptr<Capture> capture_of(cudaStream_t stream) {
  const std::lock_guard guard(captures().mutex);
  const auto found = captures().of_streams.find(stream);
  return found == captures().of_streams.end() ? nullptr : found->second;
}

}  // namespace

namespace fake_runtime {

bool is_capturing(cudaStream_t stream) { return capture_of(stream) != nullptr; }

bool is_capturing_anything() {
  const std::lock_guard guard(captures().mutex);
  return captures().binding > 0 && mode_of_thread != cudaStreamCaptureModeRelaxed;
}

cudaError_t submit(cudaStream_t stream, Work work) {
  if (const auto capture = capture_of(stream)) {
    capture->graph->works.push_back(std::move(work));
    return cudaSuccess;
  }
  return from(fake_gpu::submit(as_stream(stream), std::move(work)));
}

bool record_in_capture(cudaEvent_t event, cudaStream_t stream) {
  const auto capture = capture_of(stream);
  const std::lock_guard guard(captures().mutex);
  captures().of_events.erase(event);
  if (capture != nullptr) captures().of_events[event] = capture;
  return capture != nullptr;
}

bool wait_in_capture(cudaStream_t stream, cudaEvent_t event) {
  const std::lock_guard guard(captures().mutex);
  const auto found = captures().of_events.find(event);
  const bool is_captured = found != captures().of_events.end() && found->second->graph != nullptr;
  if (is_captured) captures().of_streams.try_emplace(stream, found->second);
  return is_captured || captures().of_streams.contains(stream);
}

}  // namespace fake_runtime

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, mode_of_thread);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (const cudaError_t error = ready(); error != cudaSuccess) return error;
  if (stream == nullptr) return fail(cudaErrorStreamCaptureUnsupported);
  const bool binds_others = mode != cudaStreamCaptureModeRelaxed;
  const std::lock_guard guard(captures().mutex);
  captures().of_streams[stream] =
      std::make_shared<Capture>(Capture{new CUgraph_st, ++captures().last, binds_others});
  if (binds_others) ++captures().binding;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const auto capture = capture_of(stream);
  if (capture == nullptr) return fail(cudaErrorIllegalState);
  const std::lock_guard guard(captures().mutex);
  *graph = std::exchange(capture->graph, nullptr);
  std::erase_if(captures().of_streams, [&](auto& entry) { return entry.second == capture; });
  if (capture->binds_others) --captures().binding;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = is_capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return ready();
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* number, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  const auto capture = capture_of(stream);
  *status = capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (number != nullptr) *number = capture ? capture->number : 0;
  if (graph != nullptr) *graph = capture ? capture->graph : nullptr;
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return ready();
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph,
                                          unsigned long long) {
  *made = new CUgraphExec_st{graph->works};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  cudaError_t error = ready();
  for (const Work& work : graph->works) {
    if (error == cudaSuccess) error = submit(stream, work);
  }
  return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = graph->works.size();
  return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                                         size_t* count) {
  *count = 0;
  return cudaSuccess;
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }

}  // extern "C"
