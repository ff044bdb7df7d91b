// How each op of the reference files is called: a table from its name there to Regard's function.
#pragma once

#include <regard/tests/reference/reference.hpp>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace reference {

using namespace regard;  // NOLINT(google-build-using-namespace)

// One op: inputs, the case's arguments, and the run's floating dtype (for ops that create tensors).
using Run = std::function<Tensors(const Tensors& in, const Json& args, DType floating)>;
using OpTable = std::map<std::string, Run>;

inline Tensors list(const std::pair<Tensor, Tensor>& pair) { return {pair.first, pair.second}; }

inline void unary(OpTable& table, const std::string& name, Tensor (*op)(const Tensor&)) {
  table[name] = [op](const Tensors& in, const Json&, DType) { return Tensors{op(in[0])}; };
}
inline void binary(OpTable& table, const std::string& name, Tensor (*op)(const Tensor&, const Tensor&)) {
  table[name] = [op](const Tensors& in, const Json&, DType) { return Tensors{op(in[0], in[1])}; };
}
// name_scalar: tensor, scalar.
inline void with_scalar(OpTable& table, const std::string& name, Tensor (*op)(const Tensor&, Scalar)) {
  table[name + "_scalar"] = [op](const Tensors& in, const Json& args, DType) {
    return Tensors{op(in[0], args.at("scalar").get<double>())};
  };
}
// scalar_name: scalar, tensor.
inline void scalar_first(OpTable& table, const std::string& name, Tensor (*op)(Scalar, const Tensor&)) {
  table["scalar_" + name] = [op](const Tensors& in, const Json& args, DType) {
    return Tensors{op(args.at("scalar").get<double>(), in[0])};
  };
}
inline void comparison(OpTable& table, const std::string& name, Tensor (*op)(const Tensor&, const Tensor&),
                       Tensor (*scalar)(const Tensor&, Scalar), Tensor (*first)(Scalar, const Tensor&)) {
  binary(table, name, op);
  with_scalar(table, name, scalar);
  scalar_first(table, name, first);
}

inline void add_elementwise(OpTable& table) {
  binary(table, "add", add);
  binary(table, "sub", sub);
  binary(table, "mul", mul);
  binary(table, "div", div);
  binary(table, "pow_tensor", pow);
  with_scalar(table, "add", add);
  with_scalar(table, "sub", sub);
  with_scalar(table, "mul", mul);
  with_scalar(table, "div", div);
  scalar_first(table, "sub", sub);
  scalar_first(table, "div", div);
  scalar_first(table, "pow", pow);
  table["pow"] = [](const Tensors& in, const Json& args, DType) {
    return Tensors{pow(in[0], args.at("exponent").get<double>())};
  };
  unary(table, "neg", neg);
  unary(table, "exp", exp);
  unary(table, "log", log);
  unary(table, "sqrt", sqrt);
  unary(table, "rsqrt", rsqrt);
  unary(table, "reciprocal", reciprocal);
  unary(table, "square", square);
  unary(table, "sign", sign);
  unary(table, "abs", abs);
  unary(table, "tanh", tanh);
  unary(table, "sigmoid", sigmoid);
  unary(table, "relu", relu);
  unary(table, "silu", silu);
  unary(table, "erf", erf);
  unary(table, "sin", sin);
  unary(table, "cos", cos);
  table["gelu"] = [](const Tensors& in, const Json&, DType) { return Tensors{gelu(in[0])}; };
  table["gelu_tanh"] = [](const Tensors& in, const Json&, DType) {
    return Tensors{gelu(in[0], GeluApproximation::tanh)};
  };
  table["clamp"] = [](const Tensors& in, const Json& args, DType) {
    std::optional<double> low, high;
    if (args.contains("min")) low = args["min"].get<double>();
    if (args.contains("max")) high = args["max"].get<double>();
    return Tensors{clamp(in[0], low, high)};
  };
  binary(table, "maximum", maximum);
  binary(table, "minimum", minimum);
  comparison(table, "eq", operator==, operator==, operator==);
  comparison(table, "ne", operator!=, operator!=, operator!=);
  comparison(table, "lt", operator<, operator<, operator<);
  comparison(table, "le", operator<=, operator<=, operator<=);
  comparison(table, "gt", operator>, operator>, operator>);
  comparison(table, "ge", operator>=, operator>=, operator>=);
  binary(table, "logical_and", logical_and);
  binary(table, "logical_or", logical_or);
  binary(table, "logical_xor", logical_xor);
  unary(table, "logical_not", logical_not);
  unary(table, "isfinite", isfinite);
  table["where"] = [](const Tensors& in, const Json&, DType) { return Tensors{where(in[0], in[1], in[2])}; };
  table["where_scalar"] = [](const Tensors& in, const Json& args, DType) {
    return Tensors{where(in[0], in[1], Scalar(args.at("scalar").get<double>()))};
  };
  table["scalar_where"] = [](const Tensors& in, const Json& args, DType) {
    return Tensors{where(in[0], Scalar(args.at("scalar").get<double>()), in[1])};
  };
  table["masked_fill"] = [](const Tensors& in, const Json& args, DType) {
    return Tensors{masked_fill(in[0], in[1], number(args.at("value")))};
  };
}

