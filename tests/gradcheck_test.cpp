// The gradient check itself: it passes what is right, and fails, with the right reason, on each kind of fault.
#include <catch2/catch.hpp>
#include <cmath>

#include <regard/autograd/gradcheck.hpp>
#include <regard/autograd/gradcheck_catch.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace gradcheck_test {

using namespace regard;
using Catch::Contains;

namespace {

Tensor random_input(const Shape& shape, uint64_t seed = 1) {
  Generator generator(seed);
  return randn(shape, DType::f64, generator).set_requires_grad();
}

Tensor point(const std::vector<double>& values) { return from_vector<double>(values).set_requires_grad(); }

// x^3 with a gradient of the test's own.
Tensor cube(const Tensor& x, const std::function<Tensor(const Tensor& x, const Tensor& g)>& gradient) {
  return custom_op(
      "cube", {x}, [](const Tensors& in) { return in[0] * in[0] * in[0]; },
      [gradient](const Tensors& in, const Tensor& g) { return Tensors{gradient(in[0], g)}; });
}

// Identity whose gradient is `error` too large in one element.
Tensor wrong_in_one(const Tensor& x, size_t element, double error) {
  return custom_op(
      "nearly", {x}, [](const Tensors& in) { return in[0] * 1.0; },
      [=](const Tensors&, const Tensor& g) {
        std::vector<double> factors(static_cast<size_t>(g.numel()), 1.0);
        factors[element] += error;
        return Tensors{g * from_vector<double>(factors, g.shape())};
      });
}

const GradcheckOptions fast = {.fast = true};

}  // namespace

TEST_CASE("gradcheck: right gradients pass, in full and fast mode") {
  Tensor a = random_input({2, 3}), b = random_input({3, 4}, 2), c = random_input({4}, 3);
  auto f = [](const Tensors& in) { return tanh(matmul(in[0], in[1]) + in[2]) * exp(in[2]); };
  GradcheckReport report = gradcheck(f, {a, b, c});
  CHECK(report);
  CHECK(report.checked == 8 * (6 + 12 + 4));
  CHECK_THAT(report.to_string(), Contains("gradcheck passed: 176 derivatives are right"));
  CHECK(gradcheck(f, {a, b, c}, fast).checked == 2 * 3);
  CHECK(gradcheck(f, {a, b, c}, fast));
  CHECK(gradgradcheck(f, {a, b, c}));
  CHECK(gradgradcheck(f, {a, b, c}, fast));
  REQUIRE_THAT(f, passes_gradcheck({a, b, c}));
  REQUIRE_THAT(f, passes_gradgradcheck({a, b, c}, {.fast = true}));
  // Only what requires a gradient is checked; integers go along.
  auto select = [](const Tensors& in) { return index_select(in[0], 0, in[1]); };
  CHECK(gradcheck(select, {a, from_vector<int64_t>({1, 1, 0})}).checked == 9 * 6);
  CHECK(gradcheck(f, {a, b.detach(), c}).checked == 8 * (6 + 4));
}

TEST_CASE("gradcheck: several outputs, integer outputs, functions that call grad(), and results that are inputs") {
  Tensor x = random_input({2, 3});
  auto largest = [](const Tensors& in) { return max(in[0], 1); };  // and where it is
  CHECK(gradcheck(largest, {x}));
  CHECK(gradcheck(largest, {x}).checked == 2 * 6);
  auto several = [](const Tensors& in) { return Tensors{in[0], in[0] * 2, sum(in[0]), in[0] + in[0]}; };
  CHECK(gradcheck(several, {x}));
  CHECK(gradcheck(several, {x}, fast));
  CHECK(gradcheck(several, {x}).checked == 19 * 6);
  CHECK(gradcheck([](const Tensors& in) { return split(in[0], 2, 1); }, {x}));
  auto slope = [](const Tensors& in) { return grad(sum(in[0] * in[0] * in[0]), {in[0]}, {.create_graph = true})[0]; };
  CHECK(gradcheck(slope, {x}));
  NoGrad no_grad;  // the check records all the same
  CHECK(gradcheck(slope, {x}));
  CHECK_FALSE(grad_enabled());
}

