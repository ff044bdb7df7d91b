// Op cases: Tensor's methods are the functions of their names.
#include <catch2/catch.hpp>

#include <string>
#include <utility>
#include <vector>

#include <regard/autograd/graph.hpp>

#include "op_case.hpp"

namespace methods_test {

using namespace regard;
using regard::op_cases::Function;

namespace {

struct Method {
  const char* name;
  Function method;
  Function function;
};

std::vector<Method> methods() {
  using T = const Tensors&;
  // x [2, 3] positive, y [2, 3], mask [2, 3], index [2, 3] of 0 and 1, cube [2, 1, 3]
  return {
      {"clone", [](T t) { return t[0].clone(); }, [](T t) { return clone(t[0]); }},
      {"to", [](T t) { return t[0].to(DType::i64); }, [](T t) { return to(t[0], DType::i64); }},
      {"contiguous", [](T t) { return t[0].t().contiguous(); }, [](T t) { return contiguous(transpose(t[0], 0, 1)); }},
      {"operator[]", [](T t) { return t[0][1]; }, [](T t) { return select(t[0], 0, 1); }},
      {"operator[] of a range", [](T t) { return t[0][Range(1, 2)]; }, [](T t) { return slice(t[0], 0, 1, 2); }},
      {"index",
       [](T t) {
         return t[0].index({-1, Range(0, 3, 2)});
       },
       [](T t) { return slice(select(t[0], 0, 1), 0, 0, 3, 2); }},
      {"view",
       [](T t) {
         return t[0].view({3, -1});
       },
       [](T t) {
         return view(t[0], {3, 2});
       }},
      {"reshape",
       [](T t) {
         return t[0].t().reshape({2, 3});
       },
       [](T t) {
         return reshape(transpose(t[0], 0, 1), {2, 3});
       }},
      {"flatten", [](T t) { return t[4].flatten(1); }, [](T t) { return flatten(t[4], 1); }},
      {"permute",
       [](T t) {
         return t[4].permute({2, 0, 1});
       },
       [](T t) {
         return permute(t[4], {2, 0, 1});
       }},
      {"transpose", [](T t) { return t[0].transpose(0, -1); }, [](T t) { return transpose(t[0], 0, -1); }},
      {"t", [](T t) { return t[0].t(); }, [](T t) { return transpose(t[0], 0, 1); }},
      {"expand",
       [](T t) {
         return t[4].expand({2, 4, 3});
       },
       [](T t) {
         return expand(t[4], {2, 4, 3});
       }},
      {"squeeze", [](T t) { return t[4].squeeze(); }, [](T t) { return squeeze(t[4]); }},
      {"squeeze of one", [](T t) { return t[4].squeeze(1); }, [](T t) { return squeeze(t[4], 1); }},
      {"unsqueeze", [](T t) { return t[0].unsqueeze(-1); }, [](T t) { return unsqueeze(t[0], -1); }},
      {"slice", [](T t) { return t[0].slice(1, -2); }, [](T t) { return slice(t[0], 1, -2); }},
      {"narrow", [](T t) { return t[0].narrow(1, 1, 2); }, [](T t) { return narrow(t[0], 1, 1, 2); }},
      {"select", [](T t) { return t[0].select(1, -1); }, [](T t) { return select(t[0], 1, -1); }},
      {"split", [](T t) { return t[0].split(2, 1); }, [](T t) { return split(t[0], 2, 1); }},
      {"chunk", [](T t) { return t[0].chunk(2, 1); }, [](T t) { return chunk(t[0], 2, 1); }},
      {"flip",
       [](T t) {
         return t[0].flip({0, 1});
       },
       [](T t) {
         return flip(t[0], {0, 1});
       }},
      {"triu", [](T t) { return t[0].triu(1); }, [](T t) { return triu(t[0], 1); }},
      {"tril", [](T t) { return t[0].tril(-1); }, [](T t) { return tril(t[0], -1); }},
      {"neg", [](T t) { return t[0].neg(); }, [](T t) { return neg(t[0]); }},
      {"pow", [](T t) { return t[0].pow(3); }, [](T t) { return pow(t[0], 3); }},
      {"pow of tensors", [](T t) { return t[0].pow(t[1]); }, [](T t) { return pow(t[0], t[1]); }},
      {"exp", [](T t) { return t[0].exp(); }, [](T t) { return exp(t[0]); }},
      {"log", [](T t) { return t[0].log(); }, [](T t) { return log(t[0]); }},
      {"sqrt", [](T t) { return t[0].sqrt(); }, [](T t) { return sqrt(t[0]); }},
      {"rsqrt", [](T t) { return t[0].rsqrt(); }, [](T t) { return rsqrt(t[0]); }},
      {"abs", [](T t) { return t[1].abs(); }, [](T t) { return abs(t[1]); }},
      {"tanh", [](T t) { return t[1].tanh(); }, [](T t) { return tanh(t[1]); }},
      {"sigmoid", [](T t) { return t[1].sigmoid(); }, [](T t) { return sigmoid(t[1]); }},
      {"relu", [](T t) { return t[1].relu(); }, [](T t) { return relu(t[1]); }},
      {"erf", [](T t) { return t[1].erf(); }, [](T t) { return erf(t[1]); }},
      {"sin", [](T t) { return t[1].sin(); }, [](T t) { return sin(t[1]); }},
      {"cos", [](T t) { return t[1].cos(); }, [](T t) { return cos(t[1]); }},
      {"clamp", [](T t) { return t[1].clamp(-0.5, 0.5); }, [](T t) { return clamp(t[1], -0.5, 0.5); }},
      {"masked_fill", [](T t) { return t[1].masked_fill(t[2], 9); }, [](T t) { return masked_fill(t[1], t[2], 9); }},
      {"logical_not", [](T t) { return t[2].logical_not(); }, [](T t) { return logical_not(t[2]); }},
      {"sum", [](T t) { return t[1].sum(); }, [](T t) { return sum(t[1]); }},
      {"sum over", [](T t) { return t[1].sum(0, true); }, [](T t) { return sum(t[1], 0, true); }},
      {"mean", [](T t) { return t[1].mean(); }, [](T t) { return mean(t[1]); }},
      {"mean over", [](T t) { return t[1].mean({-1}); }, [](T t) { return mean(t[1], {-1}); }},
      {"var", [](T t) { return t[1].var(); }, [](T t) { return var(t[1], {}); }},
      {"var over", [](T t) { return t[1].var(1, false, true); }, [](T t) { return var(t[1], 1, false, true); }},
      {"max", [](T t) { return t[1].max(); }, [](T t) { return max(t[1]); }},
      {"max over", [](T t) { return t[1].max(1); }, [](T t) { return max(t[1], 1); }},
      {"min", [](T t) { return t[1].min(); }, [](T t) { return min(t[1]); }},
      {"min over", [](T t) { return t[1].min(0, true); }, [](T t) { return min(t[1], 0, true); }},
      {"amax",
       [](T t) {
         return t[1].amax({0, 1});
       },
       [](T t) {
         return amax(t[1], {0, 1});
       }},
      {"amin", [](T t) { return t[1].amin(1, true); }, [](T t) { return amin(t[1], 1, true); }},
      {"argmax", [](T t) { return t[1].argmax(); }, [](T t) { return argmax(t[1]); }},
      {"argmax over", [](T t) { return t[1].argmax(1, true); }, [](T t) { return argmax(t[1], 1, true); }},
      {"argmin", [](T t) { return t[1].argmin(); }, [](T t) { return argmin(t[1]); }},
      {"argmin over", [](T t) { return t[1].argmin(0); }, [](T t) { return argmin(t[1], 0); }},
      {"logsumexp", [](T t) { return t[1].logsumexp(1); }, [](T t) { return logsumexp(t[1], 1); }},
      {"any", [](T t) { return t[2].any(); }, [](T t) { return any(t[2]); }},
      {"any over", [](T t) { return t[2].any(0, true); }, [](T t) { return any(t[2], 0, true); }},
      {"all", [](T t) { return t[2].all(); }, [](T t) { return all(t[2]); }},
      {"all over", [](T t) { return t[2].all(1); }, [](T t) { return all(t[2], 1); }},
      {"norm", [](T t) { return t[1].norm(); }, [](T t) { return norm(t[1]); }},
      {"matmul", [](T t) { return t[0].matmul(t[1].t()); }, [](T t) { return matmul(t[0], transpose(t[1], 0, 1)); }},
      {"softmax", [](T t) { return t[1].softmax(0); }, [](T t) { return softmax(t[1], 0); }},
      {"log_softmax", [](T t) { return t[1].log_softmax(-1); }, [](T t) { return log_softmax(t[1], -1); }},
      {"gather", [](T t) { return t[1].gather(1, t[3]); }, [](T t) { return gather(t[1], 1, t[3]); }},
      {"scatter_add", [](T t) { return t[1].scatter_add(0, t[3], t[0]); },
       [](T t) { return scatter_add(t[1], 0, t[3], t[0]); }},
      {"index_select", [](T t) { return t[1].index_select(1, t[3][0]); },
       [](T t) { return index_select(t[1], 1, select(t[3], 0, 0)); }},
  };
}

}  // namespace

TEST_CASE("tensor methods give what the functions of their names give, with the same gradients") {
  const Tensor x = from_vector<double>({0.5, 1.25, 2, 0.75, 3, 1}, {2, 3});
  const Tensor y = from_vector<double>({-1, 0.25, 2, 0.5, -3, 1.5}, {2, 3});
  const Tensor mask = y > 0;
  const Tensor index = from_vector<int64_t>({0, 1, 1, 0, 0, 1}, {2, 3});
  for (const Method& m : methods()) {
    INFO(m.name);
    std::vector<std::vector<double>> values[2], gradients[2];
    for (int way = 0; way < 2; ++way) {
      const Tensors in{x.detach().set_requires_grad(), y.detach().set_requires_grad(), mask, index,
                       y.detach().view({2, 1, 3}).set_requires_grad()};
      const Tensors out = way == 0 ? m.method(in) : m.function(in);
      Tensors roots;
      for (const Tensor& t : out) {
        values[way].push_back(t.to_vector<double>());
        values[way].push_back({static_cast<double>(t.dtype()), static_cast<double>(t.dim())});
        if (t.requires_grad()) roots.push_back(sum(t * t));
      }
      if (roots.empty()) continue;
      for (const Tensor& g : grad(roots, {in[0], in[1], in[4]}, {.grad_outputs = {}, .allow_unused = true}))
        gradients[way].push_back(g.defined() ? g.to_vector<double>() : std::vector<double>{});
    }
    CHECK(values[0] == values[1]);
    CHECK(gradients[0] == gradients[1]);
  }
}

}  // namespace methods_test
