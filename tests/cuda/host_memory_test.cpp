// A GPU whose memory is full.
#include <catch2/catch.hpp>

#include <memory>

#include <regard/regard.hpp>

#include "../cuda_host/fibers.hpp"

namespace host_memory_test {

using namespace regard;
using Catch::Matchers::Contains;

TEST_CASE("cuda host: what does not fit into memory is said, and what fits goes on") {
  cuda_host::set_capacity(1 << 20);
  CHECK_THROWS_WITH(zeros({1 << 20}, cuda()), Contains("out of memory on cuda:0") && Contains("4194304 bytes"));
  cuda_host::set_capacity(size_t{4} << 30);
  CHECK(zeros({1 << 20}, cuda()).numel() == 1 << 20);
}

TEST_CASE("cuda host: a layer that does not fit stays where it was, and a step that does not fit is none") {
  layers::Sequential model(layers::Linear(8, 8), layers::Linear(256, 256));
  cuda_host::set_capacity(1 << 16);
  CHECK_THROWS_WITH(model.to(cuda()), Contains("out of memory on cuda:0"));
  for (const Tensor& p : model.parameters()) CHECK(p.device() == cpu());

  cuda_host::set_capacity(size_t{4} << 30);
  for (const bool momentum : {false, true}) {
    const Tensor small = ones({16}, cuda()).set_requires_grad(), large = ones({4096}, cuda()).set_requires_grad();
    small.set_grad(ones_like(small));
    large.set_grad(ones_like(large));
    std::unique_ptr<optim::Optimizer> optimizer;
    if (momentum)
      optimizer = std::make_unique<optim::SGD>(Tensors{small, large}, optim::SGDOptions{.lr = 0.5, .momentum = 0.9});
    else
      optimizer = std::make_unique<optim::AdamW>(Tensors{small, large}, optim::AdamWOptions{.lr = 0.5});
    cuda_host::set_capacity(cuda_host::held().bytes + 256);
    CHECK_THROWS_WITH(optimizer->step(), Contains("out of memory on cuda:0"));
    cuda_host::set_capacity(size_t{4} << 30);
    const StateDict state = optimizer->state_dict();
    CHECK(state.at("0.step").item<int64_t>() == 0);
    CHECK_FALSE(state.contains(momentum ? "0.momentum_buffer" : "0.exp_avg"));
    CHECK(equal(large, ones_like(large)));
    optimizer->load_state_dict(state);
    optimizer->step();
    CHECK(optimizer->state_dict().at("1.step").item<int64_t>() == 1);
    CHECK(large.to_vector<float>().front() < 1);
  }
}

}  // namespace host_memory_test
