// A training step never waits for the GPU.
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
  Adafactor adafactor({matrix, parameters[1]});
  for (int step = 0; step < 2; ++step)
    for (Optimizer* optimizer : std::vector<Optimizer*>{&sgd, &adam, &adamw, &lion, &muon, &adafactor})
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

TEST_CASE("cuda host: batches, ops with indices and masks of numbers, and whole steps do not wait") {
  manual_seed(3);
  layers::GPT model({.vocabulary = 11, .context = 6, .width = 8, .heads = 2, .layers = 1, .dropout = 0.1});
  model.to(cuda());
  AdamW optimizer(model.parameters());
  const Tensor ids = randint(0, 11, {2, 6}), targets = randint(0, 11, {2, 6});
  const Tensor weight = rand({11}).to(cuda());
  const size_t before = cuda_host::waits();
  for (int step = 0; step < 2; ++step) {
    const Tensor logits = model(ids.to(cuda()));
    cross_entropy(logits.view({12, 11}), targets.to(cuda()).view({12}), {.weight = weight, .ignore_index = 3})
        .backward();
    clip_grad_norm_on_device(model.parameters(), 1);
    optimizer.step();
    optimizer.zero_grad();
  }
  const Tensor x = rand({1, 2, 4, 8}, cuda()).set_requires_grad();
  Tensor mask = zeros({4, 4}, cuda());
  mask.select(0, 1).select(0, 2).copy_(from_vector<float>({2}, {}));
  scaled_dot_product_attention(x, x, x, {.mask = mask, .alibi = rand({2}, cuda())}).sum().backward();
  const Tensor index = from_vector<int64_t>({1, 0, 1}, {3}).to(cuda());
  gather(x.view({2, 32}), 0, index.view({3, 1})).sum().backward();
  index_add(x.view({2, 32}), 0, index, ones({3, 32}, cuda())).sum().backward();
  bernoulli(full({5}, 0.5, cuda()));
  pow(index, index);
  nll_loss(log_softmax(x.view({16, 4}), 1), zeros({16}, {DType::i64, cuda()})).backward();
  CHECK(cuda_host::waits() == before);
  synchronize(cuda());
  CHECK(cuda_host::waits() == before + 1);
}

TEST_CASE("cuda host: a replay does what was captured, launch by launch, and does not wait") {
  const Tensor x = ones({3}, cuda()), w = ones({3}, cuda()).set_requires_grad();
  w.set_grad(x);
  AdamW optimizer({w});
  optimizer.step();
  CudaGraph graph;
  const size_t before = cuda_host::waits(), calls = cuda_host::replayed();
  graph.capture([&] {
    w.set_grad(x * 2);
    optimizer.step();
  });
  CHECK(cuda_host::replayed() == calls);
  for (size_t i = 1; i <= 3; ++i) {
    x.copy_(full({3}, i));
    graph.replay();
    CHECK(cuda_host::replayed() == calls + 2 * i);
  }
  CHECK(cuda_host::waits() == before);
}

TEST_CASE("cuda host: a batch is copied through pinned memory that is used again when it is free") {
  const Tensor small = arange(1000), large = randn({3 << 20});  // 4 KB and 12 MiB
  cuda_host::hold_events(true);
  const size_t before = cuda_host::waits();
  Tensors there;
  for (int i = 0; i < 20; ++i) there.push_back((small + i).to(cuda()));
  for (int i = 0; i < 4; ++i) there.push_back((large + i).to(cuda()));  // 48 MiB
  CHECK(cuda_host::waits() == before);
  there.push_back((large + 4).to(cuda()));
  there.push_back((large + 5).to(cuda()));  // beyond 64 MiB: waits for what was copied first
  CHECK(cuda_host::waits() > before);
  cuda_host::hold_events(false);
  for (int i = 0; i < 20; ++i) CHECK(equal(there[static_cast<size_t>(i)].to(cpu()), small + i));
  for (int i = 0; i < 6; ++i) CHECK(equal(there[20 + static_cast<size_t>(i)].to(cpu()), large + i));
}

}  // namespace host_waits_test
