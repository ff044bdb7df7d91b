// Mixed precision on a GPU: what autocast makes of ops, training with it, and with a gradient scaler.
#include <catch2/catch.hpp>

#include <array>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <regard/autograd/ops/projection.hpp>
#include <regard/regard.hpp>

#include "both_devices.hpp"

namespace autocast_test {

using namespace regard;
using both_devices::check_same;

namespace {

Tensor numbers(const Shape& shape, uint64_t seed) {
  Generator generator(seed);
  return randn(shape, {}, generator);
}
Tensor on_gpu(const Shape& shape, uint64_t seed) { return numbers(shape, seed).to(cuda()); }
/// The same rounded to 16 bits, in f32 on the CPU.
Tensor rounded(const Tensor& x, DType dtype) { return x.to(cpu()).to(dtype).to(DType::f32); }
double unit(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : 0x1p-11; }

constexpr DType halves[] = {DType::bf16, DType::f16};

using Function = std::function<Tensor(const Tensors&)>;

/// f of 16-bit tensors on a GPU, and its gradients, beside those in f32 of the same numbers on the CPU.
void check_in_16_bits(const char* name, const std::vector<Shape>& shapes, const Function& f) {
  for (DType dtype : halves) {
    CAPTURE(name, dtype);
    Tensors here, there;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Tensor x = numbers(shapes[i], 10 + i) * 0.5;
      there.push_back(x.to(cuda()).to(dtype).set_requires_grad());
      here.push_back(rounded(x, dtype).set_requires_grad());
    }
    const Tensor y = f(there), expected = f(here);
    REQUIRE(y.dtype() == dtype);
    const Tensor g = numbers(y.shape(), 30);
    y.backward(g.to(cuda()).to(dtype));
    expected.backward(rounded(g, dtype));
    const double tolerance = 16 * unit(dtype);
    CHECK(allclose(y.to(cpu()).to(DType::f32), expected, tolerance, tolerance));
    for (size_t i = 0; i < here.size(); ++i) {
      CAPTURE(i);
      REQUIRE(there[i].grad().defined());
      CHECK(there[i].grad().dtype() == dtype);
      CHECK(allclose(there[i].grad().to(cpu()).to(DType::f32), here[i].grad(), tolerance, 2 * tolerance));
    }
  }
}

}  // namespace

// ---- 16-bit tensors, without autocast

TEST_CASE("cuda 16 bits: products and their gradients") {
  check_in_16_bits("matmul", {{5, 7}, {7, 3}}, [](const Tensors& x) { return matmul(x[0], x[1]); });
  check_in_16_bits("matmul, batches", {{2, 5, 7}, {2, 7, 3}}, [](const Tensors& x) { return matmul(x[0], x[1]); });
  check_in_16_bits("matmul, one for all", {{2, 5, 7}, {7, 3}}, [](const Tensors& x) { return matmul(x[0], x[1]); });
  check_in_16_bits("matmul, vectors", {{7}, {7}}, [](const Tensors& x) { return matmul(x[0], x[1]); });
  check_in_16_bits("linear", {{2, 4, 6}, {5, 6}, {5}}, [](const Tensors& x) { return linear(x[0], x[1], x[2]); });
  check_in_16_bits("feed_forward", {{3, 6}, {8, 6}, {8}, {6, 8}, {6}, {3, 6}}, [](const Tensors& x) {
    return feed_forward(x[0], x[1], x[2], x[3], x[4], Activation::gelu_tanh, x[5]);
  });
  check_in_16_bits("project_heads", {{2, 3, 8}, {8, 8}, {4, 8}, {8}, {4}}, [](const Tensors& x) {
    const detail::Projection query{x[1], x[3]}, key{x[2], x[4]};
    REQUIRE(detail::can_project(x[0], query, 4));
    const auto [q, k] = detail::project_heads<2>(x[0], {query, key}, 4);  // [2, 2, 3, 4], [2, 1, 3, 4]
    return detail::merge_heads(q) + detail::merge_heads(cat({k, k}, 1));
  });
  check_in_16_bits("attention", {{2, 2, 4, 8}, {2, 2, 5, 8}, {2, 2, 5, 8}},
                   [](const Tensors& x) { return scaled_dot_product_attention(x[0], x[1], x[2], {.causal = true}); });
}

TEST_CASE("cuda 16 bits: beside f32 they are an error that says to()") {
  const Tensor x = on_gpu({3, 3}, 1), y = x.to(DType::bf16);
  CHECK_THROWS_AS(x + y, DTypeError);
  CHECK_THROWS_AS(matmul(x, y), DTypeError);
  CHECK_THROWS_AS(linear(y, x), DTypeError);
}

