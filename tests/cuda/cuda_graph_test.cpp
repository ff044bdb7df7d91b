// A captured step against the same step without a graph: the same bits, however often it is replayed.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <regard/autograd/backend/allocator.hpp>
#include <regard/regard.hpp>

namespace cuda_graph_test {

using namespace regard;
using namespace regard::optim;
using Catch::Matchers::Contains;

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const layers::Layer&)>;

struct Trained {
  std::vector<double> losses, parameters, state;
  uint64_t drawn = 0;
};

// Steps of a small GPT, of which `captured` says whether all but the first two are replays.
Trained train(const MakeOptimizer& make, bool captured, int steps, bool recompute = false) {
  manual_seed(11);
  layers::GPT model(
      {.vocabulary = 13, .context = 5, .width = 8, .heads = 2, .layers = 1, .dropout = 0.2, .recompute = recompute});
  model.to(cuda());
  const std::unique_ptr<Optimizer> optimizer = make(model);
  WarmupCosine schedule(*optimizer, {.warmup_steps = 3, .total_steps = 10});
  const TensorOptions kind(DType::i64, cuda());
  const Tensor ids = zeros({2, 5}, kind), targets = zeros({2, 5}, kind);
  Tensor loss;
  const auto step = [&] {
    optimizer->zero_grad();
    loss = cross_entropy(model(ids).flatten(0, 1), targets.flatten(), {.ignore_index = 3});
    loss.backward();
    clip_grad_norm_on_device(model.parameters(), 0.5);
    optimizer->step();
  };
  Trained result;
  Generator data(7);
  CudaGraph graph;
  for (int i = 0; i < steps; ++i) {
    ids.copy_(randint(0, 13, {2, 5}, DType::i64, data));
    targets.copy_(randint(0, 13, {2, 5}, DType::i64, data));
    if (captured && i == 2) graph.capture(step);
    if (captured && i >= 2) {
      graph.replay();
    } else {
      step();
    }
    schedule.step();
    result.losses.push_back(loss.item<double>());
    result.drawn = default_generator().offset();
  }
  for (const Tensor& p : model.parameters())
    for (double value : p.to_vector<double>()) result.parameters.push_back(value);
  for (const auto& [name, tensor] : optimizer->state_dict())
    for (double value : tensor.to_vector<double>()) result.state.push_back(value);
  return result;
}

const MakeOptimizer adamw = [](const layers::Layer& model) {
  return std::make_unique<AdamW>(decay_groups(model, AdamWOptions{.lr = 0.01, .weight_decay = 0.1}));
};

void check_equal(const Trained& a, const Trained& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.parameters == b.parameters);
  CHECK(a.state == b.state);
  CHECK(a.drawn == b.drawn);
}

TEST_CASE("cuda graph: a step with dropout, clipping, AdamW and a schedule, to the bit") {
  const Trained plain = train(adamw, false, 13);
  check_equal(train(adamw, true, 13), plain);
  CHECK(plain.losses[2] != plain.losses[3]);
  check_equal(train(adamw, true, 5, true), train(adamw, false, 5, true));
}

TEST_CASE("cuda graph: the other optimizers, to the bit") {
  const std::vector<std::pair<const char*, MakeOptimizer>> all = {
      {"Adam", [](const auto& m) { return std::make_unique<Adam>(m.parameters(), AdamOptions{.weight_decay = 0.1}); }},
      {"SGD", [](const auto& m) { return std::make_unique<SGD>(m.parameters(), SGDOptions{.lr = 0.1}); }},
      {"SGD with momentum",
       [](const auto& m) {
         return std::make_unique<SGD>(m.parameters(), SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true});
       }},
      {"Lion", [](const auto& m) { return std::make_unique<Lion>(m.parameters(), LionOptions{.weight_decay = 0.1}); }},
      {"Muon", [](const auto& m) { return std::make_unique<MuonWithAdamW>(m, MuonWithAdamWOptions{}); }},
      {"Adafactor", [](const auto& m) {
         return std::make_unique<Adafactor>(m.parameters(), AdafactorOptions{.lr = 0.01, .weight_decay = 0.1});
       }}};
  for (const auto& [name, make] : all) {
    INFO(name);
    check_equal(train(make, true, 6), train(make, false, 6));
  }
}

