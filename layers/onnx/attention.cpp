#include <cmath>
#include <limits>
#include <vector>

#include <regard/autograd/ops.hpp>
#include <regard/layers/onnx/layers.hpp>
#include <regard/layers/onnx/scope.hpp>

namespace regard::onnx {

using namespace layers;  // NOLINT(google-build-using-namespace): this file is about them

namespace {

using Integers = std::vector<int64_t>;

// Where the queries [N, L, ...] and keys [N, S, ...] stand, f32 or i64: [L, 1] and [1, S]. The last ones stand
// together.
std::pair<Value, Value> places(Graph& graph, const Value& query, const Value& key) {
  const auto scalar = [&](const Value& size) { return graph.op("Squeeze", {size}); };
  const Value queries = scalar(graph.size(query, 1)), keys = scalar(graph.size(key, 1));
  const Value rows = graph.op("Range", {graph.op("Sub", {keys, queries}), keys, graph.scalar(1)});
  const Value columns = graph.op("Range", {graph.scalar(0), keys, graph.scalar(1)});
  return {graph.op("Unsqueeze", {rows, graph.integers({1})}), graph.op("Unsqueeze", {columns, graph.integers({0})})};
}

Value both(Graph& graph, const Value& a, const Value& b) {
  if (!a.defined()) return b;
  return b.defined() ? graph.op("And", {a, b}) : a;
}

// Projected [N, L, heads D] -> [N, heads, L, D].
Value split_heads(Graph& graph, const Value& x, int64_t heads, int64_t width) {
  const Value split = graph.op("Reshape", {x, graph.integers({0, 0, heads, width})});
  return graph.op("Transpose", {split}, {{"perm", Integers{0, 2, 1, 3}}});
}

// [N, heads, L, D], each head `times` times.
Value repeat_heads(Graph& graph, const Value& x, int64_t heads, int64_t times) {
  if (times == 1) return x;
  Integers which;
  for (int64_t head = 0; head < heads; ++head) which.insert(which.end(), static_cast<size_t>(times), head);
  return graph.op("Gather", {x, graph.integers(which)}, {{"axis", int64_t{1}}});
}

Value slice_last(Graph& graph, const Value& x, int64_t start, int64_t stop, int64_t step) {
  return graph.op("Slice",
                  {x, graph.integers({start}), graph.integers({stop}), graph.integers({-1}), graph.integers({step})});
}

// x [N, H, T, D] turned by the positions 0 to T. The angles are computed here, in double precision as Regard does it.
Value rotated(Graph& graph, const Value& x, const RotaryOptions& options, int64_t head_width, const Value& tokens) {
  const int64_t width = options.width > 0 ? options.width : head_width, pairs = width / 2;
  const auto table = [&](const char* name, double (*function)(double)) {
    const std::string key =
        std::string("rotary_") + name + "_" + std::to_string(pairs) + "_" + std::to_string(options.base);
    const Value all = graph.named_constant(key, [&] {
      std::vector<float> values;
      for (int64_t t = 0; t < graph.longest; ++t)
        for (int64_t j = 0; j < pairs; ++j)
          values.push_back(static_cast<float>(function(
              static_cast<double>(t) * std::pow(options.base, -static_cast<double>(j) / static_cast<double>(pairs)))));
      return from_vector<float>(values, {graph.longest, pairs});
    });
    return graph.op("Slice", {all, graph.integers({0}), graph.size(tokens, 1), graph.integers({0})});  // [T, pairs]
  };
  const Value cosine = table("cosine", std::cos), sine = table("sine", std::sin);
  const Value a = options.interleaved ? slice_last(graph, x, 0, width, 2) : slice_last(graph, x, 0, pairs, 1);
  const Value b = options.interleaved ? slice_last(graph, x, 1, width, 2) : slice_last(graph, x, pairs, width, 1);
  const auto times = [&](const Value& left, const Value& right) { return graph.op("Mul", {left, right}); };
  Value first = graph.op("Sub", {times(a, cosine), times(b, sine)});
  Value second = graph.op("Add", {times(a, sine), times(b, cosine)});
  Value turned;
  if (options.interleaved) {
    const Value last = graph.integers({-1});
    turned = graph.op("Concat", {graph.op("Unsqueeze", {first, last}), graph.op("Unsqueeze", {second, last})},
                      {{"axis", int64_t{-1}}});                                // [N, H, T, pairs, 2]
    turned = graph.op("Reshape", {turned, graph.integers({0, 0, 0, width})});  // [N, H, T, width]
  } else {
    turned = graph.op("Concat", {first, second}, {{"axis", int64_t{-1}}});
  }
  if (width == head_width) return turned;
  return graph.op("Concat", {turned, slice_last(graph, x, width, head_width, 1)}, {{"axis", int64_t{-1}}});
}

}  // namespace

Value causal_mask(Graph& graph, const Value& query, const Value& key) {
  const auto [rows, columns] = places(graph, query, key);
  return graph.op("GreaterOrEqual", {rows, columns});
}

std::pair<Value, Value> apply_with_weights(Graph& graph, const MultiHeadAttention& layer, const Value& query,
                                           const Value& key, const Value& value, const MaskValues& masks) {
  const OpenLayer open(graph, layer);
  const int64_t heads = layer.num_heads, groups = layer.key_value_heads;
  const int64_t width = layer.query.weight.size(0), head_width = width / heads;
  Value q = split_heads(graph, apply(graph, layer.query, query), heads, head_width);
  Value k = split_heads(graph, apply(graph, layer.key, key), groups, head_width);
  Value v = split_heads(graph, apply(graph, layer.value, value), groups, head_width);
  if (layer.rotary) {
    check<ValueError>(query.name == key.name, "onnx",
                      "rotary positions are exported for self-attention only: queries and keys must be one value");
    q = rotated(graph, q, *layer.rotary, head_width, query);
    k = rotated(graph, k, *layer.rotary, head_width, key);
  }
  k = graph.op("Transpose", {repeat_heads(graph, k, groups, heads / groups)}, {{"perm", Integers{0, 1, 3, 2}}});
  v = repeat_heads(graph, v, groups, heads / groups);

  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_width)));
  Value scores = graph.op("MatMul", {graph.op("Mul", {q, graph.number(scale)}), k});  // [N, H, L, S]
  if (layer.alibi.defined()) {
    const auto [rows, columns] = places(graph, query, key);
    const Value distance =
        graph.op("Cast", {graph.op("Abs", {graph.op("Sub", {rows, columns})})}, {{"to", int64_t{1}}});  // [L, S]
    const Value slopes = graph.named_constant(open.path("slopes"), [&] {
      return layer.alibi.to(DType::f32).view({1, heads, 1, 1});
    });
    scores = graph.op("Sub", {scores, graph.op("Mul", {slopes, distance})});
  }
  Value allowed = masks.causal ? causal_mask(graph, query, key) : Value();
  allowed = both(graph, allowed, masks.mask);
  if (masks.key_mask.defined())
    allowed = both(graph, allowed, graph.op("Unsqueeze", {masks.key_mask, graph.integers({1, 2})}));  // [N, 1, 1, S]
  // A row that may attend to nothing gets equal weights from the softmax, and zeros from the second Where.
  if (allowed.defined())
    scores = graph.op("Where", {allowed, scores, graph.number(std::numeric_limits<float>::lowest())});
  Value weights = graph.op("Softmax", {scores}, {{"axis", int64_t{-1}}});
  if (allowed.defined()) weights = graph.op("Where", {allowed, weights, graph.number(0)});
  const Value context = graph.op("Transpose", {graph.op("MatMul", {weights, v})}, {{"perm", Integers{0, 2, 1, 3}}});
  const Value merged = graph.op("Reshape", {context, graph.integers({0, 0, width})});  // [N, L, width]
  return {apply(graph, layer.output, merged), weights};
}

Value apply(Graph& graph, const MultiHeadAttention& layer, const Value& query, const Value& key, const Value& value,
            const MaskValues& masks) {
  return apply_with_weights(graph, layer, query, key, value, masks).first;
}

}  // namespace regard::onnx