TEST_CASE("cuda 16 bits: the mean of many losses is within the range of f16") {
  const int64_t rows = 3000;
  const Tensor targets = zeros({rows}, DType::i64).to(cuda());
  for (DType dtype : halves) {
    const Tensor x = full({rows, 2}, -32.0, cuda()).to(dtype).set_requires_grad();
    const Tensor loss = nll_loss(x, targets);
    CHECK(loss.dtype() == DType::f32);
    CHECK(loss.item<float>() == Approx(32));
    loss.backward();
    CHECK(x.grad().dtype() == dtype);
    CHECK(x.grad().to(DType::f32).sum().item<float>() == Approx(-1).epsilon(0x1p-7));
  }
}

// ---- What a scope makes of ops

TEST_CASE("cuda autocast: an op of the program's own computes in what it is given, forward and backward") {
  const Tensor x = on_gpu({3, 4}, 1), w = on_gpu({4, 4}, 2);
  const auto product = [](const Tensor& a, const Tensor& b) {
    return custom_op(
        "product", {a, b}, [](const Tensors& in) { return matmul(in[0], in[1]); },
        [](const Tensors& in, const Tensor& g) {
          return Tensors{matmul(g, in[1].t()), matmul(in[0].t(), g)};
        });
  };
  for (DType dtype : halves)
    for (bool half : {false, true}) {
      CAPTURE(dtype, half);
      const Tensor a = half ? x.to(dtype) : x.clone(), b = w.clone();
      a.set_requires_grad(), b.set_requires_grad();
      Tensor y;
      {
        const AutocastScope scope(dtype);
        y = product(a, b);
      }
      y.sum().backward();
      const MatmulPrecisionScope as_there(dtype == DType::bf16 ? MatmulPrecision::bf16 : MatmulPrecision::f32);
      CHECK(y.dtype() == DType::f32);
      CHECK(equal(y, matmul(a.to(DType::f32), b)));
      CHECK(a.grad().dtype() == a.dtype());
      CHECK(equal(b.grad(), matmul(a.detach().to(DType::f32).t(), ones_like(y))));
    }
}

TEST_CASE("cuda autocast: products and attention are in the scope's dtype") {
  const Tensor x = on_gpu({2, 4, 8}, 1), w = on_gpu({8, 8}, 2), b = on_gpu({8}, 3), q = on_gpu({2, 2, 4, 8}, 4);
  const Tensor mask = on_gpu({4, 4}, 5);
  for (DType dtype : halves) {
    CAPTURE(dtype);
    const auto cast = [&](const Tensor& t) { return t.to(dtype); };
    const Tensor product = matmul(cast(x), cast(w)), projected = linear(cast(x), cast(w), cast(b));
    const Tensor network = feed_forward(cast(x), cast(w), cast(b), cast(w), cast(b), Activation::relu);
    const Tensor attended = scaled_dot_product_attention(cast(q), cast(q), cast(q), {.mask = cast(mask)});
    const auto same = [&](const Tensor& got, const Tensor& expected) {
      CHECK(got.dtype() == dtype);
      CHECK(equal(got, expected));
    };
    const AutocastScope scope(dtype);
    same(matmul(x, w), product);
    same(matmul(cast(x), w), product);
    same(linear(x, w, b), projected);
    same(linear(x, cast(w), b), projected);
    same(feed_forward(x, w, b, w, b, Activation::relu), network);
    same(scaled_dot_product_attention(q, q, q, {.mask = mask}), attended);
    const auto [output, weights] = scaled_dot_product_attention_with_weights(q, q, q, {.mask = mask});
    same(output, attended);
    CHECK(weights.dtype() == dtype);
    // What is added to keeps its digits.
    const Tensor sum = feed_forward(x, w, b, w, b, Activation::relu, x);
    CHECK(sum.dtype() == DType::f32);
    CHECK(equal(sum, x + network));
    CHECK(feed_forward(cast(x), w, b, w, b, Activation::relu, cast(x)).dtype() == dtype);

    REQUIRE(detail::can_project(x, {w, b}, 4));
    const auto heads = detail::project_heads<1>(x, {detail::Projection{w, b}}, 4)[0];
    CHECK(heads.dtype() == dtype);
    // A product of another shape, whose sums may be in another order.
    CHECK(allclose(detail::merge_heads(heads).to(DType::f32), projected.to(DType::f32), 2 * unit(dtype), unit(dtype)));
    {
      const AutocastScope off(std::nullopt);
      CHECK(matmul(x, w).dtype() == DType::f32);
      CHECK(equal(matmul(x, w), matmul(x.to(cuda()), w)));
      CHECK_THROWS_AS(x + cast(x), DTypeError);
    }
    // The other 16-bit dtype is brought to it too; f64 is left alone.
    const DType other = dtype == DType::bf16 ? DType::f16 : DType::bf16;
    CHECK(matmul(x.to(other), w).dtype() == dtype);
    CHECK(matmul(x.to(DType::f64), w.to(DType::f64)).dtype() == DType::f64);
    CHECK_THROWS_AS(matmul(x.to(DType::f64), w), DTypeError);
  }
  CHECK(matmul(x, w).dtype() == DType::f32);
}

