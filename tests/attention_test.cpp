// scaled_dot_product_attention: masks, empty rows, causal order, scale, dropout; values and gradients.
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/attention.hpp>

namespace attention_test {

using namespace regard;
using Catch::Matchers::Contains;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

/// A tensor of zeros and ones as a boolean mask.
Tensor booleans(const std::vector<int64_t>& values, const Shape& shape) {
  return from_vector<int64_t>(values, shape).to(DType::boolean);
}
Tensor numbers(const std::vector<double>& values, const Shape& shape, DType dtype = DType::f64) {
  return from_vector<double>(values, shape).to(dtype);
}
bool near(const Tensor& a, const Tensor& b, double tolerance = 1e-12) { return allclose(a, b, tolerance, tolerance); }

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

struct Result {
  Tensor output, weights, dq, dk, dv;
};

/// Output, weights and the gradients of sum(g * output), computed an element at a time. `allowed` holds 0 and 1,
/// `added` is put on the scores; both [N, H, L, S].
Result naive_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& allowed,
                       const Tensor& added, const Tensor& grad) {
  int64_t n = query.size(0) * query.size(1), l = query.size(2), d = query.size(3), s = key.size(2), e = value.size(3);
  auto q = query.to_vector<double>(), k = key.to_vector<double>(), v = value.to_vector<double>();
  auto may = allowed.to_vector<double>(), add = added.to_vector<double>(), g = grad.to_vector<double>();
  double scale = 1 / std::sqrt(static_cast<double>(d));
  auto at = [](int64_t i) { return static_cast<size_t>(i); };
  std::vector<double> out(at(n * l * e)), weights(at(n * l * s)), dq(q.size()), dk(k.size()), dv(v.size());
  for (int64_t b = 0; b < n; ++b)
    for (int64_t i = 0; i < l; ++i) {
      double total = 0;
      std::vector<double> w(at(s)), dw(at(s));
      for (int64_t j = 0; j < s; ++j) {
        double score = add[at((b * l + i) * s + j)];
        for (int64_t c = 0; c < d; ++c) score += scale * q[at((b * l + i) * d + c)] * k[at((b * s + j) * d + c)];
        w[at(j)] = may[at((b * l + i) * s + j)] != 0 ? std::exp(score) : 0;
        total += w[at(j)];
      }
      double inner = 0;
      for (int64_t j = 0; j < s; ++j) {
        if (total > 0) w[at(j)] /= total;
        weights[at((b * l + i) * s + j)] = w[at(j)];
        for (int64_t c = 0; c < e; ++c) {
          out[at((b * l + i) * e + c)] += w[at(j)] * v[at((b * s + j) * e + c)];
          dv[at((b * s + j) * e + c)] += w[at(j)] * g[at((b * l + i) * e + c)];
          dw[at(j)] += g[at((b * l + i) * e + c)] * v[at((b * s + j) * e + c)];
        }
        inner += dw[at(j)] * w[at(j)];
      }
      for (int64_t j = 0; j < s; ++j)
        for (int64_t c = 0; c < d; ++c) {
          double ds = scale * w[at(j)] * (dw[at(j)] - inner);
          dq[at((b * l + i) * d + c)] += ds * k[at((b * s + j) * d + c)];
          dk[at((b * s + j) * d + c)] += ds * q[at((b * l + i) * d + c)];
        }
    }
  Shape weights_shape = allowed.shape();
  return {from_vector<double>(out, grad.shape()), from_vector<double>(weights, weights_shape),
          from_vector<double>(dq, query.shape()), from_vector<double>(dk, key.shape()),
          from_vector<double>(dv, value.shape())};
}

Result run_attention(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionOptions& options,
                     const Tensor& grad) {
  Tensor q = query.detach().set_requires_grad(), k = key.detach().set_requires_grad();
  Tensor v = value.detach().set_requires_grad();
  auto [output, weights] = scaled_dot_product_attention_with_weights(q, k, v, options);
  output.backward(grad);
  return {output.detach(), weights.detach(), q.grad(), k.grad(), v.grad()};
}