TEST_CASE("cuda graph: two steps of an optimizer in one capture, each with its own count") {
  std::vector<double> found[2];
  for (int captured = 0; captured < 2; ++captured) {
    manual_seed(2);
    layers::Linear linear(3, 2);
    linear.to(cuda());
    AdamW optimizer(linear.parameters(), {.lr = 0.1});
    const Tensor x = ones({4, 3}, cuda());
    const auto two_steps = [&] {
      for (int i = 0; i < 2; ++i) {
        optimizer.zero_grad();
        square(linear(x)).sum().backward();
        optimizer.step();
      }
    };
    two_steps();
    CudaGraph graph;
    if (captured) graph.capture(two_steps);
    for (int i = 0; i < 3; ++i) captured ? graph.replay() : two_steps();
    found[captured] = linear.weight.to_vector<double>();
    CHECK(optimizer.state_dict().at("0.step").item<int64_t>() == 8);
  }
  CHECK(found[0] == found[1]);
}

TEST_CASE("cuda graph: in a scope of autocast, each replay converts the weights of the moment") {
  std::vector<double> found[2];
  for (int captured = 0; captured < 2; ++captured) {
    manual_seed(2);
    layers::Linear linear(4, 3);
    linear.to(cuda());
    SGD optimizer(linear.parameters(), {.lr = 0.5});
    for (const Tensor& p : linear.parameters()) p.set_grad(ones(p.shape(), cuda()));
    const Tensor x = ones({2, 4}, cuda());
    const AutocastScope scope(DType::bf16);
    Tensor y;
    const auto forward = [&] { y = linear(x); };
    forward();
    CudaGraph graph;
    if (captured) graph.capture(forward);
    for (int i = 0; i < 3; ++i) {
      for (double value : linear(x).to(DType::f32).to_vector<double>()) found[captured].push_back(value);
      optimizer.step();
      captured ? graph.replay() : forward();
      for (double value : y.to(DType::f32).to_vector<double>()) found[captured].push_back(value);
    }
  }
  CHECK(found[0] == found[1]);
  CHECK(found[0][0] != found[0][6]);
}

TEST_CASE("cuda graph: gradients that are added to between replays, and memory of those that are dropped") {
  std::vector<double> found[2];
  for (int captured = 0; captured < 2; ++captured) {
    const Tensor x = ones({3}, cuda()), w = ones({3}, cuda()).set_requires_grad();
    SGD optimizer({w}, {.lr = 0.25});
    const auto work = [&] {
      (w * x).sum().backward();
      optimizer.step();
      w.grad().zero_();
    };
    work();
    CudaGraph graph;
    if (captured) graph.capture(work);
    for (int i = 1; i <= 3; ++i) {
      x.copy_(full({3}, i));
      (w * x * 2).sum().backward();  // a smaller batch before
      captured ? graph.replay() : work();
    }
    found[captured] = w.to_vector<double>();
    if (!captured) continue;
    optimizer.zero_grad();  // what the graph writes to is nobody else's, still
    Tensors others;
    for (int i = 0; i < 20; ++i) others.push_back(full({3}, 5, cuda()));
    graph.replay();
    CHECK(stack(others).sum().item<float>() == 20 * 3 * 5);
  }
  CHECK(found[0] == found[1]);
  CHECK(found[0] == std::vector<double>(3, 1 - 0.25 * (1 + 3 * (1 + 2 + 3))));
}

TEST_CASE("cuda graph: parameters that are stepped inside backward()") {
  std::vector<double> found[2];
  for (int captured = 0; captured < 2; ++captured) {
    manual_seed(2);
    layers::Linear linear(3, 2);
    linear.to(cuda());
    AdamW optimizer(linear.parameters());
    optimizer.step_in_backward();
    const Tensor x = ones({4, 3}, cuda());
    const auto step = [&] { square(linear(x)).sum().backward(); };
    step();
    CudaGraph graph;
    if (captured) graph.capture(step);
    for (int i = 0; i < 3; ++i) captured ? graph.replay() : step();
    found[captured] = linear.weight.to_vector<double>();
  }
  CHECK(found[0] == found[1]);
}

