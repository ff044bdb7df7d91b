// Scaled dot-product attention, forward and with its backward pass: full and causal, under each kind of mask, with
// dropout, with fewer heads of keys than of queries, and one query at a time as in generation. `GFLOP` counts the
// products of queries with keys and of weights with values, twice that in the backward pass, causal at half.
#include <cmath>
#include <regard/bench/suite.hpp>
#include <regard/regard.hpp>

namespace {

using namespace regard;

struct Sizes {
  int64_t batch, heads, queries, keys, width;
  int64_t key_heads = 0;  // 0: heads
};

enum class Mask { none, causal, boolean, floating, padding };

struct Operands {
  Tensor q, k, v, gradient;
  AttentionOptions options;

  Operands(const Sizes& s, Mask mask, double dropout, bool recorded) {
    const int64_t key_heads = s.key_heads ? s.key_heads : s.heads;
    q = randn({s.batch, s.heads, s.queries, s.width}).set_requires_grad(recorded);
    k = randn({s.batch, key_heads, s.keys, s.width}).set_requires_grad(recorded);
    v = randn({s.batch, key_heads, s.keys, s.width}).set_requires_grad(recorded);
    gradient = randn(q.shape());
    options.causal = mask == Mask::causal;
    options.dropout = dropout;
    if (mask == Mask::boolean) options.mask = rand({s.queries, s.keys}) > 0.1;
    if (mask == Mask::floating) options.mask = randn({s.queries, s.keys});
    if (mask == Mask::padding)
      options.key_mask = arange(0, s.keys).view({1, s.keys}).expand({s.batch, s.keys}) < s.keys - s.keys / 8;
  }
  Tensor forward() const { return scaled_dot_product_attention(q, k, v, options); }
};

void add(const std::string& kind, const Sizes& s, Mask mask = Mask::none, double dropout = 0) {
  const std::string name = kind + "/" + bench::sizes({s.batch, s.heads, s.queries, s.keys, s.width});
  const double share = mask == Mask::causal && s.queries == s.keys ? 0.5 : 1;
  const double flops = 4 * share * static_cast<double>(s.batch * s.heads * s.queries * s.keys * s.width);
  bench::add(name, {.flops = flops}, [=] {
    const Operands x(s, mask, dropout, false);
    return [x] { benchmark::DoNotOptimize(x.forward().raw_data()); };
  });
  if (s.queries == 1) return;  // generation has no backward pass
  bench::add(name + "/with backward", {.flops = 3 * flops}, [=] {
    const Operands x(s, mask, dropout, true);
    return [x] {
      benchmark::DoNotOptimize(grad(x.forward(), {x.q, x.k, x.v}, {.grad_outputs = {x.gradient}})[0].raw_data());
    };
  });
}

}  // namespace

int main(int argc, char** argv) {
  const Sizes shapes[] = {{2, 2, 3, 3, 3},      {16, 4, 16, 16, 8},   {4, 8, 10, 10, 64},    {12, 4, 64, 64, 32},
                          {8, 8, 128, 128, 64}, {8, 6, 256, 256, 64}, {1, 8, 2048, 2048, 64}};
  for (const Sizes& s : shapes) {
    add("full", s);
    add("causal", s, Mask::causal);
  }
  const Sizes middle{8, 8, 128, 128, 64};
  add("boolean mask", middle, Mask::boolean);
  add("float mask", middle, Mask::floating);
  add("padding", middle, Mask::padding);
  add("dropout", middle, Mask::none, 0.1);
  add("causal, dropout", middle, Mask::causal, 0.1);
  add("two heads of keys", {8, 8, 128, 128, 64, 2}, Mask::causal);
  for (const int64_t held : {64, 512, 4096}) {
    add("one query", {1, 12, 1, held, 64}, Mask::causal);
    add("one query, two heads of keys", {1, 12, 1, held, 64, 2}, Mask::causal);
  }
  return bench::run(argc, argv);
}