// An op that reduces over all elements, or over args' dims.
template <class All, class Over>
Run reduction(All all_elements, Over over_dims) {
  return [=](const Tensors& in, const Json& args, DType) {
    if (!args.contains("dims")) return Tensors{all_elements(in[0])};
    return Tensors{over_dims(in[0], Dims(shape(args["dims"])), args.at("keepdim").get<bool>(), args)};
  };
}

inline void add_reductions(OpTable& table) {
  table["sum"] = reduction([](const Tensor& x) { return sum(x); },
                           [](const Tensor& x, Dims d, bool k, const Json&) { return sum(x, d, k); });
  table["mean"] = reduction([](const Tensor& x) { return mean(x); },
                            [](const Tensor& x, Dims d, bool k, const Json&) { return mean(x, d, k); });
  table["any"] = reduction([](const Tensor& x) { return any(x); },
                           [](const Tensor& x, Dims d, bool k, const Json&) { return any(x, d, k); });
  table["all"] = reduction([](const Tensor& x) { return all(x); },
                           [](const Tensor& x, Dims d, bool k, const Json&) { return all(x, d, k); });
  table["logsumexp"] = reduction([](const Tensor& x) { return logsumexp(x, {}); },
                                 [](const Tensor& x, Dims d, bool k, const Json&) { return logsumexp(x, d, k); });
  table["var"] = [](const Tensors& in, const Json& args, DType) {
    bool unbiased = args.at("correction").get<int>() == 1;
    if (!args.contains("dims")) return Tensors{var(in[0], {}, unbiased)};
    return Tensors{var(in[0], Dims(shape(args["dims"])), unbiased, args.at("keepdim").get<bool>())};
  };
  unary(table, "norm", norm);
  unary(table, "max", max);
  unary(table, "min", min);
  table["max_dim"] = [](const Tensors& in, const Json& args, DType) {
    return list(max(in[0], args.at("dim").get<int64_t>(), args.at("keepdim").get<bool>()));
  };
  table["min_dim"] = [](const Tensors& in, const Json& args, DType) {
    return list(min(in[0], args.at("dim").get<int64_t>(), args.at("keepdim").get<bool>()));
  };
  table["argmax"] = [](const Tensors& in, const Json& args, DType) {
    if (!args.contains("dim")) return Tensors{argmax(in[0])};
    return Tensors{argmax(in[0], args["dim"].get<int64_t>(), args.at("keepdim").get<bool>())};
  };
  table["argmin"] = [](const Tensors& in, const Json& args, DType) {
    if (!args.contains("dim")) return Tensors{argmin(in[0])};
    return Tensors{argmin(in[0], args["dim"].get<int64_t>(), args.at("keepdim").get<bool>())};
  };
}

inline int64_t integer(const Json& args, const char* name) { return args.at(name).get<int64_t>(); }

