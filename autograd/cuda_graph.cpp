#include <regard/autograd/cuda_graph.hpp>

#include <cstring>
#include <utility>

#include <regard/autograd/backend/captured_graph.hpp>
#include <regard/autograd/backend/cuda_backend.hpp>
#include <regard/autograd/error.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>
#include <regard/autograd/random.hpp>

namespace regard {

CudaGraph::CudaGraph(Device device) : device_(device) { need_cuda("CudaGraph", device); }
CudaGraph::~CudaGraph() = default;
CudaGraph::CudaGraph(CudaGraph&&) noexcept = default;
CudaGraph& CudaGraph::operator=(CudaGraph&&) noexcept = default;

void CudaGraph::capture(const std::function<void()>& work) {
  check<ValueError>(work != nullptr, "CudaGraph.capture", "the work is an empty function");
  const CudaBackend& backend = need_cuda("CudaGraph", device_);
  check<DeviceError>(!cuda_is_capturing(), "CudaGraph.capture",
                     "this thread captures already: end the one capture before the other begins");
  reset();
  std::unique_ptr<CapturedGraph> graph(backend.begin_capture(device_.index));

  // The default generator counts from 0, marked, and is then as if nothing had been drawn.
  struct Counting {
    Generator& generator = default_generator();
    const Generator before = generator;
    ~Counting() { generator = before; }
  };
  uint64_t drawn = 0;
  {
    const Counting counting;
    const autocast::FreshConversions fresh;
    counting.generator.set_state(counting.before.seed(), graph->first_counter());
    work();
    const uint64_t last = counting.generator.offset();
    check<GraphError>((last & ~counted_in_capture) == graph->first_counter(), "CudaGraph.capture",
                      "the default generator was set: leave manual_seed() to what comes before the capture");
    drawn = last & counted_in_capture;
  }
  graph->set_counters(drawn);
  graph->end();
  graph_ = std::move(graph);
}

void CudaGraph::replay() {
  check<GraphError>(graph_ != nullptr, "CudaGraph.replay", "nothing was captured: call capture() before");
  graph_->replay();
}

void CudaGraph::reset() { graph_.reset(); }

CapturedGraph* current_capture() {
  const CudaBackend* backend = find_cuda_backend();
  return backend ? backend->current_capture() : nullptr;
}

bool cuda_is_capturing() { return current_capture() != nullptr; }

namespace detail {

void at_replay(std::function<void()> check, std::function<void()> advance) {
  if (CapturedGraph* graph = current_capture()) graph->at_replay(std::move(check), std::move(advance));
}

Tensor number_of_step(const std::function<double()>& value, TensorOptions options) {
  CapturedGraph* graph = options.device.kind == Device::Kind::cuda ? current_capture() : nullptr;
  if (!graph) return full({}, value(), options);
  Tensor number = empty({}, options);
  const auto bytes = static_cast<size_t>(element_size(options.dtype));
  void* slot = graph->slot(bytes, [value, dtype = options.dtype, bytes](void* to) {
    const Tensor now = full({}, value(), dtype);
    std::memcpy(to, now.raw_data(), bytes);
  });
  find_cuda_backend()->copy("number_of_step", number.raw_data(), options.device, slot, options.device,
                            element_size(options.dtype));
  return number;
}

}  // namespace detail
}  // namespace regard
