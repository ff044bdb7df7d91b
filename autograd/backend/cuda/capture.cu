// Captures: what a thread queues goes to a stream of its own, which records it; a replay is one launch on the stream on
// which everything else of the GPU happens.
#include <regard/autograd/backend/cuda/capture.hpp>

#include <algorithm>
#include <atomic>
#include <vector>

#include <regard/autograd/backend/cuda/cublas.hpp>
#include <regard/autograd/backend/cuda/faults.hpp>
#include <regard/autograd/backend/cuda/graph_memory.hpp>
#include <regard/autograd/backend/cuda/runtime.hpp>
#include <regard/autograd/backend/cuda/staging.hpp>
#include <regard/autograd/error.hpp>
#include <regard/autograd/random.hpp>

namespace regard::cuda_backend {
namespace {

constexpr const char* name = "CudaGraph";
constexpr size_t most_slot_bytes = size_t{256} << 10;
constexpr uint64_t numbers = uint64_t{1} << 15;
constexpr int number_shift = 48;

class Graph;
thread_local Graph* capturing = nullptr;
std::atomic<uint64_t> next_number{0};

class Graph final : public CapturedGraph {
 public:
  explicit Graph(int index) : memory_{index, {}, {}, {}}, number_(next_number++ % numbers) {
    stream_of(cuda(index));
    prepare_checks(index);
    prepare_blas(name);
    slots_ = static_cast<char*>(allocate(most_slot_bytes, index));
    check_cuda(name, cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    // The driver refuses nothing that is not on this stream: what it could is refused by name (check_not_captured()),
    // and memory may be asked for.
    const cudaError_t status = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed);
    if (status != cudaSuccess) {
      cudaStreamDestroy(stream_);
      free(slots_, most_slot_bytes, index);
    }
    check_cuda(name, status);
    capturing = this;
    use_graph_memory(&memory_);
  }
  ~Graph() override {
    if (capturing == this) {
      cudaGraph_t dropped = nullptr;
      stop(&dropped);
      if (dropped) cudaGraphDestroy(dropped);
      cudaGetLastError();
    }
    if (executable_) {
      // At the program's end there may be no driver any more: nothing to be done about it.
      cudaStreamSynchronize(shared_stream(index()));
      cudaGraphExecDestroy(executable_);
      cudaGetLastError();
    }
    free(slots_, most_slot_bytes, index());
    give_back(memory_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void end() override {
    cudaGraph_t graph = nullptr;
    check_cuda(name, stop(&graph));
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(name, status);
  }

  void replay() override {
    check_not_captured("CudaGraph.replay", "cannot be a part of it");
    const cudaStream_t stream = stream_of(cuda(index()));
    for (const HostWork& work : host_work_)
      if (work.check) work.check();
    // In the order of the capture: of two steps of an optimizer each finds its own count.
    for (const HostWork& work : host_work_) {
      if (work.advance) work.advance();
      if (work.write) work.write(image_.data() + work.offset);
    }
    default_generator().reserve(static_cast<int64_t>(counters_));
    if (!image_.empty()) copy_to_gpu(name, slots_, image_.data(), static_cast<int64_t>(image_.size()), index(), stream);
    check_cuda(name, cudaGraphLaunch(executable_, stream));
    check_launched(name, stream);
  }

  void at_replay(std::function<void()> check, std::function<void()> advance) override {
    host_work_.push_back({std::move(check), std::move(advance), nullptr, 0});
  }

  void* slot(size_t bytes, std::function<void(void*)> write) override {
    const size_t offset = (image_.size() + 15) / 16 * 16;
    check<DeviceError>(offset + bytes <= most_slot_bytes, name, "more than ", most_slot_bytes,
                       " bytes change from one replay to the next: capture less at a time");
    image_.resize(offset + bytes);
    host_work_.push_back({nullptr, nullptr, std::move(write), offset});
    return slots_ + offset;
  }

  void keep(void* block) override { keep_block(memory_, block); }

  uint64_t first_counter() const override { return captured_counters | number_ << number_shift; }
  void set_counters(uint64_t count) override { counters_ = count; }

  const GeneratorState* generator_state() {
    if (!generator_)
      generator_ = replayed<GeneratorState>(name, [] {
        return GeneratorState{default_generator().seed(), default_generator().offset()};
      });
    return generator_;
  }
  int index() const { return memory_.index; }
  cudaStream_t stream() const { return stream_; }

 private:
  // Of the optimizers, and what fills a slot.
  struct HostWork {
    std::function<void()> check, advance;
    std::function<void(void*)> write;
    size_t offset;  // of the slot
  };

  // This thread's work is not captured any more.
  cudaError_t stop(cudaGraph_t* graph) {
    capturing = nullptr;
    use_graph_memory(nullptr);
    const cudaError_t status = cudaStreamEndCapture(stream_, graph);
    cudaStreamDestroy(stream_);
    stream_ = nullptr;
    return status;
  }

  GraphMemory memory_;
  uint64_t number_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  std::vector<HostWork> host_work_;
  std::vector<char> image_;  // of the slots, on the CPU
  char* slots_ = nullptr;
  const GeneratorState* generator_ = nullptr;
  uint64_t counters_ = 0;
};

}  // namespace

CapturedGraph* begin_capture(int index) { return new Graph(index); }

CapturedGraph* current_capture() { return capturing; }

cudaStream_t capture_stream(int index) {
  if (!capturing) [[likely]]
    return nullptr;
  check<DeviceError>(capturing->index() == index, name, "work of ", cuda(index), " in a capture of ",
                     cuda(capturing->index()), ": a graph is of one GPU");
  return capturing->stream();
}

void check_not_captured(const char* op, const char* what) {
  check<DeviceError>(!capturing, op, "a capture (CudaGraph) is going on, and this ", what,
                     ": do it before the capture, or after a replay");
}

void* replayed_memory(const char* op, size_t bytes, std::function<void(void*)> write) {
  check<DeviceError>(write != nullptr, op, "in a capture (CudaGraph) each replay would repeat this step's numbers");
  return capturing->slot(bytes, std::move(write));
}

const GeneratorState* generator_state(const char* op, uint64_t offset) {
  const bool captured = (offset & captured_counters) != 0;
  if (!captured && !capturing) [[likely]]
    return nullptr;
  check<DeviceError>(captured, op,
                     "in a capture (CudaGraph) random numbers come from the default generator, as it was when the "
                     "capture began: a generator of one's own, or manual_seed(), would give each replay the same");
  check<DeviceError>(capturing && offset >> number_shift == capturing->first_counter() >> number_shift, op,
                     "random numbers of a capture (CudaGraph) are used outside of it: capture backward() with forward");
  return capturing->generator_state();
}

}  // namespace regard::cuda_backend