inline void add_shapes(OpTable& table) {
  table["view"] = [](const Tensors& in, const Json& a, DType) { return Tensors{view(in[0], shape(a.at("shape")))}; };
  table["reshape"] = [](const Tensors& in, const Json& a, DType) {
    Tensor x = in[0];
    if (a.contains("transpose")) x = transpose(x, a["transpose"][0].get<int64_t>(), a["transpose"][1].get<int64_t>());
    if (a.contains("expand")) x = expand(x, shape(a["expand"]));
    return Tensors{reshape(x, shape(a.at("shape")))};
  };
  table["flatten"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{flatten(in[0], integer(a, "start"), integer(a, "end"))};
  };
  table["permute"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{permute(in[0], shape(a.at("dims")))};
  };
  table["contiguous"] = [](const Tensors& in, const Json& a, DType) {
    Tensor y = contiguous(permute(in[0], shape(a.at("permute"))));
    CHECK(y.is_contiguous());
    return Tensors{y};
  };
  table["transpose"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{transpose(in[0], integer(a, "dim0"), integer(a, "dim1"))};
  };
  table["t"] = [](const Tensors& in, const Json&, DType) { return Tensors{in[0].t()}; };
  table["expand"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{expand(in[0], shape(a.at("shape")))};
  };
  table["squeeze"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{a.contains("dim") ? squeeze(in[0], integer(a, "dim")) : squeeze(in[0])};
  };
  table["unsqueeze"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{unsqueeze(in[0], integer(a, "dim"))};
  };
  table["slice"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{slice(in[0], integer(a, "dim"), integer(a, "start"), integer(a, "end"), integer(a, "step"))};
  };
  table["narrow"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{narrow(in[0], integer(a, "dim"), integer(a, "start"), integer(a, "length"))};
  };
  table["select"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{select(in[0], integer(a, "dim"), integer(a, "index"))};
  };
  table["cat"] = [](const Tensors& in, const Json& a, DType) { return Tensors{cat(in, integer(a, "dim"))}; };
  table["stack"] = [](const Tensors& in, const Json& a, DType) { return Tensors{stack(in, integer(a, "dim"))}; };
  table["split"] = [](const Tensors& in, const Json& a, DType) {
    if (a.contains("sizes")) return split(in[0], integers(a["sizes"]), integer(a, "dim"));
    return split(in[0], integer(a, "size"), integer(a, "dim"));
  };
  table["chunk"] = [](const Tensors& in, const Json& a, DType) {
    return chunk(in[0], integer(a, "chunks"), integer(a, "dim"));
  };
  table["flip"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{flip(in[0], Dims(shape(a.at("dims"))))};
  };
  table["triu"] = [](const Tensors& in, const Json& a, DType) { return Tensors{triu(in[0], integer(a, "diagonal"))}; };
  table["tril"] = [](const Tensors& in, const Json& a, DType) { return Tensors{tril(in[0], integer(a, "diagonal"))}; };

  table["arange"] = [](const Tensors&, const Json& a, DType) {
    return Tensors{arange(integer(a, "start"), integer(a, "end"), integer(a, "step"))};
  };
  table["arange_float"] = [](const Tensors&, const Json& a, DType floating) {
    return Tensors{arange(a.at("start").get<double>(), a.at("end").get<double>(), a.at("step").get<double>(),
                          TensorOptions(floating))};
  };
  table["linspace"] = [](const Tensors&, const Json& a, DType floating) {
    return Tensors{linspace(a.at("start").get<double>(), a.at("end").get<double>(), integer(a, "count"), floating)};
  };
  table["eye"] = [](const Tensors&, const Json& a, DType floating) {
    return Tensors{a.contains("m") ? eye(integer(a, "n"), integer(a, "m"), floating) : eye(integer(a, "n"), floating)};
  };
  table["zeros"] = [](const Tensors&, const Json& a, DType floating) {
    return Tensors{zeros(shape(a.at("shape")), floating)};
  };
  table["ones"] = [](const Tensors&, const Json& a, DType floating) {
    return Tensors{ones(shape(a.at("shape")), floating)};
  };
  table["full"] = [](const Tensors&, const Json& a, DType floating) {
    return Tensors{full(shape(a.at("shape")), a.at("value").get<double>(), floating)};
  };
  table["zeros_like"] = [](const Tensors& in, const Json&, DType) { return Tensors{zeros_like(in[0])}; };
  table["ones_like"] = [](const Tensors& in, const Json&, DType) { return Tensors{ones_like(in[0])}; };
  table["full_like"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{full_like(in[0], a.at("value").get<double>())};
  };
}

