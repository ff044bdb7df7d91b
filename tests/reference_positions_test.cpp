// Rotary and ALiBi positions, and fewer heads of keys than of queries, against PyTorch's and transformers' values.
#include <regard/tests/reference/reference_layers.hpp>

#include <regard/layers/positions.hpp>

namespace reference_positions_test {

using namespace regard;  // NOLINT(google-build-using-namespace)
using reference::Json;

namespace {

reference::Tolerance tolerance(DType floating) {
  return floating == DType::f64 ? reference::Tolerance{1e-12} : reference::Tolerance{1e-5, true};
}
void check(const std::string& what, const Tensor& got, const Json& want, DType floating,
           const reference::Tolerance& allowed) {
  std::string wrong = reference::difference(got, want, floating, allowed);
  INFO(what << " " << wrong);
  CHECK(wrong.empty());
}

/// The case's op on its inputs, with every gradient, in both precisions.
template <class Call>
int run(const std::string& op, Call call) {
  int ran = 0;
  reference::for_each_case("positions", [&](const Json& json, DType floating) {
    if (json.at("op") != op) return;
    ++ran;
    Tensors in;
    for (const Json& input : json.at("inputs")) in.push_back(reference::tensor(input, floating));
    Tensor y = call(json, in);
    check("output", y, json.at("outputs").at(0), floating, tolerance(floating));
    y.backward(reference::tensor(json.at("grad_outputs").at(0), floating));
    for (size_t i = 0; i < in.size(); ++i)
      check("gradient " + std::to_string(i), in[i].grad(), json.at("grads").at(i), floating, tolerance(floating));
  });
  return ran;
}

}  // namespace

TEST_CASE("reference values: rotary positions, halves and pairs, from any offset") {
  const int ran = run("rotary", [](const Json& json, const Tensors& in) {
    return rotary_positions(in.at(0), json.at("args").at("offset").get<int64_t>(),
                            {.base = json.at("args").at("base").get<double>(),
                             .interleaved = json.at("args").at("interleaved").get<bool>()});
  });
  CHECK(ran == 12);
}

TEST_CASE("reference values: ALiBi's slopes, for powers of two and others") {
  int ran = 0;
  for (const Json& json : reference::load("positions")) {
    if (json.at("op") != "alibi_slopes") continue;
    ++ran;
    INFO(json.at("name").get<std::string>());
    check("slopes", layers::alibi_slopes(json.at("heads").get<int64_t>()), json.at("outputs").at(0), DType::f64,
          {1e-14});
  }
  CHECK(ran == 9);
}

TEST_CASE("reference values: attention with fewer heads of keys, causal and with ALiBi") {
  const int ran = run("attention", [](const Json& json, const Tensors& in) {
    AttentionOptions options;
    options.causal = json.at("args").at("causal").get<bool>();
    if (json.at("args").at("alibi").get<bool>()) options.alibi = layers::alibi_slopes(in.at(0).size(1));
    return scaled_dot_product_attention(in.at(0), in.at(1), in.at(2), options);
  });
  CHECK(ran == 24);
}

TEST_CASE("reference values: Llama's attention, causal with rotary positions and fewer heads of keys") {
  int ran = 0;
  reference::for_each_case("positions", [&](const Json& json, DType floating) {
    if (json.at("op") != "llama_attention") return;
    ++ran;
    const auto heads = json.at("heads").get<int64_t>();
    layers::MultiHeadAttention attention(4 * heads, heads,
                                         {.bias = false,
                                          .key_value_heads = json.at("key_value_heads").get<int64_t>(),
                                          .rotary = true,
                                          .rotary_base = json.at("base").get<double>()});
    reference::load_parameters(attention, json.at("parameters"), floating);
    Tensors in = reference::leaves(json.at("inputs"), floating);
    Tensor y = attention(in[0], {.causal = true});
    const reference::Tolerance allowed{2e-6, true};  // the reference's angles are f32
    check("output", y, json.at("outputs").at(0), floating, floating == DType::f64 ? allowed : tolerance(floating));
    y.backward(reference::tensor(json.at("grad_outputs").at(0), floating));
    check("gradient", in[0].grad(), json.at("grads").at(0), floating,
          floating == DType::f64 ? allowed : tolerance(floating));
    for (const auto& [name, parameter] : attention.named_parameters())
      check("gradient of " + name, parameter.grad(), json.at("parameter_grads").at(name), floating,
            floating == DType::f64 ? allowed : tolerance(floating));
  });
  CHECK(ran == 4);
}

}  // namespace reference_positions_test