TEST_CASE("cuda graph: random numbers of replays are those without a graph") {
  std::vector<std::vector<double>> found[2];
  for (int captured = 0; captured < 2; ++captured) {
    manual_seed(4);
    Tensor all[5];
    const Tensor half = full({7}, 0.5, cuda());
    const auto draw = [&] {
      all[0] = rand({5}, cuda());
      all[1] = randn({3}, {DType::f64, cuda()});
      all[2] = randint(0, 100, {6}, {DType::i64, cuda()});
      all[3] = bernoulli(half);
      all[4] = dropout(half, 0.3);
    };
    CudaGraph graph;
    if (captured) graph.capture(draw);
    for (int i = 0; i < 4; ++i) {
      captured ? graph.replay() : draw();
      for (const Tensor& x : all) found[captured].push_back(x.to_vector<double>());
      if (i == 1) manual_seed(5);
      if (i == 2) rand({100});  // of the CPU, between replays
    }
  }
  CHECK(found[0] == found[1]);
  CHECK(found[0][0] != found[0][5]);
}

TEST_CASE("cuda graph: several of one model, whose memory nobody else gets") {
  const Tensor a = arange(4, DType::f32).to(cuda()), b = zeros({4}, cuda());
  Tensor doubled, sum;
  CudaGraph first, second;
  first.capture([&] { doubled = a * 2 + 1; });
  second.capture([&] {
    for (int i = 0; i < 3; ++i) b.add_(doubled * 0.5);
    sum = b.sum();
  });
  Tensors others;
  for (int i = 0; i < 20; ++i) others.push_back(full({4}, i, cuda()));
  for (int round = 1; round <= 3; ++round) {
    a.copy_(full({4}, round));
    first.replay();
    second.replay();
    CHECK(doubled.to_vector<float>() == std::vector<float>(4, 2.0F * round + 1));
  }
  CHECK(b.to_vector<float>() == std::vector<float>(4, 1.5F * (3 + 5 + 7)));
  CHECK(sum.item<float>() == 4 * 1.5F * (3 + 5 + 7));
  for (int i = 0; i < 20; ++i)
    CHECK(others[static_cast<size_t>(i)].to_vector<float>() == std::vector<float>(4, static_cast<float>(i)));
}

TEST_CASE("cuda graph: memory is kept while there is the graph, and comes back") {
  const Tensor x = ones({1000}, cuda());
  empty_cache();
  const int64_t before = cuda_memory_stats().allocated;
  const int64_t reserved = cuda_memory_stats().reserved;
  {
    Tensor kept;
    CudaGraph graph;
    graph.capture([&] { kept = (x + 1) * (x + 2) - 3; });
    graph.replay();
    CHECK(cuda_memory_stats().reserved >= reserved + 3 * 4000);
    Tensor moved = kept;
    kept = Tensor();
    graph.reset();
    CHECK_FALSE(graph.captured());
    CHECK(moved.sum().item<float>() == 3000);  // lives on
  }
  CHECK(cuda_memory_stats().allocated == before);
  // What was the program's, and is freed in the capture, stays until then.
  Tensor given = full({1000}, 5, cuda()), result;
  CudaGraph graph;
  graph.capture([&] {
    result = given + 1;
    given = Tensor();
  });
  const Tensor other = full({1000}, 9, cuda());
  graph.replay();
  CHECK(result.sum().item<float>() == 6000);
  CHECK(other.sum().item<float>() == 9000);
  // A result that nobody wants any more is still written to, in memory that nobody else gets.
  result = Tensor();
  Tensors others;
  for (int i = 0; i < 600; ++i) others.push_back(full({1000}, 8, cuda()));
  graph.replay();
  CHECK(stack(others).sum().item<float>() == 600 * 8000);
}