inline void add_indexing_and_products(OpTable& table) {
  table["gather"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{gather(in[0], integer(a, "dim"), in[1])};
  };
  table["scatter_add"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{scatter_add(in[0], integer(a, "dim"), in[1], in[2])};
  };
  table["index_select"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{index_select(in[0], integer(a, "dim"), in[1])};
  };
  table["index_add"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{index_add(in[0], integer(a, "dim"), in[1], in[2])};
  };
  table["embedding"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{embedding(in[1], in[0], a.value("padding_idx", int64_t{-1}))};
  };
  table["one_hot"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{one_hot(in[0], a.value("classes", int64_t{-1}))};
  };
  table["matmul"] = [](const Tensors& in, const Json& a, DType) {
    Tensor left = a.value("transpose_left", false) ? in[0].transpose(-1, -2) : in[0];
    Tensor right = a.value("transpose_right", false) ? in[1].transpose(-1, -2) : in[1];
    return Tensors{matmul(left, right)};
  };
  table["linear"] = [](const Tensors& in, const Json&, DType) {
    return Tensors{linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor())};
  };
}

inline Reduction loss_reduction(const Json& args) {
  std::string name = args.at("reduction").get<std::string>();
  return name == "mean" ? Reduction::mean : name == "sum" ? Reduction::sum : Reduction::none;
}

inline AttentionOptions attention_options(const Tensors& in, const Json& args) {
  AttentionOptions options;
  size_t next = 3;  // after query, key and value
  if (args.value("mask", false)) options.mask = in.at(next++);
  if (args.value("key_mask", false)) options.key_mask = in.at(next++);
  options.causal = args.value("causal", false);
  if (args.contains("scale")) options.scale = args["scale"].get<double>();
  return options;
}

inline void add_neural(OpTable& table) {
  table["softmax"] = [](const Tensors& in, const Json& a, DType) { return Tensors{softmax(in[0], integer(a, "dim"))}; };
  table["log_softmax"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{log_softmax(in[0], integer(a, "dim"))};
  };
  table["layer_norm"] = [](const Tensors& in, const Json& a, DType) {
    Shape over = shape(a.at("normalized_shape"));
    if (in.size() == 1) return Tensors{layer_norm(in[0], over, {}, {}, a.at("eps").get<double>())};
    return Tensors{layer_norm(in[0], over, in[1], in[2], a.at("eps").get<double>())};
  };
  table["rms_norm"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{
        rms_norm(in[0], shape(a.at("normalized_shape")), in.size() > 1 ? in[1] : Tensor(), a.at("eps").get<double>())};
  };
  table["mse_loss"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{mse_loss(in[0], in[1], loss_reduction(a))};
  };
  table["kl_div"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{kl_div(in[0], in[1], loss_reduction(a))};
  };
  table["binary_cross_entropy_with_logits"] = [](const Tensors& in, const Json& a, DType) {
    BceOptions options;
    options.reduction = loss_reduction(a);
    if (a.value("weight", false)) options.weight = in.at(2);
    if (a.value("pos_weight", false)) options.pos_weight = in.at(2);
    return Tensors{binary_cross_entropy_with_logits(in[0], in[1], options)};
  };
  table["cross_entropy"] = [](const Tensors& in, const Json& a, DType) {
    CrossEntropyOptions options;
    options.weight = in.size() > 2 ? in[2] : Tensor();
    options.ignore_index = integer(a, "ignore_index");
    options.label_smoothing = a.at("label_smoothing").get<double>();
    options.reduction = loss_reduction(a);
    return Tensors{cross_entropy(in[0], in[1], options)};
  };
  table["nll_loss"] = [](const Tensors& in, const Json& a, DType) {
    NllLossOptions options;
    options.weight = in.size() > 2 ? in[2] : Tensor();
    options.ignore_index = integer(a, "ignore_index");
    options.reduction = loss_reduction(a);
    return Tensors{nll_loss(in[0], in[1], options)};
  };
  table["scaled_dot_product_attention"] = [](const Tensors& in, const Json& a, DType) {
    return Tensors{scaled_dot_product_attention(in[0], in[1], in[2], attention_options(in, a))};
  };
  table["scaled_dot_product_attention_with_weights"] = [](const Tensors& in, const Json& a, DType) {
    return list(scaled_dot_product_attention_with_weights(in[0], in[1], in[2], attention_options(in, a)));
  };
}

inline const OpTable& op_table() {
  static const OpTable rows = [] {
    OpTable made;
    add_elementwise(made);
    add_reductions(made);
    add_shapes(made);
    add_indexing_and_products(made);
    add_neural(made);
    return made;
  }();
  return rows;
}

}  // namespace reference