/// One query of width 1 over two keys, scale 1: scores are query * keys.
struct Small {
  Tensor q = numbers({1}, {1, 1}), k = numbers({0, std::log(3.0)}, {2, 1}), v = numbers({1, 2}, {2, 1});
  Result operator()(const AttentionOptions& options) const {
    return run_attention(q, k, v, options, ones({1, 1}, DType::f64));
  }
};

/// The warnings that were given while one of these lives.
struct Warnings {
  std::vector<std::string> texts;
  WarningHandler former = set_warning_handler([this](const std::string& text) { texts.push_back(text); });
  Warnings() = default;
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  ~Warnings() { set_warning_handler(former); }
};

}  // namespace

TEST_CASE("attention over two keys: value and gradients") {
  Result r = Small()({});
  double log3 = std::log(3.0);
  CHECK(near(r.weights, numbers({.25, .75}, {1, 2})));
  CHECK(near(r.output, numbers({1.75}, {1, 1})));
  CHECK(near(r.dq, numbers({.1875 * log3}, {1, 1})));
  CHECK(near(r.dk, numbers({-.1875, .1875}, {2, 1})));
  CHECK(near(r.dv, numbers({.25, .75}, {2, 1})));
}

TEST_CASE("attention with every key blocked gives zeros and zero gradients, however it is blocked") {
  std::vector<AttentionOptions> all_blocked{
      {.mask = booleans({0, 0}, {1, 2})},     {.mask = from_vector<int64_t>({0, 0}, {1, 2})},
      {.mask = booleans({0}, {1, 1, 1, 1})},  {.mask = numbers({-inf, -inf}, {1, 2})},
      {.key_mask = booleans({0, 0}, {1, 2})}, {.mask = booleans({1, 0}, {1, 2}), .key_mask = booleans({0, 1}, {1, 2})}};
  for (const AttentionOptions& options : all_blocked) {
    Result r = Small()(options);
    CHECK(equal(r.output, zeros({1, 1}, DType::f64)));
    CHECK(equal(r.weights, zeros({1, 2}, DType::f64)));
    CHECK(equal(r.dq, zeros({1, 1}, DType::f64)));
    CHECK(equal(r.dk, zeros({2, 1}, DType::f64)));
    CHECK(equal(r.dv, zeros({2, 1}, DType::f64)));
  }
}

TEST_CASE("attention with one key blocked: the other has all the weight; true and non-zero may attend") {
  for (const AttentionOptions& options :
       {AttentionOptions{.mask = booleans({1, 0}, {1, 2})},
        AttentionOptions{.mask = from_vector<int64_t>({7, 0}, {1, 2})},
        AttentionOptions{.mask = numbers({0, -inf}, {1, 2})}, AttentionOptions{.key_mask = booleans({1, 0}, {1, 2})},
        AttentionOptions{.key_mask = from_vector<int64_t>({-1, 0}, {1, 2})}}) {
    Result r = Small()(options);
    CHECK(equal(r.weights, numbers({1, 0}, {1, 2})));
    CHECK(equal(r.output, numbers({1}, {1, 1})));
    CHECK(equal(r.dv, numbers({1, 0}, {2, 1})));
    CHECK(equal(r.dk, zeros({2, 1}, DType::f64)));
  }
}

TEST_CASE("a float mask is added; one of only 0 and 1 draws one warning") {
  detail::allow_float_mask_warning();
  Warnings warnings;
  Tensor q = zeros({1, 1}), k = zeros({2, 1}), v = numbers({1, 0}, {2, 1}, DType::f32);
  auto weights = [&](const Tensor& mask) {
    return scaled_dot_product_attention_with_weights(q, k, v, {.mask = mask}).second;
  };
  weights(zeros({1, 2}));
  weights(ones({1, 2}));
  weights(numbers({0, -3}, {1, 2}, DType::f32));
  CHECK(warnings.texts.empty());
  for (int i = 0; i < 2; ++i)
    CHECK(near(weights(numbers({1, 0}, {1, 2}, DType::f32)), numbers({.731059, .268941}, {1, 2}, DType::f32), 1e-6));
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], Contains("float mask is added") && Contains("to(DType::boolean)"));
}