TEST_CASE("cuda autocast: norms, losses, sums and the like are in f32") {
  const Tensor wide = on_gpu({3, 4}, 1).abs() + 0.5, weight = on_gpu({4}, 2), target = on_gpu({3, 4}, 3);
  const Tensor classes = from_vector<int64_t>({0, 3, 1}).to(cuda());
  const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> functions = {
      {"layer_norm", [&](const Tensor& x) { return layer_norm(x, {4}, weight, weight); }},
      {"rms_norm", [&](const Tensor& x) { return rms_norm(x, {4}, weight); }},
      {"softmax", [](const Tensor& x) { return softmax(x, 1); }},
      {"log_softmax", [](const Tensor& x) { return log_softmax(x, 1); }},
      {"logsumexp", [](const Tensor& x) { return logsumexp(x, 1); }},
      {"cross_entropy", [&](const Tensor& x) { return cross_entropy(x, classes); }},
      {"weighted cross_entropy", [&](const Tensor& x) { return cross_entropy(x, classes, {.weight = abs(weight)}); }},
      {"nll_loss", [&](const Tensor& x) { return nll_loss(x, classes, {.weight = abs(weight)}); }},
      {"mse_loss", [&](const Tensor& x) { return mse_loss(x, target); }},
      {"binary_cross_entropy_with_logits",
       [&](const Tensor& x) { return binary_cross_entropy_with_logits(x, sigmoid(target), {.weight = weight}); }},
      {"kl_div", [&](const Tensor& x) { return kl_div(x, sigmoid(target)); }},
      {"sum", [](const Tensor& x) { return sum(x, 0); }},
      {"mean", [](const Tensor& x) { return mean(x); }},
      {"var", [](const Tensor& x) { return var(x, 1); }},
      {"norm", [](const Tensor& x) { return norm(x); }},
      {"exp", [](const Tensor& x) { return exp(x); }},
      {"log", [](const Tensor& x) { return log(x); }},
      {"rsqrt", [](const Tensor& x) { return rsqrt(x); }},
      {"reciprocal", [](const Tensor& x) { return reciprocal(x); }},
      {"number / tensor", [](const Tensor& x) { return 2 / x; }},
      {"pow", [&](const Tensor& x) { return pow(x, target); }},
      {"pow of a number", [](const Tensor& x) { return pow(x, 1.5); }},
      {"number to a power", [](const Tensor& x) { return pow(2, x); }},
  };
  for (DType dtype : halves)
    for (const auto& [name, f] : functions) {
      CAPTURE(dtype, name);
      const Tensor x = wide.to(dtype).set_requires_grad(), same = x.detach().to(DType::f32).set_requires_grad();
      const Tensor expected = f(same);
      expected.sum().backward();
      Tensor y;
      {
        const AutocastScope scope(dtype);
        y = f(x);
        CHECK(y.dtype() == DType::f32);
        CHECK(allclose(y, expected, 1e-5, 1e-6));
      }
      y.sum().backward();
      CHECK(x.grad().dtype() == dtype);
      CHECK(allclose(x.grad().to(DType::f32), same.grad(), unit(dtype), 1e-4));
    }
}