TEST_CASE("gradcheck: nothing of the caller's changes, not even after an exception") {
  Tensor x = random_input({3});
  Tensor scaled = x * 2;  // an input that has a graph
  x.set_grad(full({3}, 7.0, DType::f64));
  std::vector<double> values = x.to_vector<double>();
  uint32_t version = x.version();
  manual_seed(11);
  randn({5});
  uint64_t offset = default_generator().offset();
  MemoryStats before = memory_stats();

  CHECK(gradcheck([](const Tensors& in) { return in[0] * in[1]; }, {x, scaled}));
  CHECK(gradgradcheck([](const Tensors& in) { return in[0] * in[1]; }, {x, scaled}));
  int calls = 0;
  auto fails = [&](const Tensors& in) {
    manual_seed(99);
    in[0].detach().fill_(3);  // its own copy
    if (++calls == 5) throw std::runtime_error("in the middle");
    return in[0] * rand({3}, DType::f64);
  };
  CHECK_THROWS_WITH(gradcheck(fails, {x}), "in the middle");
  CHECK(x.to_vector<double>() == values);
  CHECK(x.version() == version);
  CHECK(x.grad().to_vector<double>() == std::vector<double>(3, 7.0));
  CHECK(x.is_leaf());
  CHECK(default_generator().seed() == 11);
  CHECK(default_generator().offset() == offset);
  CHECK(memory_stats().live_storages == before.live_storages);
  CHECK(memory_stats().live_nodes == before.live_nodes);
  scaled.sum().backward();  // its graph still stands
  CHECK(x.grad().to_vector<double>() == std::vector<double>(3, 9.0));
}

TEST_CASE("gradcheck: a wrong gradient fails with both values and both errors") {
  auto wrong = [](const Tensors& in) {
    return cube(in[0], [](const Tensor& x, const Tensor& g) { return g * 2 * x * x; });
  };
  GradcheckReport report = gradcheck(wrong, {point({0.5, 1})});
  CHECK_FALSE(report);
  CHECK(report.failed == 2);
  CHECK(report.kinks == 0);
  REQUIRE(report.failures.size() == 2);
  const GradcheckFailure& worst = report.failures[0];
  CHECK(worst.problem == GradcheckProblem::wrong);
  CHECK(worst.input == "input 0");
  CHECK(worst.input_index == std::vector<int64_t>{1});
  CHECK(worst.output_index == std::vector<int64_t>{1});
  CHECK(worst.analytical == Approx(2));
  CHECK(worst.numerical == Approx(3));
  CHECK(worst.absolute_error() == Approx(1));
  CHECK(worst.relative_error() == Approx(1.0 / 3));
  REQUIRE(report.taylor_ratio);
  CHECK(*report.taylor_ratio == Approx(2).epsilon(0.01));
  CHECK_THAT(report.to_string(), Contains("output 0[1] by input 0[1]: wrong gradient: analytical 2, numerical 3") &&
                                     Contains("absolute error 1, relative error 0.3333") && Contains("eps 1e-06"));
  CHECK_FALSE(gradcheck(wrong, {point({0.5, 1})}, fast));
  auto right = [](const Tensors& in) {
    return cube(in[0], [](const Tensor& x, const Tensor& g) { return g * 3 * x * x; });
  };
  CHECK(gradcheck(right, {point({0.5, 1})}));
}

