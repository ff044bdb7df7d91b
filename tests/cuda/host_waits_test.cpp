// What a training step does after backward() never waits for the GPU.
#include <catch2/catch.hpp>
#include <vector>

#include <regard/regard.hpp>

#include "../cuda_host/fibers.hpp"

namespace host_waits_test {

using namespace regard;
using namespace regard::optim;

TEST_CASE("cuda host: steps do not wait for the GPU, and clipping waits once for the norm or not at all") {
  Tensors parameters;
  for (int64_t size : {3, 40, 500}) {
    parameters.push_back(ones({size}).to(cuda()).set_requires_grad());
    parameters.back().set_grad(ones({size}).to(cuda()));
  }
  const auto waits_of = [](const auto& work) {
    const size_t before = cuda_host::waits();
    work();
    return cuda_host::waits() - before;
  };
  SGD sgd(parameters, {.lr = 0.1, .momentum = 0.9});
  Adam adam(parameters);
  AdamW adamw(parameters);
  Lion lion(parameters);
  const Tensor matrix = ones({4, 6}).to(cuda()).set_requires_grad();
  matrix.set_grad(ones({4, 6}).to(cuda()));
  Muon muon({matrix});
  for (int step = 0; step < 2; ++step)
    for (Optimizer* optimizer : std::vector<Optimizer*>{&sgd, &adam, &adamw, &lion, &muon})
      CHECK(waits_of([&] { optimizer->step(); }) == 0);
  CHECK(waits_of([&] { clip_grad_norm_on_device(parameters, 1.0); }) == 0);
  CHECK(waits_of([&] { clip_grad_norm(parameters, 0.5); }) == 1);
  CHECK(waits_of([&] { clip_grad_norm(parameters, 0.25, {.error_if_nonfinite = true}); }) == 1);
  CHECK(waits_of([&] { clip_grad_value(parameters, 0.1); }) == 0);
}

TEST_CASE("cuda host: a gradient scaler waits once a step") {
  const Tensor w = ones({4, 4}).to(cuda()).set_requires_grad();
  AdamW optimizer({w});
  GradScaler scaler;
  for (int step = 0; step < 2; ++step) {
    w.set_grad(ones({4, 4}).to(cuda()));
    const size_t before = cuda_host::waits();
    CHECK(scaler.step(optimizer));
    scaler.update();
    CHECK(cuda_host::waits() - before == 1);
  }
}

}  // namespace host_waits_test
