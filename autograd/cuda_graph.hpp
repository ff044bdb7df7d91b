// A step on a GPU that is recorded once and then started as a whole: its launches cost the CPU nothing any more.
#pragma once

#include <functional>
#include <memory>

#include <regard/autograd/device.hpp>
#include <regard/autograd/tensor.hpp>

namespace regard {

class CapturedGraph;

/// A sequence of work on a GPU, captured once and replayed as often as wanted, as PyTorch's torch.cuda.CUDAGraph. For
/// steps whose shapes do not change and that are made of many small kernels:
///
///     Tensor ids = zeros({32, 128}, {DType::i64, cuda()}), targets = zeros({32, 128}, {DType::i64, cuda()}), loss;
///     auto step = [&] {
///       optimizer.zero_grad();
///       loss = cross_entropy(model(ids).flatten(0, 1), targets.flatten());
///       loss.backward();
///       clip_grad_norm_on_device(model.parameters(), 1);
///       optimizer.step();
///     };
///     step();                 // at least once: makes the optimizer's state
///     CudaGraph graph;
///     graph.capture(step);    // records, and does nothing
///     for (...) {
///       ids.copy_(batch.ids), targets.copy_(batch.targets);
///       graph.replay();       // one step
///       schedule.step();
///     }
///
/// A replay gives the bits that the step would have given. It reads and writes the memory that the step read and wrote
/// when it was captured: new inputs are written into the same tensors (copy_()), and results are in the same tensors
/// (`loss`, parameters, their gradients). Those that the step uses from before the capture must live, and stay where
/// they are, as long as there are replays; what an optimizer uses is checked, and the graph keeps the gradients that it
/// reads. What it makes lies in memory of its own, which the graph keeps.
///
/// What changes from step to step: optimizers count their steps and take the learning rate of the moment, and dropout
/// and the other random ops take new numbers of the default generator, at each replay as without a graph. All else on
/// the CPU is done at the capture alone: ifs, prints, numbers that are given to ops, generators of one's own.
///
/// What waits for the GPU (item(), to_vector(), to(cpu()), clip_grad_norm()) or copies from the CPU is a DeviceError in
/// a capture, and names itself; so is an optim::GradScaler. Bad indices are found as always (cuda.hpp), behind a
/// replay.
class CudaGraph {
 public:
  /// Of this GPU; a DeviceError where there is none.
  explicit CudaGraph(Device device = cuda());
  ~CudaGraph();
  CudaGraph(CudaGraph&&) noexcept;
  CudaGraph& operator=(CudaGraph&&) noexcept;

  /// Calls `work` on this thread and records what it asks of the GPU, of which nothing is done. An exception from it
  /// ends the capture, and the graph is empty then; tensors that `work` had made or assigned by then, such as the loss
  /// and the gradients of parameters, hold numbers that were never computed: zero_grad(). What was captured before is
  /// forgotten first. A DeviceError where this thread captures already.
  void capture(const std::function<void()>& work);
  /// Does what was captured, behind what is queued, and returns before it is done. A GraphError where nothing was, or
  /// where an optimizer in it is gone, or has other parameters or state than then.
  void replay();
  /// Forgets what was captured, and gives its memory back, but for that of tensors that are left. Waits for the GPU.
  void reset();
  bool captured() const { return graph_ != nullptr; }

 private:
  Device device_;
  std::unique_ptr<CapturedGraph> graph_;
};

/// Whether this thread is inside of CudaGraph::capture(). As torch.cuda.is_current_stream_capturing().
bool cuda_is_capturing();

namespace detail {

/// For what does host work in each step, such as an optimizer: in a capture, has it done at each replay. All checks,
/// which may throw, come before anything is advanced.
void at_replay(std::function<void()> check, std::function<void()> advance);

/// A tensor {} that holds what `value` returns: now, and in a capture at each replay.
Tensor number_of_step(const std::function<double()>& value, TensorOptions options);

}  // namespace detail
}  // namespace regard
