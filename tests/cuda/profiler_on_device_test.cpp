// A Profiler over ops on a GPU: what it records there is what it records of the same ops on the CPU.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include <regard/regard.hpp>

namespace profiler_on_device_test {

using namespace regard;

namespace {

/// The events of a forward and a backward pass, and of a step.
std::vector<ProfilerEvent> recorded(Device device) {
  Generator generator(1);
  const Tensor x = randn({4, 3}, {}, generator).to(device);
  const Tensor weight = randn({5, 3}, {}, generator).to(device).set_requires_grad();
  const Tensor targets = zeros({4}, DType::i64).to(device);
  optim::AdamW optimizer({weight}, {.lr = 0.1});
  const bool was = set_cuda_synchronous(true);
  Profiler profiler({.kernels = true});
  cross_entropy(linear(x, weight), targets).backward();
  optimizer.step();
  profiler.stop();
  set_cuda_synchronous(was);
  return profiler.events();
}

const ProfilerEvent& first(const std::vector<ProfilerEvent>& events, const std::string& name) {
  for (const ProfilerEvent& event : events)
    if (event.name == name) return event;
  FAIL("there is no event " << name);
  return events.front();
}

}  // namespace

TEST_CASE("profiler on a device: operations, bytes and times of ops there") {
  const std::vector<ProfilerEvent> here = recorded(cpu()), there = recorded(cuda());
  for (const char* name : {"linear", "linear backward", "cross_entropy", "adam_step"}) {
    CAPTURE(name);
    const ProfilerEvent &on_cpu = first(here, name), &on_gpu = first(there, name);
    CHECK(on_gpu.flops == on_cpu.flops);
    CHECK(on_gpu.bytes_written >= on_cpu.bytes_written);
    CHECK(on_gpu.bytes_written > 0);
    CHECK(on_gpu.bytes_read > 0);
    CHECK(on_gpu.duration_us > 0);
    CHECK(on_gpu.outputs == on_cpu.outputs);
  }
  CHECK(first(there, "linear").flops == 2 * 4 * 3 * 5);
  // It has ended: ops there work on, and are recorded no more.
  CHECK((ones({2}, cuda()) * 2).sum().item<float>() == 4);
}

}  // namespace profiler_on_device_test