TEST_CASE("gradcheck: a gradient that is undefined, or cut off, fails and says so") {
  auto undefined = [](const Tensors& in) { return cube(in[0], [](const Tensor&, const Tensor&) { return Tensor(); }); };
  auto cut = [](const Tensors& in) { return in[0].detach() * 2; };
  for (const GradcheckOptions& options : {GradcheckOptions{}, fast}) {
    for (const GradcheckReport& report :
         {gradcheck(undefined, {point({1, 2})}, options), gradcheck(cut, {point({1, 2})}, options)}) {
      CHECK_FALSE(report);
      REQUIRE(report.failures.size() == 2);
      CHECK(report.failures[0].problem == GradcheckProblem::undefined);
      CHECK_THAT(report.to_string(), Contains("backward gave no gradient"));
    }
  }
  // Without a gradient where nothing changes: right.
  CHECK(gradcheck([](const Tensors& in) { return in[0] + in[1].detach() * 0; }, {point({1, 2}), point({1, 2})}));
}

TEST_CASE("gradcheck: one wrong derivative in ten thousand is found") {
  Tensor x = random_input({100, 100});
  auto wrong = [](const Tensors& in) { return wrong_in_one(in[0], 4321, 0.5); };
  auto mean_of = [&](const Tensors& in) { return mean(wrong(in)) * 100; };  // one output: the full mode is quick
  GradcheckReport report = gradcheck(mean_of, {x});
  CHECK(report.checked == 10000);
  CHECK(report.failed == 1);
  REQUIRE(report.failures.size() == 1);
  CHECK(report.failures[0].input_index == std::vector<int64_t>{43, 21});
  // Fast mode finds a single one of this size with certainty: 0.25 * 0.5 is more than what is allowed, 0.001.
  int found = 0;
  for (uint64_t seed = 0; seed < 20; ++seed)
    found += gradcheck(wrong, {x}, {.fast = true, .projections = 1, .seed = seed}) ? 0 : 1;
  CHECK(found == 20);
  // And does not cry wolf.
  int false_alarms = 0;
  for (uint64_t seed = 0; seed < 20; ++seed)
    false_alarms += gradcheck([](const Tensors& in) { return exp(in[0]); }, {x}, {.fast = true, .seed = seed}) ? 0 : 1;
  CHECK(false_alarms == 0);
}

TEST_CASE("gradcheck: a wrong element among 10^4 derivatives of a square Jacobian is named") {
  Tensor x = random_input({100});
  GradcheckReport report = gradcheck([](const Tensors& in) { return wrong_in_one(in[0], 37, 1e-2); }, {x});
  CHECK(report.checked == 10000);
  CHECK(report.failed == 1);
  REQUIRE(report.failures.size() == 1);
  CHECK(report.failures[0].input_index == std::vector<int64_t>{37});
  CHECK(report.failures[0].output_index == std::vector<int64_t>{37});
}

TEST_CASE("gradcheck: large Jacobians are taken in blocks") {
  // 4500^2 derivatives are more than are held at once.
  Tensor x = random_input({4500});
  GradcheckReport report = gradcheck([](const Tensors& in) { return wrong_in_one(in[0], 4400, 1); }, {x});
  CHECK(report.checked == 4500 * 4500);
  CHECK(report.failed == 1);
  CHECK(report.failures.at(0).input_index == std::vector<int64_t>{4400});
}

TEST_CASE("gradcheck: an error that a plain sum would hide is found") {
  // The sum of a softmax does not depend on its input: a missing gradient would pass there.
  auto frozen = [](const Tensors& in) {
    return custom_op(
        "softmax", {in[0]}, [](const Tensors& i) { return softmax(i[0], -1); },
        [](const Tensors& i, const Tensor&) { return Tensors{zeros_like(i[0])}; });
  };
  CHECK_FALSE(gradcheck(frozen, {point({0, std::log(3.0)})}));
  CHECK_FALSE(gradcheck(frozen, {point({0, std::log(3.0)})}, fast));
  CHECK(gradcheck([&](const Tensors& in) { return sum(frozen(in)); }, {point({0, std::log(3.0)})}));
}