TEST_CASE("a float mask that needs a gradient gets the scores'; none where it is -inf") {
  Tensor mask = numbers({0.5, -inf, 0.25}, {1, 3}).set_requires_grad();
  Tensor q = zeros({1, 1}, DType::f64), k = zeros({3, 1}, DType::f64), v = numbers({1, 5, 2}, {3, 1});
  scaled_dot_product_attention(q, k, v, {.mask = mask}).sum().backward();
  double w = 1 / (1 + std::exp(-0.25)), output = w + 2 * (1 - w);
  CHECK(near(mask.grad(), numbers({w * (1 - output), 0, (1 - w) * (2 - output)}, {1, 3})));
}

TEST_CASE("causal attention sees keys up to i + S - L: the last query sees all") {
  auto pattern = [](int64_t queries, int64_t keys) {
    Tensor q = zeros({queries, 1}, DType::f64), k = zeros({keys, 1}, DType::f64), v = ones({keys, 1}, DType::f64);
    return scaled_dot_product_attention_with_weights(q, k, v, {.causal = true});
  };
  CHECK(near(pattern(2, 5).second, numbers({.25, .25, .25, .25, 0, .2, .2, .2, .2, .2}, {2, 5})));
  CHECK(near(pattern(3, 3).second, numbers({1, 0, 0, .5, .5, 0, 1 / 3., 1 / 3., 1 / 3.}, {3, 3})));
  CHECK(near(pattern(1, 4).second, numbers({.25, .25, .25, .25}, {1, 4})));
  auto [output, weights] = pattern(5, 2);
  CHECK(equal(weights, numbers({0, 0, 0, 0, 0, 0, 1, 0, .5, .5}, {5, 2})));
  CHECK(equal(output, numbers({0, 0, 0, 1, 1}, {5, 1})));
}

TEST_CASE("blocked scores of any size get weight 0 exactly, in f32 too") {
  Tensor q = ones({1, 1}), k = numbers({3, 5}, {2, 1}, DType::f32), v = ones({2, 1});
  CHECK(equal(scaled_dot_product_attention_with_weights(q, k, v, {.mask = booleans({0, 0}, {1, 2})}).second,
              zeros({1, 2})));
  Tensor replaced = numbers({0, -1e9}, {1, 2}, DType::f32);
  CHECK(equal(scaled_dot_product_attention_with_weights(q, k, v, {.mask = replaced}).second,
              numbers({1, 0}, {1, 2}, DType::f32)));
}

TEST_CASE("the default scale is the square root of the head's width, not of the model's") {
  Tensor q = ones({1, 2, 1, 4}, DType::f64);
  Tensor k = cat({ones({1, 2, 1, 4}, DType::f64), zeros({1, 2, 1, 4}, DType::f64)}, 2);
  Tensor weights = scaled_dot_product_attention_with_weights(q, k, k).second;
  CHECK(near(weights, numbers({.880797, .119203, .880797, .119203}, {1, 2, 1, 2}), 1e-6));
  weights = scaled_dot_product_attention_with_weights(q, k, k, {.scale = 1 / std::sqrt(8.0)}).second;
  CHECK(near(weights, numbers({.804430, .195570, .804430, .195570}, {1, 2, 1, 2}), 1e-6));
}