TEST_CASE("cuda autocast: 16 bits beside f32 give f32") {
  const Tensor x = on_gpu({3, 4}, 1), y = on_gpu({3, 4}, 2), condition = x > y;
  const Tensor index = from_vector<int64_t>({2, 0, 1}).to(cuda());
  const std::vector<std::function<Tensor(const Tensor&, const Tensor&)>> functions = {
      [](const Tensor& a, const Tensor& b) { return a + b; },
      [](const Tensor& a, const Tensor& b) { return a - b; },
      [](const Tensor& a, const Tensor& b) { return a * b; },
      [](const Tensor& a, const Tensor& b) { return a / b; },
      [](const Tensor& a, const Tensor& b) { return maximum(a, b); },
      [](const Tensor& a, const Tensor& b) { return minimum(a, b); },
      [&](const Tensor& a, const Tensor& b) { return where(condition, a, b); },
      [](const Tensor& a, const Tensor& b) {
        return cat({a, b}, 0);
      },
      [](const Tensor& a, const Tensor& b) {
        return stack({a, b}, 1);
      },
      [&](const Tensor& a, const Tensor& b) { return index_add(a, 0, index, b); },
      [&](const Tensor& a, const Tensor& b) {
        return scatter_add(a, 0, index.view({3, 1}).expand({3, 4}), b);
      },
  };
  for (size_t i = 0; i < functions.size(); ++i)
    for (bool first : {true, false}) {
      CAPTURE(i, first);
      const Tensor a = x.clone().to(first ? DType::bf16 : DType::f32).set_requires_grad();
      const Tensor b = y.clone().to(first ? DType::f32 : DType::bf16).set_requires_grad();
      const Tensor wide_a = a.detach().to(DType::f32).clone().set_requires_grad();
      const Tensor wide_b = b.detach().to(DType::f32).clone().set_requires_grad();
      CHECK_THROWS_AS(functions[i](a, b), DTypeError);
      const Tensor expected = functions[i](wide_a, wide_b);
      expected.sum().backward();
      Tensor z;
      {
        const AutocastScope scope(DType::bf16);
        z = functions[i](a, b);
      }
      CHECK(equal(z, expected));
      z.sum().backward();
      CHECK(equal(a.grad(), wide_a.grad().to(a.dtype())));
      CHECK(equal(b.grad(), wide_b.grad().to(b.dtype())));
    }
  const AutocastScope scope(DType::bf16);
  CHECK(equal(x > y.to(DType::bf16), x > y.to(DType::bf16).to(DType::f32)));
  CHECK((x.to(DType::bf16) + y.to(DType::bf16)).dtype() == DType::bf16);
  CHECK(gelu(x.to(DType::bf16)).dtype() == DType::bf16);
  CHECK_THROWS_AS(x.to(DType::f64) + x.to(DType::bf16), DTypeError);
}

// ---- Weights

TEST_CASE("cuda autocast: a weight is converted once, and gets both gradients") {
  const Tensor w = on_gpu({4, 4}, 1).set_requires_grad(), x = on_gpu({3, 4}, 2);
  const Tensor expected = [&] {
    const Tensor v = w.detach().to(DType::bf16).set_requires_grad(), in = x.to(DType::bf16);
    linear(linear(in, v), v).to(DType::f32).sum().backward();
    return v.grad().to(DType::f32);
  }();
  const auto conversions = [](const auto& work) {
    Profiler profiler;
    work();
    profiler.stop();
    int64_t count = 0;
    for (const auto& row : profiler.by_op())
      if (row.name == "to") count += row.calls;
    return count;
  };
  Tensor loss;
  const int64_t count = conversions([&] {
    const AutocastScope scope(DType::bf16);
    loss = linear(linear(x, w), w).sum();
  });
  CHECK(count == 3);  // x, w, and the sum's operand
  loss.backward();
  CHECK(w.grad().dtype() == DType::f32);
  CHECK(allclose(w.grad(), expected, 0x1p-7, 0x1p-6));

  // Two graphs of one scope, each with its backward(); and a backward() inside of the scope.
  w.zero_grad();
  {
    const AutocastScope scope(DType::bf16);
    const Tensor one = linear(x, w).sum(), other = linear(x, w).sum();
    one.backward();
    const Tensor first = w.grad().clone();
    other.backward();
    CHECK(equal(w.grad(), first * 2));
    linear(x, w).sum().backward();
    CHECK(equal(w.grad(), first * 3));
  }
  // What was converted under NoGrad has no gradient, and is not taken for one that has.
  w.zero_grad();
  {
    const AutocastScope scope(DType::bf16);
    {
      const NoGrad no_grad;
      linear(x, w);
    }
    linear(x, w).sum().backward();
  }
  CHECK(w.grad().defined());
  // Written to, it is converted anew.
  const AutocastScope scope(DType::bf16);
  const Tensor before = linear(x, w);
  {
    const NoGrad no_grad;
    w.mul_(2);
  }
  CHECK(equal(linear(x, w), before * 2));
}