TEST_CASE("gradcheck: a gradient of a wrong shape, or too few of them, is an error that names the op") {
  auto shape = [](const Tensors& in) {
    return cube(in[0], [](const Tensor&, const Tensor&) { return ones({5}, DType::f64); });
  };
  CHECK_THROWS_WITH(gradcheck(shape, {point({1, 2})}), Contains("cube") && Contains("[5]"));
  auto count = [](const Tensors& in) {
    return custom_op(
        "product", {in[0], in[1]}, [](const Tensors& i) { return i[0] * i[1]; },
        [](const Tensors& i, const Tensor& g) { return Tensors{g * i[1]}; });
  };
  CHECK_THROWS_WITH(gradcheck(count, {point({1, 2}), point({3, 4})}), Contains("product"));
}

TEST_CASE("gradcheck: second derivatives: a wrong one is found, the first being right") {
  // The gradient 3 x^2 with x taken out of the graph: right in value, its own gradient is lost.
  auto detached = [](const Tensors& in) {
    return cube(in[0], [](const Tensor& x, const Tensor& g) { return g * 3 * (x * x).detach(); });
  };
  // The gradient is right, its gradient half of what it should be.
  auto halved = [](const Tensors& in) {
    return cube(in[0], [](const Tensor& x, const Tensor& g) {
      return g * 3 * (x * x).detach() + g * 1.5 * (x * x - (x * x).detach());
    });
  };
  auto right = [](const Tensors& in) {
    return cube(in[0], [](const Tensor& x, const Tensor& g) { return g * 3 * x * x; });
  };
  Tensor x = point({0.5, -1.5});
  CHECK(gradgradcheck(right, {x}));
  for (const GradcheckOptions& options : {GradcheckOptions{}, fast}) {
    CHECK(gradcheck(detached, {x}, options));
    CHECK(gradcheck(halved, {x}, options));
    GradcheckReport lost = gradgradcheck(detached, {x}, options);
    CHECK_FALSE(lost);
    CHECK(lost.failures.at(0).problem == GradcheckProblem::undefined);
    GradcheckReport half = gradgradcheck(halved, {x}, options);
    CHECK_FALSE(half);
    CHECK(half.failures.at(0).problem == GradcheckProblem::wrong);
    CHECK_THAT(half.to_string(), Contains("gradgradcheck failed") && Contains("by input 0"));
  }
  CHECK_THAT(gradgradcheck(halved, {x}).to_string(), Contains("the gradient of input 0[1] by input 0[1]"));
  CHECK_THROWS_WITH(gradgradcheck([](const Tensors& in) { return in[0].detach(); }, {x}),
                    Contains("no output depends"));
}