TEST_CASE("masks, key masks and causal order combine: equal to an element at a time, gradients too") {
  Generator generator(23);
  auto random = [&](const Shape& shape) { return randn(shape, DType::f64, generator); };
  auto random_mask = [&](const Shape& shape) { return rand(shape, {}, generator) < 0.6; };
  constexpr int64_t batch = 2, heads = 3, width = 4, value_width = 5;
  for (auto [queries, keys] : {std::pair<int64_t, int64_t>{3, 5}, {4, 4}, {6, 3}, {1, 4}}) {
    Tensor q = random({batch, heads, queries, width}), k = random({batch, heads, keys, width});
    Tensor v = random({batch, keys, heads, value_width}).transpose(1, 2),
           g = random({batch, heads, queries, value_width});
    Shape full{batch, heads, queries, keys};
    Tensor float_mask = random({queries, keys}).masked_fill(random_mask({queries, keys}), -inf);
    Tensors masks{{},
                  random_mask({queries, keys}),
                  random_mask({queries, keys}).to(DType::i64) * 3,
                  random_mask({batch, 1, 1, keys}),
                  random_mask({1, heads, queries, keys}),
                  random_mask({batch, 1, queries, 1}),
                  float_mask,
                  random({batch, heads, 1, keys})};
    for (const Tensor& mask : masks)
      for (const Tensor& key_mask : {Tensor(), random_mask({batch, keys})})
        for (bool causal : {false, true}) {
          Tensor allowed = ones(full, DType::boolean), added = zeros(full, DType::f64);
          if (mask.defined() && is_floating(mask.dtype())) {
            allowed = logical_and(allowed, mask != -inf);
            added = added + mask.masked_fill(mask == -inf, 0);
          } else if (mask.defined()) {
            allowed = logical_and(allowed, mask != 0);
          }
          if (key_mask.defined()) allowed = logical_and(allowed, key_mask.view({batch, 1, 1, keys}));
          if (causal) allowed = logical_and(allowed, ones({queries, keys}).tril(keys - queries) != 0);
          INFO("L " << queries << " S " << keys << " mask " << (mask.defined() ? to_string(mask.shape()) : "none")
                    << " key_mask " << key_mask.defined() << " causal " << causal);
          Result expected = naive_attention(q, k, v, allowed, added, g);
          Result r = run_attention(q, k, v, {.mask = mask, .key_mask = key_mask, .causal = causal}, g);
          CHECK(near(r.output, expected.output));
          CHECK(near(r.weights, expected.weights));
          CHECK(near(r.dq, expected.dq));
          CHECK(near(r.dk, expected.dk));
          CHECK(near(r.dv, expected.dv));
        }
  }
}

TEST_CASE("what stands at blocked keys changes no bit, not even an infinity or NaN at padding") {
  Generator generator(29);
  Tensor q = randn({2, 2, 3, 4}, {}, generator), k = randn({2, 2, 5, 4}, {}, generator);
  Tensor v = randn({2, 2, 5, 4}, {}, generator), g = randn({2, 2, 3, 4}, {}, generator);
  Tensor key_mask = booleans({1, 1, 1, 0, 0, 1, 1, 1, 1, 0}, {2, 5}), padding = (key_mask == 0).view({2, 1, 5, 1});
  std::vector<AttentionOptions> choices{{.key_mask = key_mask},
                                        {.mask = key_mask.view({2, 1, 1, 5})},
                                        {.key_mask = key_mask, .causal = true},
                                        {.mask = randn({3, 5}, {}, generator), .key_mask = key_mask}};
  for (const AttentionOptions& options : choices) {
    Result clean = run_attention(q, k, v, options, g);
    for (double garbage : {1e30, -7.0, inf, nan_value}) {
      Result r = run_attention(q, k.masked_fill(padding, garbage), v.masked_fill(padding, garbage), options, g);
      CHECK(equal(r.output, clean.output));
      CHECK(equal(r.weights, clean.weights));
      CHECK(equal(r.dq, clean.dq));
      CHECK(equal(r.dk, clean.dk));
      CHECK(equal(r.dv, clean.dv));
    }
  }
  // A score that is infinite or NaN is replaced as well, by -inf in a float mask as by false in a boolean one.
  Small small;
  for (double garbage : {inf, -inf, nan_value})
    for (const Tensor& mask : {numbers({0, -inf}, {1, 2}), booleans({1, 0}, {1, 2})})
      CHECK(equal(scaled_dot_product_attention(small.q, numbers({0, garbage}, {2, 1}), small.v, {.mask = mask}),
                  numbers({1}, {1, 1})));
  // Blocked for some queries only: finite garbage, of which earlier queries see nothing.
  Tensor last = booleans({0, 0, 0, 0, 1}, {1, 1, 5, 1});
  Result clean = run_attention(q, k, v, {.causal = true}, g);
  Result r = run_attention(q, k.masked_fill(last, 100), v.masked_fill(last, -100), {.causal = true}, g);
  CHECK(equal(r.output.slice(2, 0, 2), clean.output.slice(2, 0, 2)));
  CHECK(equal(r.dq.slice(2, 0, 2), clean.dq.slice(2, 0, 2)));
  // So large that its product with a gradient leaves the range of f32. Without the last query, nothing sees it.
  Tensor but_last = g.masked_fill(booleans({0, 0, 1}, {1, 1, 3, 1}), 0);
  clean = run_attention(q, k, v, {.causal = true}, but_last);
  r = run_attention(q, k, v.masked_fill(last, 3e38), {.causal = true}, but_last);
  CHECK(equal(r.dq.slice(2, 0, 2), clean.dq.slice(2, 0, 2)));
  CHECK(equal(r.dk.slice(2, 0, 4), clean.dk.slice(2, 0, 4)));
  CHECK(all(isfinite(r.dv)).item<bool>());
}

