// Steps of optimizers on the GPU, many parameters at once, and gradient norms.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/regard.hpp>

namespace cuda_optimizer_test {

using namespace regard;
using namespace regard::optim;
using Catch::Matchers::Contains;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
const Device cpu{};

/// Tensors of sizes around packs and chunks, and `many` small ones in one block of memory, which are not all aligned;
/// by default more of them than one launch takes. The same numbers on every device.
struct Several {
  Tensors list;
  Tensors memory;  // all of it, the block as one
};
Several several(uint64_t seed, DType dtype, Device device, int many = 250, bool positive = false) {
  Generator generator(seed);
  const auto make = [&](int64_t size) {
    const Tensor x = randn({size}, dtype, generator);
    return (positive ? square(x) : x).to(device);
  };
  Several result;
  for (int64_t size : {1, 0, 64, 1003, 4096, 4097, 9001}) result.list.push_back(make(size));
  result.memory = result.list;
  const Tensor block = make(131 + 3 * many);
  result.memory.push_back(block);
  result.list.push_back(block.slice(0, 1, 131));
  for (int64_t i = 131; i < block.size(0); i += 3) result.list.push_back(block.slice(0, i, i + 1 + i % 3));
  return result;
}
/// Fewer, of both dtypes.
Tensors some(uint64_t seed, Device device, int many = 3) {
  Tensors list = several(seed, DType::f32, device, many).list;
  for (const Tensor& x : several(seed + 1, DType::f64, device, many).list) list.push_back(x);
  return list;
}

void check_close(const Tensors& there, const Tensors& here, const char* what) {
  REQUIRE(there.size() == here.size());
  for (size_t t = 0; t < here.size(); ++t) {
    const std::vector<double> a = there[t].to(cpu).to_vector<double>(), b = here[t].to_vector<double>();
    const double ulp = here[t].dtype() == DType::f32 ? 0x1p-23 : 0x1p-52;
    INFO(what << ", tensor " << t);
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::abs(a[i] - b[i]) <= 4 * ulp * std::max(1.0, std::abs(b[i]))) continue;
      FAIL("element " << i << ": " << a[i] << " on the GPU, " << b[i] << " on the CPU");
    }
  }
}

/// Runs step(kernels, p, grad, m, v) on both devices and compares what became of all of them.
template <class Step>
void check_step(DType dtype, const Step& step) {
  const auto all = [&](Device device) {
    return std::vector<Several>{several(1, dtype, device), several(2, dtype, device), several(3, dtype, device),
                                several(4, dtype, device, 250, true)};
  };
  const auto lists = [](const std::vector<Several>& of) {
    std::vector<Tensors> result;
    for (const Several& one : of) result.push_back(one.list);
    return result;
  };
  const std::vector<Several> here = all(cpu), there = all(cuda());
  step(kernels(cpu), lists(here));
  step(kernels(cuda()), lists(there));
  const char* names[] = {"parameter", "gradient", "first state", "second state"};
  for (size_t k = 0; k < 4; ++k) check_close(there[k].memory, here[k].memory, names[k]);
}

}  // namespace

TEST_CASE("cuda optimizer: a step of SGD over many parameters is the CPU's") {
  for (DType dtype : {DType::f32, DType::f64})
    for (const SgdStep& o : {SgdStep{0.1, 0, 0, 0, false, false}, SgdStep{0.1, 0, 0, 0.2, false, false},
                             SgdStep{0.1, 0.9, 0.3, 0.2, false, false}, SgdStep{0.1, 0.9, 0, 0, true, false},
                             SgdStep{0.1, 0.9, 0.3, 0.2, false, true}}) {
      INFO(dtype << ", momentum " << o.momentum << ", decay " << o.weight_decay << ", first " << o.first);
      check_step(dtype, [&](const Kernels& k, const std::vector<Tensors>& x) {
        const Tensor none;
        std::vector<SgdTensors> list;
        for (size_t i = 0; i < x[0].size(); ++i) list.push_back({x[0][i], x[1][i], o.momentum != 0 ? x[2][i] : none});
        k.sgd_step(list, o);
      });
    }
}