TEST_CASE("gradcheck: at a kink it says so, and does not blame the gradient") {
  struct Case {
    const char* name;
    std::function<Tensor(const Tensors&)> f;
    Tensor x;
    int64_t kinks;
  };
  const Case cases[] = {
      {"relu at 0", [](const Tensors& in) { return relu(in[0]); }, point({0, 1, -1}), 1},
      {"relu a little beside 0", [](const Tensors& in) { return relu(in[0]); }, point({3e-7, -3e-7}), 2},
      {"abs beside 0", [](const Tensors& in) { return abs(in[0]); }, point({2e-7}), 1},
      {"max at a tie", [](const Tensors& in) { return max(in[0]); }, point({2, 2, 1}), 2},
      {"norm at 0", [](const Tensors& in) { return norm(in[0]); }, point({0, 0}), 0},
      {"clamp at its bound", [](const Tensors& in) { return clamp(in[0], 0.0, 1.0); }, point({1, 0.5}), 1},
  };
  for (const Case& c : cases) {
    INFO(c.name);
    GradcheckReport report = gradcheck(c.f, {c.x});
    CHECK(report.kinks == c.kinks);
    CHECK(report.failed == c.kinks);
    CHECK(static_cast<bool>(report) == (c.kinks == 0));
    if (c.kinks > 0) {
      CHECK(report.failures.at(0).problem == GradcheckProblem::kink);
      CHECK_THAT(report.to_string(), Contains("not differentiable near") && Contains("not a fault of the gradient"));
    }
  }
  GradcheckReport zero = gradcheck(cases[0].f, {cases[0].x});
  CHECK(zero.failures.at(0).analytical == 0);
  CHECK(zero.failures.at(0).numerical == Approx(0.5));
  CHECK(zero.failures.at(0).from_left == Approx(0));
  CHECK(zero.failures.at(0).from_right == Approx(1));
  GradcheckReport projected = gradcheck(cases[0].f, {cases[0].x}, fast);
  CHECK(projected.kinks > 0);
  CHECK(projected.kinks == projected.failed);

  // A wrong gradient stays one, also where the function curves much, and away from a kink.
  auto steep = [](const Tensors& in) {
    return custom_op(
        "steep", {in[0]}, [](const Tensors& i) { return exp(20 * i[0]); },
        [](const Tensors& i, const Tensor& g) { return Tensors{g * 19 * exp(20 * i[0])}; });
  };
  CHECK(gradcheck(steep, {point({0.5})}).kinks == 0);
  CHECK_FALSE(gradcheck(steep, {point({0.5})}));
  auto leaky = [](const Tensors& in) {
    return custom_op(
        "relu", {in[0]}, [](const Tensors& i) { return relu(i[0]); },
        [](const Tensors& i, const Tensor& g) { return Tensors{g * (0.1 + (i[0] > 0).to(DType::f64))}; });
  };
  GradcheckReport wrong = gradcheck(leaky, {point({0, 1, -1})});
  CHECK(wrong.failed == 3);
  CHECK(wrong.kinks == 1);
  CHECK(wrong.failures.at(0).problem == GradcheckProblem::wrong);
}

TEST_CASE("gradcheck: infinities and NaN fail as what they are") {
  GradcheckReport report = gradcheck([](const Tensors& in) { return log(in[0]); }, {point({0, 1})});
  CHECK_FALSE(report);
  CHECK(report.failures.at(0).problem == GradcheckProblem::not_finite);
  // Constant infinities in the output are no harm.
  auto masked = [](const Tensors& in) { return masked_fill(in[0], from_vector<bool>({true, false}), -INFINITY); };
  CHECK(gradcheck(masked, {point({1, 2})}));
  CHECK(gradcheck(masked, {point({1, 2})}, fast));
}

TEST_CASE("gradcheck: wants f64, something to differentiate, and sensible options") {
  auto twice = [](const Tensors& in) { return in[0] * 2; };
  CHECK_THROWS_AS(gradcheck(twice, {ones({2}).set_requires_grad()}), DTypeError);
  CHECK_THROWS_WITH(gradcheck(twice, {ones({2}).set_requires_grad()}), Contains("input 0 is f32") && Contains("to("));
  CHECK_THROWS_AS(gradgradcheck(twice, {ones({2}).set_requires_grad()}), DTypeError);
  CHECK_THROWS_WITH(gradcheck(twice, {ones({2}, DType::f64)}), Contains("requires a gradient"));
  CHECK_THROWS_WITH(gradgradcheck(twice, {ones({2}, DType::f64)}), Contains("requires a gradient"));
  CHECK_THROWS_AS(gradcheck([](const Tensors& in) { return in[0].to(DType::f32); }, {point({1})}), DTypeError);
  CHECK_THROWS_AS(gradcheck([](const Tensors& in) { return in[0] > 0; }, {point({1})}), ValueError);
  CHECK_THROWS_AS(gradcheck([](const Tensors&) { return Tensor(); }, {point({1})}), ValueError);
  CHECK_THROWS_AS(gradcheck(twice, {point({1})}, {.eps = 0}), ValueError);
  CHECK_THROWS_AS(gradcheck(twice, {point({1})}, {.fast = true, .projections = 0}), ValueError);
  CHECK_FALSE(GradcheckReport{});  // nothing was checked
}

