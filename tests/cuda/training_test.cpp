// Training on a GPU beside the CPU: the same losses, step for step.
#include <catch2/catch.hpp>

#include <cmath>

#include <regard/regard.hpp>

#include "../test_folder.hpp"

namespace training_test {

using namespace regard;

namespace {

layers::GPTOptions tiny() {
  return {.vocabulary = 11, .context = 8, .width = 16, .heads = 2, .layers = 2, .dropout = 0.1};
}

struct Training {
  layers::GPT model;
  optim::AdamW optimizer;
  explicit Training(Device device) : model(made(device)), optimizer(model.parameters(), {.lr = 0.01}) {}
  static layers::GPT made(Device device) {
    manual_seed(3);
    layers::GPT model(tiny());
    model.to(device);
    return model;
  }

  // The losses of `steps` steps from step `first` on.
  std::vector<double> run(Device device, int first, int steps) {
    std::vector<double> losses;
    for (int step = first; step < first + steps; ++step) {
      Generator same(4);
      const Tensor ids = randint(0, 11, {4, 8}, DType::i64, same).to(device);
      manual_seed(100 + static_cast<uint64_t>(step));  // dropout's
      const Tensor scores = model(ids);
      const Tensor loss = cross_entropy(scores.reshape({32, 11}), flip(ids, {1}).reshape({32}));
      optimizer.zero_grad();
      loss.backward();
      optim::clip_grad_norm(model.parameters(), 1.0);
      optimizer.step();
      losses.push_back(loss.item<double>());
    }
    return losses;
  }
};

void check_close(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == Approx(b[i]).epsilon(2e-4));
}

}  // namespace

TEST_CASE("training on a device: a GPT with dropout has the CPU's losses, and the same bits again") {
  const std::vector<double> here = Training(cpu()).run(cpu(), 0, 6);
  const std::vector<double> there = Training(cuda()).run(cuda(), 0, 6);
  check_close(there, here);
  CHECK(there == Training(cuda()).run(cuda(), 0, 6));
  CHECK(here.back() < here.front());
}

TEST_CASE("training on a device: what was saved there goes on here, and the other way round") {
  for (const auto& [first, then] : {std::pair(cuda(), cpu()), std::pair(cpu(), cuda())}) {
    const test::Folder folder;
    Training whole(cpu());
    whole.run(cpu(), 0, 3);
    const std::vector<double> right = whole.run(cpu(), 3, 3);
    {
      Training begun(first);
      begun.run(first, 0, 3);
      optim::save_checkpoint(folder.path / "c", {begun.model, &begun.optimizer});
    }
    Training resumed(then);
    optim::TrainingState state{resumed.model, &resumed.optimizer};
    optim::load_checkpoint(folder.path / "c", state);
    CHECK(resumed.model.tokens.weight.device() == then);
    check_close(resumed.run(then, 3, 3), right);
  }
}

TEST_CASE("training on a device: every optimizer takes the CPU's steps") {
  const auto trained = [](auto make, Device device) {
    manual_seed(1);
    layers::Sequential model(layers::Linear(6, 8), layers::GELU(), layers::Linear(8, 3));
    model.to(device);
    auto optimizer = make(model.parameters());
    Generator generator(2);
    for (int step = 0; step < 4; ++step) {
      const Tensor x = randn({5, 6}, {}, generator).to(device);
      optimizer.zero_grad();
      square(model(x)).mean().backward();
      optimizer.step();
    }
    std::vector<float> all;
    for (const Tensor& p : model.parameters())
      for (float v : p.to_vector<float>()) all.push_back(v);
    return all;
  };
  const auto check = [&](const char* name, auto make) {
    INFO(name);
    const std::vector<float> here = trained(make, cpu()), there = trained(make, cuda());
    for (size_t i = 0; i < here.size(); ++i) CHECK(there[i] == Approx(here[i]).epsilon(1e-4).margin(2e-5));
  };
  check("SGD", [](const Tensors& p) { return optim::SGD(p, {.lr = 0.1, .momentum = 0.9, .nesterov = true}); });
  check("Adam", [](const Tensors& p) { return optim::Adam(p, {.lr = 0.01}); });
  check("AdamW", [](const Tensors& p) { return optim::AdamW(p, {.lr = 0.01}); });
  check("Lion", [](const Tensors& p) { return optim::Lion(p, {.lr = 0.01}); });
  check("Adafactor", [](const Tensors& p) { return optim::Adafactor(p, {.lr = 0.01}); });
  check("Muon", [](const Tensors& p) { return optim::Muon(Tensors{p[0], p[2]}, {.lr = 0.01}); });
}

}  // namespace training_test