TEST_CASE("cuda optimizer: a step of Adam over many parameters is the CPU's") {
  for (DType dtype : {DType::f32, DType::f64})
    for (const AdamStep& o : {AdamStep{0.1, 0.9, 0.99, 1e-8, 0, true, 1}, AdamStep{0.1, 0.9, 0.99, 1e-8, 0.1, true, 3},
                              AdamStep{0.1, 0.9, 0.99, 1e-8, 0.1, false, 1000}}) {
      INFO(dtype << ", step " << o.step << ", decay " << o.weight_decay << (o.decoupled ? ", decoupled" : ""));
      check_step(dtype, [&](const Kernels& k, const std::vector<Tensors>& x) {
        std::vector<AdamTensors> list;
        for (size_t i = 0; i < x[0].size(); ++i) list.push_back({x[0][i], x[1][i], x[2][i], x[3][i]});
        k.adam_step(list, o);
      });
    }
}

TEST_CASE("cuda optimizer: a step of Lion over many parameters is the CPU's, and NaN is seen") {
  for (DType dtype : {DType::f32, DType::f64})
    check_step(dtype, [&](const Kernels& k, const std::vector<Tensors>& x) {
      std::vector<LionTensors> list;
      for (size_t i = 0; i < x[0].size(); ++i) list.push_back({x[0][i], x[1][i], x[2][i]});
      k.lion_step(list, {0.01, 0.9, 0.99, 0.1});
    });
  const Tensor p = ones({3}).to(cuda()), m = zeros({3}).to(cuda()),
               grad = from_vector<float>({0, NAN, -2}, {3}).to(cuda());
  const LionTensors one{p, grad, m};
  kernels(p).lion_step({&one, 1}, {1, 0.9, 0.99, 0});
  const std::vector<float> after = p.to(cpu).to_vector<float>();
  CHECK(after[0] == 1);
  CHECK(std::isnan(after[1]));
  CHECK(after[2] == 2);
}

TEST_CASE("cuda optimizer: optimizers step parameters on the GPU as on the CPU, however many steps each has taken") {
  const auto train = [](Device device, const std::string& name) {
    const Tensors parameters = some(5, device, 8);
    for (const Tensor& x : parameters) x.set_requires_grad();
    std::unique_ptr<Optimizer> optimizer;
    if (name == "SGD") optimizer = std::make_unique<SGD>(parameters, SGDOptions{.lr = 0.1, .momentum = 0.9});
    if (name == "AdamW") optimizer = std::make_unique<AdamW>(parameters, AdamWOptions{.lr = 0.1});
    if (name == "Lion") optimizer = std::make_unique<Lion>(parameters, 0.1);
    for (uint64_t step = 0; step < 3; ++step) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (i % 4 == 1 && step == 0) continue;  // comes later
        Generator generator(7 + step);
        parameters[i].set_grad(randn(parameters[i].shape(), parameters[i].dtype(), generator).to(device));
      }
      optimizer->step();
    }
    return parameters;
  };
  for (const char* name : {"SGD", "AdamW", "Lion"}) check_close(train(cuda(), name), train(cpu, name), name);
}

TEST_CASE("cuda optimizer: the sum of squares of a list, in f64 and the same bits every time") {
  const auto list = [](Device device) { return some(1, device, 250); };
  const auto sum = [](const Tensors& of, Device device) {
    Tensors there;
    for (const Tensor& x : of) there.push_back(x.device() == device ? x : x.to(device));
    const Tensor y = empty({}, TensorOptions(DType::f64, device));
    kernels(y).norm_squared(y, there);
    return y.item<double>();
  };
  const double there = sum(list(cuda()), cuda());
  CHECK(there == Approx(sum(list(cpu), cpu)).epsilon(1e-13));
  CHECK(sum(list(cuda()), cuda()) == there);
  CHECK(sum({}, cuda()) == 0);
  CHECK(sum({zeros({0})}, cuda()) == 0);
  CHECK(sum({full({1000}, 1e25F)}, cuda()) == Approx(1e53).epsilon(1e-6));
  CHECK(sum({ones({5}), full({3}, inf)}, cuda()) == inf);
  CHECK(std::isnan(sum({full({5000}, NAN)}, cuda())));
}