TEST_CASE("gradcheck: the exponential at 1 has the accuracy that f64 allows") {
  GradcheckReport tight =
      gradcheck([](const Tensors& in) { return exp(in[0]); }, {point({1})}, {.atol = 0, .rtol = 1e-9});
  CHECK(tight);
  CHECK_FALSE(
      gradcheck([](const Tensors& in) { return exp(in[0]); }, {point({1})}, {.eps = 1e-10, .atol = 0, .rtol = 1e-9}));
}

TEST_CASE("gradcheck: elements that share memory are moved each alone") {
  Tensor v = scalar_tensor(2.0, DType::f64).expand({2}).detach().set_requires_grad();
  REQUIRE(v.strides()[0] == 0);
  Tensor m = from_vector<double>({1, 2, 3, 4}, {2, 2});
  auto f = [&](const Tensors& in) { return sum(matmul(m, in[0])); };
  CHECK(gradcheck(f, {v}));
  CHECK(gradcheck(f, {v}, fast));
  auto first = [&](const Tensors& in) { return grad(sum(matmul(m, in[0])), {in[0]})[0]; };
  CHECK(first({v}).to_vector<double>() == std::vector<double>{4, 6});
}

TEST_CASE("gradcheck: the function sees the strides of its inputs") {
  Tensor x = random_input({4, 3}).detach().t().slice(1, 1, 3).set_requires_grad();  // [3, 2], strides 1 and 3, offset 3
  bool same = true;
  auto f = [&](const Tensors& in) {
    same = same && in[0].strides() == x.strides() && in[0].storage_offset() == x.storage_offset();
    return in[0] * in[0];
  };
  CHECK(gradcheck(f, {x}));
  CHECK(same);
  CHECK(gradcheck([](const Tensors& in) { return in[0] * 2; }, {random_input({0, 3}), random_input({})}).checked == 0);
}

TEST_CASE("gradcheck: a function that is not deterministic is an error that says what to do") {
  Tensor x = random_input({20});
  auto drops = [](const Tensors& in) { return dropout(in[0], 0.2); };
  CHECK_THROWS_AS(gradcheck(drops, {x}), ValueError);
  CHECK_THROWS_WITH(gradcheck(drops, {x}), Contains("not deterministic") && Contains("seed inside"));
  // Few elements: two calls are often alike by chance. It is told from a wrong gradient all the same.
  for (uint64_t seed = 0; seed < 20; ++seed) {
    manual_seed(seed);
    CHECK_THROWS_WITH(gradcheck(drops, {point({1})}), Contains("not deterministic"));
  }
  auto seeded = [](const Tensors& in) {
    manual_seed(3);
    return dropout(in[0], 0.2);
  };
  CHECK(gradcheck(seeded, {x}));
}

TEST_CASE("gradcheck: a gradient that differs between two backward passes fails as such") {
  int calls = 0;
  auto f = [&](const Tensors& in) {
    return cube(in[0], [&](const Tensor& x, const Tensor& g) { return g * 3 * x * x * (1 + 1e-12 * ++calls); });
  };
  GradcheckReport report = gradcheck(f, {point({1, 2})});
  CHECK_FALSE(report);
  CHECK(report.failures.at(0).problem == GradcheckProblem::not_deterministic);
  CHECK_THAT(report.to_string(), Contains("the gradient is not deterministic"));
}

TEST_CASE("gradcheck: a gradient that is wrong only when no other is asked for is found") {
  auto f = [](const Tensors& in) {
    Tensor y = in[0] * in[1];
    std::array<Tensor*, 1> outputs = {&y};
    y = y.detach();
    record_outputs("product", outputs, inputs(in[0], in[1]), saved(in[0], in[1]),
                   [](const Saved& s, std::span<const Tensor> g) {
                     return Grads{s.needs(1) ? g[0] * s[1] : g[0], g[0] * s[0]};
                   });
    return y;
  };
  GradcheckReport report = gradcheck(f, {point({3}), point({2})});
  CHECK_FALSE(report);
  CHECK_THAT(report.to_string(), Contains("input 0") && Contains("alone is asked for"));
}

}  // namespace gradcheck_test
