// Op cases: selection.
#include <catch2/catch.hpp>

#include "rows.hpp"

namespace regard::op_cases {

namespace {

using T = const Tensors&;
using A = const Arrays&;

const Input mask{{2, 3, 4}, Fill::booleans};
const Input x{{2, 3, 4}};

Array chosen(const Array& c, const Array& a, const Array& b) {
  const Shape shape = broadcast(c.shape, broadcast(a.shape, b.shape));
  return make(shape, [&](const Shape& i) { return at(c, i) != 0 ? at(a, i) : at(b, i); });
}
Array number(double value) { return {{}, {value}}; }

std::vector<Inputs> three(Fill condition) {
  std::vector<Inputs> sets;
  const Shape shapes[][3] = {{{0}, {0}, {1}},    {{}, {}, {}},
                             {{3}, {2, 1}, {}},  {{2, 1}, {3}, {2, 3}},
                             {{67}, {67}, {67}}, {{1, 1, 2, 1, 1, 1, 2, 1}, {2, 1, 1, 1, 2, 1, 1, 1}, {2}}};
  for (const auto& s : shapes) sets.push_back({{s[0], condition, 0, 3}, {s[1]}, {s[2]}});
  return sets;
}
std::vector<Inputs> two(Fill condition, bool mask_first) {
  std::vector<Inputs> sets;
  const Shape shapes[][2] = {{{0}, {0}},       {{}, {}},     {{3}, {2, 3}},
                             {{2, 1}, {2, 3}}, {{67}, {67}}, {{2, 1, 2}, {1, 2, 1, 2, 1, 2, 1, 2}},
                             {{}, {2, 2}}};
  for (const auto& s : shapes) {
    const Input c{s[0], condition, 0, 3}, v{s[1]};
    sets.push_back(mask_first ? Inputs{c, v} : Inputs{v, c});
  }
  return sets;
}

}  // namespace

Table select_cases() {
  Table table = {
      {.op = "where",
       .variant = "two tensors",
       .inputs = {mask, x, x},
       .function = [](T in) { return where(in[0], in[1], in[2]); },
       .reference = [](A in) { return chosen(in[0], in[1], in[2]); },
       .more = three(Fill::booleans),
       .composed =
           [](T in) {
             Tensor c = in[0].to(in[1].dtype());
             return c * in[1] + (1.0 - c) * in[2];
           },
       .of_integers = DType::i64,
       .of_booleans = DType::boolean},
      {.op = "where",
       .variant = "an integer condition",
       .inputs = {{{2, 3, 4}, Fill::integers, 0, 3}, x, x},
       .function = [](T in) { return where(in[0], in[1], in[2]); },
       .reference = [](A in) { return chosen(in[0], in[1], in[2]); },
       .more = three(Fill::integers),
       .of_integers = DType::i64,
       .of_booleans = DType::boolean},
      {.op = "where",
       .variant = "a tensor or a number",
       .inputs = {mask, x},
       .function = [](T in) { return where(in[0], in[1], 0.5); },
       .reference = [](A in) { return chosen(in[0], in[1], number(0.5)); },
       .more = two(Fill::booleans, true),
       .of_integers = DType::f32},
      {.op = "where",
       .variant = "a number or a tensor",
       .inputs = {mask, x},
       .function = [](T in) { return where(in[0], -2, in[1]); },
       .reference = [](A in) { return chosen(in[0], number(-2), in[1]); },
       .more = two(Fill::booleans, true),
       .of_integers = DType::i64},
      {.op = "masked_fill",
       .variant = "a boolean mask",
       .inputs = {x, mask},
       .function = [](T in) { return masked_fill(in[0], in[1], -3); },
       .reference = [](A in) { return chosen(in[1], number(-3), in[0]); },
       .more = two(Fill::booleans, false),
       .composed = [](T in) { return where(in[1], -3.0, in[0]); },
       .of_integers = DType::i64},
      {.op = "masked_fill",
       .variant = "an integer mask, minus infinity",
       .inputs = {x, {{3, 1}, Fill::integers, 0, 2}},
       .function = [](T in) { return masked_fill(in[0], in[1], -std::numeric_limits<double>::infinity()); },
       .reference = [](A in) { return chosen(in[1], number(-inf), in[0]); },
       .second = false},
  };
  table.back().differentiable = true;
  // Differences of infinities are NaN: its gradient is checked with a finite value above.
  table.back().inputs[0].grad = false;
  return table;
}

TEST_CASE("op cases: selection") { run_table("selection", select_cases()); }

}  // namespace regard::op_cases
