// Graphs: what a stream captures is kept, call by call, and done when the graph is launched.
#include <cuda_runtime.h>

#include <functional>
#include <utility>
#include <vector>

#include "fibers.hpp"

struct cuda_host_graph {
  std::vector<std::function<cudaError_t()>> calls;
};
struct cuda_host_stream {
  cuda_host_graph* recording = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;  // of the capture
  bool failed = false;
};

namespace cuda_host {
namespace {

thread_local cuda_host_stream* capturing = nullptr;
thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
size_t calls_replayed = 0;

}  // namespace

bool record(cudaStream_t stream, const std::function<cudaError_t()>& work) {
  if (!stream || !stream->recording) return false;
  stream->recording->calls.push_back(work);
  return true;
}

cudaError_t refused_in_capture() {
  if (!capturing || mode == cudaStreamCaptureModeRelaxed || capturing->mode == cudaStreamCaptureModeRelaxed)
    return cudaSuccess;
  capturing->failed = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t refused_while_recording(cudaStream_t stream) {
  if (!stream || !stream->recording) return cudaSuccess;
  stream->failed = true;
  return cudaErrorStreamCaptureUnsupported;
}

size_t replayed() { return calls_replayed; }

}  // namespace cuda_host

using namespace cuda_host;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new cuda_host_stream;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* exchanged) {
  std::swap(*exchanged, mode);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode asked) {
  if (stream->recording) return cudaErrorInvalidValue;
  stream->recording = new cuda_host_graph;
  stream->mode = asked;
  stream->failed = false;
  capturing = stream;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (!stream->recording || stream != capturing) return cudaErrorInvalidValue;
  capturing = nullptr;
  *graph = std::exchange(stream->recording, nullptr);
  if (!stream->failed) return cudaSuccess;
  delete std::exchange(*graph, nullptr);
  return cudaErrorStreamCaptureInvalidated;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new cuda_host_graph(*graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (stream->recording) return cudaErrorStreamCaptureUnsupported;
  for (const auto& call : executable->calls) {
    ++calls_replayed;
    if (const cudaError_t status = call()) return status;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
