// Attention's projections and heads as single ops, against the same composed: values, gradients, second derivatives.
#include <catch2/catch.hpp>

#include <array>
#include <vector>

#include <regard/autograd/gradcheck_catch.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/projection.hpp>

namespace projection_test {

using namespace regard;

namespace {

struct Sizes {
  int64_t batch, length, width, head_width;
  std::vector<int64_t> heads;  // of each projection
};

/// x, then the weights, then the biases (undefined where there are none).
Tensors make_inputs(const Sizes& s, bool bias, DType dtype) {
  Tensors in{randn({s.batch, s.length, s.width}, dtype)};
  for (int64_t heads : s.heads) in.push_back(randn({heads * s.head_width, s.width}, dtype));
  for (int64_t heads : s.heads) in.push_back(bias ? randn({heads * s.head_width}, dtype) : Tensor());
  for (Tensor& x : in)
    if (x.defined()) x.set_requires_grad();
  return in;
}

template <size_t count>
Tensors fused(const Tensors& in, int64_t head_width) {
  const auto heads = [&]<size_t... i>(std::index_sequence<i...>) {
    return detail::project_heads<count>(in[0], {detail::Projection{in[1 + i], in[1 + count + i]}...}, head_width);
  }
  (std::make_index_sequence<count>());
  return {heads.begin(), heads.end()};
}
Tensors fused(const Tensors& in, int64_t head_width) {
  return in.size() == 3   ? fused<1>(in, head_width)
         : in.size() == 5 ? fused<2>(in, head_width)
                          : fused<3>(in, head_width);
}
Tensors composed(const Tensors& in, int64_t head_width) {
  Tensors heads;
  const size_t count = in.size() / 2;
  for (size_t i = 0; i < count; ++i) {
    const Tensor y = linear(in[0], in[1 + i], in[1 + count + i]);
    heads.push_back(y.view({y.size(0), y.size(1), y.size(2) / head_width, head_width}).transpose(1, 2));
  }
  return heads;
}

Tensors defined_of(const Tensors& list) {
  Tensors defined;
  for (const Tensor& x : list)
    if (x.defined()) defined.push_back(x);
  return defined;
}

double distance(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0) return a.shape() == b.shape() ? 0 : 1;
  return (a.to(DType::f64) - b.to(DType::f64)).abs().max().item<double>();
}

const std::vector<Sizes> all_sizes{{2, 3, 6, 3, {2, 2, 2}}, {1, 1, 1, 1, {1}},          {3, 7, 5, 2, {4, 2, 2}},
                                   {2, 17, 33, 11, {3, 3}}, {4, 10, 64, 16, {4, 1, 1}}, {0, 3, 4, 2, {2, 1}}};

}  // namespace

TEST_CASE("projections of one input into heads are those of linear()", "[projection]") {
  manual_seed(1);
  for (const Sizes& sizes : all_sizes)
    for (bool bias : {true, false})
      for (DType dtype : {DType::f32, DType::f64}) {
        CAPTURE(sizes.batch, sizes.length, sizes.width, sizes.heads.size(), bias, dtype == DType::f32);
        const Tensors in = make_inputs(sizes, bias, dtype), leaves = defined_of(in);
        const Tensors a = fused(in, sizes.head_width), b = composed(in, sizes.head_width);
        Tensors g;
        for (size_t i = 0; i < a.size(); ++i) {
          REQUIRE(a[i].shape() == b[i].shape());
          CHECK(equal(a[i], b[i]));
          g.push_back(i == 1 ? randn({a[i].size(0), a[i].size(2), a[i].size(1), a[i].size(3)}, dtype).transpose(1, 2)
                             : randn(a[i].shape(), dtype));
        }
        const Tensors da = grad(a, leaves, {.grad_outputs = g, .retain_graph = true});
        const Tensors db = grad(b, leaves, {.grad_outputs = g});
        const Tensors dc = grad(a, leaves, {.grad_outputs = g, .create_graph = true});
        for (size_t i = 0; i < leaves.size(); ++i) {
          CHECK(distance(da[i], db[i]) < (dtype == DType::f32 ? 1e-4 : 1e-12));
          CHECK(equal(da[i], dc[i].detach()));
        }
      }
}

TEST_CASE("a projection that nothing came back from, and parameters that need no gradient", "[projection]") {
  manual_seed(2);
  Tensors in = make_inputs({2, 3, 4, 2, {2, 1, 1}}, true, DType::f64);
  in[2].set_requires_grad(false);
  const Tensors a = fused(in, 2), b = composed(in, 2);
  const Tensors wanted{in[0], in[1], in[3], in[4], in[6]};
  const GradOptions unused{.grad_outputs = {}, .allow_unused = true};
  const Tensors da = grad(sum(a[0] * a[0]) + sum(a[1] * a[1]), wanted, unused);
  const Tensors db = grad(sum(b[0] * b[0]) + sum(b[1] * b[1]), wanted, unused);
  for (size_t i = 0; i < wanted.size(); ++i) {
    CAPTURE(i);
    REQUIRE(da[i].defined() == db[i].defined());
    if (da[i].defined()) CHECK(distance(da[i], db[i]) < 1e-12);
  }
}

TEST_CASE("projections' first and second derivatives are right", "[projection]") {
  manual_seed(3);
  for (bool bias : {true, false}) {
    const Tensors in = make_inputs({2, 3, 4, 2, {2, 1, 1}}, bias, DType::f64), leaves = defined_of(in);
    const auto f = [&](const Tensors& given) {
      Tensors all = given;
      all.resize(in.size());
      Tensor total;
      for (const Tensor& y : fused(all, 2)) {
        const Tensor term = sum(y * y * y);
        total = total.defined() ? total + term : term;
      }
      return total;
    };
    CHECK_THAT(f, passes_gradcheck(leaves));
    CHECK_THAT(f, passes_gradgradcheck(leaves));
  }
}

TEST_CASE("merged heads", "[projection]") {
  manual_seed(4);
  for (bool lies_merged : {true, false}) {
    const Tensor base = lies_merged ? randn({2, 5, 3, 4}, DType::f64) : randn({2, 3, 5, 4}, DType::f64);
    const auto heads = [&](const Tensor& x) { return lies_merged ? x.transpose(1, 2) : x; };
    const Tensor right = heads(base).transpose(1, 2).reshape({2, 5, 12});
    const Tensor merged = detail::merge_heads(heads(base));
    CHECK(equal(merged, right));
    CHECK(merged.shares_storage_with(base) == lies_merged);
    const Tensors leaf{base.detach().set_requires_grad()};
    const auto f = [&](const Tensors& x) {
      const Tensor y = detail::merge_heads(heads(x[0]));
      return sum(y * y * y);
    };
    CHECK_THAT(f, passes_gradcheck(leaf));
    CHECK_THAT(f, passes_gradgradcheck(leaf));
  }
}

}  // namespace projection_test