TEST_CASE("attention of two, three and four dimensions agree") {
  Generator generator(31);
  Tensor q = randn({3, 4}, DType::f64, generator), k = randn({5, 4}, DType::f64, generator);
  Tensor v = randn({5, 2}, DType::f64, generator), mask = rand({3, 5}, {}, generator) < 0.7;
  auto lift = [](const Tensor& x, int64_t dims) {
    return dims == 2 ? x : dims == 3 ? x.unsqueeze(0) : x.unsqueeze(0).unsqueeze(0);
  };
  auto [output, weights] = scaled_dot_product_attention_with_weights(q, k, v, {.mask = mask});
  CHECK(output.shape() == Shape{3, 2});
  CHECK(weights.shape() == Shape{3, 5});
  for (int64_t dims : {3, 4}) {
    auto [y, w] =
        scaled_dot_product_attention_with_weights(lift(q, dims), lift(k, dims), lift(v, dims), {.mask = mask});
    CHECK(equal(y, lift(output, dims)));
    CHECK(equal(w, lift(weights, dims)));
  }
}

TEST_CASE("attention over no keys gives zeros; over no queries, nothing") {
  Tensor q = ones({2, 3, 4}).set_requires_grad(), none = zeros({2, 0, 4});
  Tensor y = scaled_dot_product_attention(q, none, none, {.causal = true});
  CHECK(equal(y, zeros({2, 3, 4})));
  y.sum().backward();
  CHECK(equal(q.grad(), zeros({2, 3, 4})));
  CHECK(scaled_dot_product_attention(none, ones({2, 3, 4}), ones({2, 3, 4}), {.causal = true}).shape() ==
        Shape{2, 0, 4});
  CHECK(scaled_dot_product_attention(q, none, none, {.mask = zeros({3, 0}), .key_mask = zeros({2, 0}, DType::i64)})
            .shape() == Shape{2, 3, 4});
}

TEST_CASE("attention's dropout: weights before it are returned, its counters are the weights' logical indices") {
  Generator generator(37);
  Tensor q = zeros({2, 2, 3, 1}), k = zeros({2, 2, 4, 1}), v = eye(4).expand({2, 2, 4, 4});
  generator.set_state(5, 100);
  auto [output, weights] =
      scaled_dot_product_attention_with_weights(q, k, v, {.dropout = 0.5, .generator = &generator});
  CHECK(generator.offset() == 100 + 2 * 2 * 3 * 4);
  CHECK(equal(weights, full({2, 2, 3, 4}, 0.25F)));
  std::vector<float> dropped = output.to_vector<float>();  // v is the identity: the dropped weights themselves
  for (uint64_t i = 0; i < dropped.size(); ++i)
    CHECK(dropped[i] == (uniform_float(philox(5, 100 + i)[0]) >= 0.5F ? 0.5F : 0.0F));

  CHECK(equal(scaled_dot_product_attention(q, k, v, {.dropout = 1}), zeros({2, 2, 3, 4})));
  CHECK_THROWS_AS(scaled_dot_product_attention(q, k, v, {.dropout = 1.5}), ValueError);
  CHECK_THROWS_AS(scaled_dot_product_attention(q, k, v, {.dropout = nan_value}), ValueError);
}

TEST_CASE("the weights of attention are differentiable, and so are its gradients") {
  Small small;
  Tensor q = small.q.clone().set_requires_grad(), k = small.k.clone().set_requires_grad();
  auto [output, weights] = scaled_dot_product_attention_with_weights(q, k, small.v);
  Tensor dq = grad(weights[0][1], {q}, {.create_graph = true})[0];
  CHECK(near(dq, numbers({.1875 * std::log(3.0)}, {1, 1})));
  // weights[1] = sigmoid(q (k1 - k0)): the second derivative is w (1 - w) (1 - 2 w) (k1 - k0)^2.
  Tensor second = grad(dq.sum(), {q})[0];
  CHECK(near(second, numbers({.1875 * -.5 * std::log(3.0) * std::log(3.0)}, {1, 1})));
}