TEST_CASE("cuda autocast: a block that is computed again in backward gives the same gradients") {
  manual_seed(1);
  layers::TransformerEncoderLayer block(16, 2, {.hidden = 32, .dropout = 0});
  block.to(cuda());
  const Tensor x = on_gpu({2, 4, 16}, 4);
  for (bool inside : {false, true}) {
    const auto gradients = [&](bool again) {
      for (const Tensor& p : block.parameters()) p.zero_grad();
      Tensor loss;
      {
        const AutocastScope scope(DType::bf16);
        loss = square(again ? checkpoint(block, x) : block(x)).mean();
        if (inside) loss.backward();
      }
      if (!inside) loss.backward();
      Tensors all;
      for (const Tensor& p : block.parameters()) all.push_back(p.grad());
      return all;
    };
    const Tensors kept = gradients(false), computed_again = gradients(true);
    for (size_t i = 0; i < kept.size(); ++i) {
      CHECK(kept[i].dtype() == DType::f32);
      CHECK(equal(kept[i], computed_again[i]));
    }
  }
}

// ---- Training

namespace {

struct Trained {
  std::vector<double> losses;
  bool f32 = true;  // weights, gradients and the optimizer's state
};

Trained train(std::optional<DType> dtype, layers::PositionKind positions, int steps) {
  manual_seed(3);
  layers::GPT model(
      {.vocabulary = 11, .context = 8, .width = 16, .heads = 2, .layers = 2, .dropout = 0.1, .positions = positions});
  model.to(cuda());
  optim::AdamW optimizer(model.parameters(), {.lr = 0.01});
  optim::GradScaler scaler({.enabled = dtype == DType::f16});
  Trained result;
  for (int step = 0; step < steps; ++step) {
    Generator same(4);
    const Tensor ids = randint(0, 11, {4, 8}, DType::i64, same).to(cuda());
    manual_seed(100 + static_cast<uint64_t>(step));  // dropout's
    optimizer.zero_grad();
    Tensor loss;
    {
      const AutocastScope scope(dtype);
      loss = model.loss(ids, flip(ids, {1}));
    }
    CHECK(loss.dtype() == DType::f32);
    scaler.scale(loss).backward();
    scaler.unscale(optimizer);
    optim::clip_grad_norm_on_device(model.parameters(), 1.0);
    CHECK(scaler.step(optimizer));
    scaler.update();
    result.losses.push_back(loss.item<double>());
  }
  for (const Tensor& p : model.parameters())
    result.f32 = result.f32 && p.dtype() == DType::f32 && p.grad().dtype() == DType::f32;
  for (const auto& [name, state] : optimizer.state_dict())
    if (name.ends_with("exp_avg")) result.f32 = result.f32 && state.dtype() == DType::f32;
  return result;
}

}  // namespace

TEST_CASE("cuda autocast: a GPT learns in bf16 and f16 as in f32, with f32 weights") {
  for (layers::PositionKind positions : {layers::PositionKind::learned, layers::PositionKind::rotary}) {
    const Trained exact = train(std::nullopt, positions, 6);
    CHECK(exact.losses.back() < exact.losses.front());
    for (DType dtype : halves) {
      CAPTURE(dtype);
      const Trained got = train(dtype, positions, 6);
      CHECK(got.f32);
      for (size_t i = 0; i < got.losses.size(); ++i)
        CHECK(got.losses[i] == Approx(exact.losses[i]).epsilon(4 * unit(dtype)));
      CHECK(got.losses != exact.losses);  // it did compute in 16 bits
      CHECK(got.losses == train(dtype, positions, 6).losses);
    }
  }
}

TEST_CASE("cuda grad scaler: an overflow in f16 leaves the step out and halves the scale") {
  const Tensor w = on_gpu({4, 4}, 1).set_requires_grad(), x = on_gpu({3, 4}, 2);
  optim::AdamW optimizer({w}, {.lr = 0.01});
  optim::GradScaler scaler({.init_scale = 0x1p20});
  const std::vector<float> before = w.to_vector<float>();
  bool stepped = false;
  double scale = scaler.current_scale();
  for (int step = 0; step < 10 && !stepped; ++step) {
    optimizer.zero_grad();
    Tensor loss;
    {
      const AutocastScope scope(DType::f16);
      loss = linear(x, w).sum();
    }
    scaler.scale(loss).backward();  // 2^20 and its like are infinite in f16
    stepped = scaler.step(optimizer);
    scaler.update();
    if (stepped) break;
    CHECK(w.to_vector<float>() == before);
    CHECK(scaler.current_scale() == scale / 2);
    scale = scaler.current_scale();
  }
  CHECK(stepped);
  CHECK(scale < 0x1p17);
  CHECK(w.to_vector<float>() != before);
}

}  // namespace autocast_test