TEST_CASE("cuda graph: what waits for the GPU names itself, and the capture ends") {
  const Tensor x = ones({3}, cuda());
  const Tensor weight = ones({3}, cuda()).set_requires_grad();
  SGD optimizer({weight});
  weight.set_grad(ones({3}, cuda()));
  const Tensor on_cpu = ones({3}).set_requires_grad();
  SGD of_cpu({on_cpu});
  on_cpu.set_grad(ones({3}));
  of_cpu.step();
  GradScaler scaler;
  Tensor y;
  Generator own(3);
  const std::vector<std::pair<std::function<void()>, const char*>> cases = {
      {[&] { x.sum().item<float>(); }, "item()"},
      {[&] { x.to_vector<float>(); }, "to_vector()"},
      {[&] { x.to(cpu()); }, "to: "},
      {[&] { y = ones({3}).to(cuda()); }, "to: "},
      {[&] { y.copy_(ones({3})); }, "copy_: "},
      {[&] { synchronize(cuda()); }, "synchronize: "},
      {[&] { optimizer.step(); }, "first step in a capture"},
      {[&] { of_cpu.step(); }, "parameter 0 of shape [3] is on cpu"},
      {[&] { clip_grad_norm({weight}, 1); }, "item()"},
      {[&] { scaler.scale(x.sum()); }, "GradScaler.scale: "},
      {[&] { scaler.unscale(optimizer); }, "GradScaler.unscale: "},
      {[&] { scaler.step(optimizer); }, "GradScaler.step: "},
      {[&] { scaler.update(); }, "GradScaler.update: "},
      {[&] { dropout(x, 0.5, own); }, "dropout: "},
      {[&] { rand({3}, cuda(), own); }, "uniform: "},
      {[&] { manual_seed(1), rand({3}, cuda()); }, "uniform: "},
      {[&] { manual_seed(1); }, "manual_seed()"},
      {[&] { CudaGraph().capture([] {}); }, "captures already"},
      {[&] { empty_cache(); }, "empty_cache: "},
      {[&] { one_hot(x.to(DType::i64), -1); }, "index_range: "},
  };
  y = zeros({3}, cuda());
  for (const auto& [work, text] : cases) {
    INFO(text);
    manual_seed(9);
    CudaGraph graph;
    CHECK_THROWS_WITH(graph.capture(work), Contains(text));
    CHECK_FALSE(graph.captured());
    CHECK_FALSE(cuda_is_capturing());
    CHECK(default_generator().seed() == 9);
    CHECK(default_generator().offset() == 0);
    CHECK((x + 1).sum().item<float>() == 6);  // goes on as ever
    CHECK_THROWS_AS(graph.replay(), GraphError);
    graph.capture([&] { y = x * 3; });
    graph.replay();
    CHECK(y.to_vector<float>() == std::vector<float>(3, 3));
  }
  CHECK_THROWS_AS(CudaGraph().capture(nullptr), ValueError);
  CHECK_THROWS_AS(CudaGraph(cpu()), DeviceError);
  CHECK_THROWS_AS(CudaGraph(cuda(63)), DeviceError);
  Tensor dropped;
  CudaGraph graph;
  graph.capture([&] { dropped = dropout(weight, 0.5); });
  CHECK_THROWS_WITH(dropped.sum().backward(), Contains("capture backward()"));
}

TEST_CASE("cuda graph: a replay finds out that its optimizer is another one") {
  layers::Linear linear(3, 2);
  linear.to(cuda());
  auto optimizer = std::make_unique<AdamW>(linear.parameters());
  const auto step = [&] {
    optimizer->zero_grad();
    linear(ones({1, 3}, cuda())).sum().backward();
    optimizer->step();
  };
  step();
  CudaGraph graph;
  graph.capture(step);
  graph.replay();
  const StateDict state = optimizer->state_dict();
  CHECK(state.at("0.step").item<int64_t>() == 2);
  optimizer->load_state_dict(state);
  CHECK_THROWS_WITH(graph.replay(), Contains("capture again"));
  graph.capture(step);
  graph.replay();
  CHECK(optimizer->state_dict().at("0.step").item<int64_t>() == 3);
  optimizer.reset();
  CHECK_THROWS_WITH(graph.replay(), Contains("is gone"));
}

TEST_CASE("cuda graph: bad indices of a replay are found when it is waited for") {
  const Tensor ids = zeros({2}, {DType::i64, cuda()}), table = arange(6, DType::f32).view({3, 2}).to(cuda());
  Tensor rows;
  CudaGraph graph;
  graph.capture([&] { rows = embedding(ids, table); });
  graph.replay();
  synchronize(cuda());
  ids.copy_(from_vector<int64_t>({2, 3}, {2}));
  graph.replay();
  CHECK_THROWS_WITH(rows.to_vector<float>(), Contains("embedding: id 3 at position [1] is outside [0, 3)"));
  ids.copy_(from_vector<int64_t>({2, 1}, {2}));
  graph.replay();
  CHECK(rows.to_vector<float>() == std::vector<float>{4, 5, 2, 3});
}

}  // namespace cuda_graph_test