TEST_CASE("a mask of another shape is refused, with the shape expected and the one given") {
  auto message = [](const Shape& mask, const Shape& key_mask) {
    AttentionOptions options;
    if (!mask.empty()) options.mask = ones(mask, DType::boolean);
    if (!key_mask.empty()) options.key_mask = ones(key_mask, DType::boolean);
    Tensor q = zeros({4, 6, 2, 8}), kv = zeros({4, 6, 3, 8});
    return message_of([&] { scaled_dot_product_attention(q, kv, kv, options); });
  };
  CHECK_THAT(message({3, 2}, {}), Contains("mask [3, 2]") && Contains("[L, S] = [2, 3]"));
  CHECK_THAT(message({1, 3}, {}), Contains("mask [1, 3]") && Contains("[L, S] = [2, 3]"));
  CHECK_THAT(message({4, 3}, {}), Contains("mask [4, 3]") && Contains("key_mask, [N, S] = [4, 3]"));
  CHECK_THAT(message({3}, {}), Contains("mask [3]") && Contains("[4, 6, 2, 3]"));
  CHECK_THAT(message({4, 2, 3}, {}), Contains("mask [4, 2, 3] has 3 dimensions") && Contains("unsqueeze(1)"));
  CHECK_THAT(message({4, 6, 3, 2}, {}), Contains("mask [4, 6, 3, 2]") && Contains("[N, H, L, S] = [4, 6, 2, 3]"));
  CHECK_THAT(message({6, 1, 2, 3}, {}), Contains("mask [6, 1, 2, 3]") && Contains("[4, 6, 2, 3]"));
  CHECK_THAT(message({}, {4, 2}), Contains("key_mask [4, 2]") && Contains("[N, S] = [4, 3]"));
  CHECK_THAT(message({}, {1, 3}), Contains("key_mask [1, 3]") && Contains("[N, S] = [4, 3]"));
  CHECK_THAT(message({}, {3}), Contains("key_mask [3]"));
  CHECK(message({4, 1, 2, 3}, {4, 3}) == "nothing was thrown");
}

TEST_CASE("attention refuses queries, keys and values that do not fit") {
  auto attend = [](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options = {}) {
    return message_of([&] { scaled_dot_product_attention(q, k, v, options); });
  };
  Tensor q = zeros({2, 3, 4, 8}), kv = zeros({2, 3, 5, 8});
  CHECK_THAT(attend(q, zeros({2, 3, 5, 7}), kv),
             Contains("query [2, 3, 4, 8] and key [2, 3, 5, 7]") && Contains("8 and 7"));
  CHECK_THAT(attend(q, kv, zeros({2, 3, 6, 8})), Contains("key [2, 3, 5, 8] and value [2, 3, 6, 8]"));
  CHECK_THAT(attend(q, zeros({1, 3, 5, 8}), kv), Contains("dimension 0"));
  CHECK_THAT(attend(q, kv, zeros({2, 1, 5, 8})), Contains("dimension 1"));
  CHECK_THAT(attend(q, zeros({3, 5, 8}), kv), Contains("as many dimensions"));
  CHECK_THAT(attend(zeros({8}), zeros({8}), zeros({8})), Contains("[length, width]"));
  CHECK_THAT(attend(q, kv, Tensor()), Contains("value"));
  CHECK_THAT(attend(q, kv, kv, {.scale = inf}), Contains("scale"));
  CHECK_THROWS_AS(scaled_dot_product_attention(q, kv.to(DType::f64), kv), DTypeError);
  CHECK_THROWS_AS(scaled_dot_product_attention(q, kv, kv, {.mask = zeros({4, 5}, DType::f64)}), DTypeError);
  CHECK_THROWS_AS(scaled_dot_product_attention(q, kv, kv, {.key_mask = zeros({2, 5})}), DTypeError);
}

}  // namespace attention_test