TEST_CASE("cuda optimizer: a list of tensors is scaled down where the norm on the device says so") {
  for (DType dtype : {DType::f32, DType::f64})
    for (double norm : {0.5, 3.0, inf, std::nan("")}) {
      const auto limited = [&](Device device) {
        const Several x = several(1, dtype, device);
        kernels(device).limit_norm(x.list, full({}, norm, DType::f64).to(device), 1);
        return x.memory;
      };
      INFO(dtype << ", norm " << norm);
      check_close(limited(cuda()), limited(cpu), "limited");
    }
}

TEST_CASE("cuda optimizer: gradients are clipped on the GPU as on the CPU, with or without waiting for the norm") {
  for (double max_norm : {0.5, inf, 0.0})
    for (bool waits : {true, false}) {
      const auto clipped = [&](Device device) {
        const Tensors parameters = some(1, device), grads = some(3, device);
        for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_requires_grad().set_grad(grads[i]);
        const Tensor norm = waits ? full({}, clip_grad_norm(parameters, max_norm), DType::f64)
                                  : clip_grad_norm_on_device(parameters, max_norm);
        if (!waits) CHECK(norm.device() == device);
        Tensors result{norm.to(cpu) / 100.0};
        for (const Tensor& parameter : parameters) result.push_back(parameter.grad());
        return result;
      };
      INFO("largest norm " << max_norm << (waits ? ", waits" : ""));
      check_close(clipped(cuda()), clipped(cpu), "clipped");
    }
}

TEST_CASE("cuda optimizer: a norm that is not finite leaves gradients on the GPU as they are, or is an error") {
  for (float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Tensors parameters;
    for (int i = 0; i < 3; ++i) parameters.push_back(zeros({2}).to(cuda()).set_requires_grad());
    for (const Tensor& x : parameters) x.set_grad(from_vector<float>({3, 4}).to(cuda()));
    parameters[1].set_grad(from_vector<float>({3, bad}).to(cuda()));
    CHECK_FALSE(std::isfinite(clip_grad_norm(parameters, 1)));
    CHECK_FALSE(std::isfinite(clip_grad_norm_on_device(parameters, 1).item<double>()));
    CHECK_THROWS_WITH(clip_grad_norm(parameters, 1, {.error_if_nonfinite = true}),
                      Contains("parameter 1") && Contains("not finite"));
    CHECK(parameters[0].grad().to_vector<float>() == std::vector<float>{3, 4});
    CHECK(parameters[1].grad().to_vector<float>()[0] == 3);
  }
}

TEST_CASE("cuda optimizer: a norm is where the gradients are, whatever has none") {
  const Tensor none = ones({2}).set_requires_grad(), x = ones({4}, cuda()).set_requires_grad();
  x.set_grad(full({4}, 2.0, cuda()));
  const Tensor norm = clip_grad_norm_on_device({none, x}, 1);
  CHECK(norm.device() == cuda());
  CHECK(norm.item<double>() == 4);
  CHECK(x.grad().to_vector<float>().front() == Approx(0.5).epsilon(1e-5));
}

TEST_CASE("cuda optimizer: gradients on two devices have one norm, but not one that stays on either") {
  const Tensor here = zeros({1}).set_requires_grad(), there = zeros({1}).to(cuda()).set_requires_grad();
  here.set_grad(full({1}, 3.0));
  there.set_grad(full({1}, 4.0).to(cuda()));
  CHECK_THROWS_WITH(clip_grad_norm_on_device({here, there}, 1), Contains("parameter 1 is on cuda") && Contains("cpu"));
  CHECK(clip_grad_norm({here, there}, 1) == 5);
  CHECK(here.grad().item<float>() == Approx(0.6F));
  CHECK(there.grad().item<float>() == Approx(0.8F));
}

}  // namespace cuda_optimizer_test
