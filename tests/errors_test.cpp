// A table of mistakes: which exception each gives, what its message must name, and that it changes nothing.
#include <catch2/catch.hpp>

#include <cstring>
#include <functional>
#include <iostream>

#include <regard/regard.hpp>

namespace errors_test {

using namespace regard;
using namespace regard::layers;

namespace {

enum class Kind { shape, dtype, device, index, value, graph };

template <class E>
bool is(const std::exception& error) {
  return dynamic_cast<const E*>(&error) != nullptr;
}
bool is_of(Kind kind, const std::exception& error) {
  switch (kind) {
    case Kind::shape:
      return is<ShapeError>(error);
    case Kind::dtype:
      return is<DTypeError>(error);
    case Kind::device:
      return is<DeviceError>(error);
    case Kind::index:
      return is<IndexError>(error);
    case Kind::value:
      return is<ValueError>(error);
    case Kind::graph:
      return is<GraphError>(error);
  }
  return false;
}

/// What the calls of the table work on; none of it may change.
struct Bench {
  Tensor x = arange(6, DType::f32).view({2, 3});  // f32 [2, 3]
  Tensor wide = ones({2, 3}, DType::f64);
  Tensor whole = arange(6).view({2, 3});  // i64
  Tensor truth = x > 2;
  Tensor half = x.to(DType::bf16);
  Tensor number = scalar_tensor(1.5);
  Tensor vector = arange(4, DType::f32);
  Tensor cube = arange(24, DType::f32).view({2, 3, 4});
  Tensor nothing = zeros({0, 3});
  Tensor row = ones({1, 3}).expand({2, 3});  // its rows are one
  Tensor leaf = ones({2, 3}).set_requires_grad();
  Tensor computed = leaf * 2.0;
  Tensor undefined;
  Linear linear{3, 2};
  LayerNorm norm{3};
  Embedding tokens{5, 3};
  MultiHeadAttention attention{4, 2};
  LearnedPositionalEncoding positions{3, 4};
  TransformerEncoderLayer block{4, 2};
  Sequential sequence{Linear(3, 4), GELU(), Linear(4, 2)};
  Tensor words = from_vector<int64_t>({0, 4, 5}, {3});
  Tensor targets = from_vector<int64_t>({0, 2});
  Tensor tokens3 = zeros({2, 3, 4});

  Tensors all() const {
    Tensors list{x,       wide, whole, truth,    half,  number,  vector, cube,
                 nothing, row,  leaf,  computed, words, targets, tokens3};
    for (const Layer* layer : {static_cast<const Layer*>(&linear), static_cast<const Layer*>(&norm),
                               static_cast<const Layer*>(&tokens), static_cast<const Layer*>(&attention),
                               static_cast<const Layer*>(&block), static_cast<const Layer*>(&sequence)})
      for (const Tensor& p : layer->parameters()) list.push_back(p);
    return list;
  }
};

/// Everything that a failed call could have changed.
struct State {
  std::vector<std::vector<char>> bytes;
  std::vector<uint32_t> versions;
  std::vector<bool> requires_grad, has_grad;
  uint64_t drawn = default_generator().offset();
  bool recording = grad_enabled();
  friend bool operator==(const State&, const State&) = default;
};
State state_of(const Bench& bench) {
  State state;
  for (const Tensor& x : bench.all()) {
    std::vector<char> bytes(static_cast<size_t>(x.is_contiguous() ? x.numel() * element_size(x.dtype()) : 0));
    if (!bytes.empty()) std::memcpy(bytes.data(), x.raw_data(), bytes.size());
    state.bytes.push_back(std::move(bytes));
    state.versions.push_back(x.version());
    state.requires_grad.push_back(x.requires_grad());
    state.has_grad.push_back(x.grad().defined());
  }
  return state;
}

struct Mistake {
  const char* subject;
  Kind kind;
  std::vector<const char*> pieces;
  std::function<void(Bench&)> call;
};

using B = Bench&;

std::vector<Mistake> mistakes_with_ops() {
  return {
      // Arithmetic
      {"add: shapes", Kind::shape, {"add", "[2, 3]", "[4]", "broadcast"}, [](B b) { add(b.x, b.vector); }},
      {"sub: shapes", Kind::shape, {"sub", "[2, 3]", "[2, 3, 4]"}, [](B b) { b.x - b.cube; }},
      {"add: dtypes", Kind::dtype, {"add", "f32", "f64", "to()"}, [](B b) { b.x + b.wide; }},
      {"mul: storage dtype", Kind::dtype, {"mul", "bf16", "to(DType::f32)"}, [](B b) { b.half* b.half; }},
      {"add: storage dtype and a number", Kind::dtype, {"add", "bf16"}, [](B b) { b.half + 1.0; }},
      {"div: undefined", Kind::value, {"div", "'b'", "undefined"}, [](B b) { b.x / b.undefined; }},
      {"mul: undefined", Kind::value, {"mul", "undefined"}, [](B b) { b.undefined * 2.0; }},
      {"maximum: dtypes", Kind::dtype, {"maximum", "f64", "f32"}, [](B b) { maximum(b.wide, b.x); }},
      {"neg: boolean", Kind::dtype, {"neg", "bool"}, [](B b) { neg(b.truth); }},
      {"pow: negative integer exponent", Kind::value, {"pow", "-1"}, [](B b) { pow(b.whole, -1); }},
      {"pow: shapes", Kind::shape, {"pow", "[4]"}, [](B b) { pow(b.x, b.vector); }},
      {"in an 9th dimension",
       Kind::shape,
       {"9 dimensions", "8"},
       [](B b) {
         b.x.reshape({1, 1, 1, 1, 1, 1, 1, 2, 3});
       }},
      // Functions of one tensor
      {"exp: integers", Kind::dtype, {"exp", "'x'", "i64", "to(DType::f32)"}, [](B b) { exp(b.whole); }},
      {"log: boolean", Kind::dtype, {"log", "bool"}, [](B b) { log(b.truth); }},
      {"sqrt: undefined", Kind::value, {"sqrt", "'x'", "undefined"}, [](B b) { sqrt(b.undefined); }},
      {"tanh: storage dtype", Kind::dtype, {"tanh", "bf16"}, [](B b) { tanh(b.half); }},
      {"gelu: integers", Kind::dtype, {"gelu", "i64"}, [](B b) { gelu(b.whole); }},
      {"clamp: no bound", Kind::value, {"clamp", "neither"}, [](B b) { clamp(b.x, std::nullopt); }},
      {"clamp: NaN", Kind::value, {"clamp", "NaN"}, [](B b) { clamp(b.x, std::nan("")); }},
      {"clamp: half a bound for integers", Kind::dtype, {"clamp", "i64"}, [](B b) { clamp(b.whole, 0.5); }},
      // Comparisons and selection
      {"less: shapes", Kind::shape, {"[2, 3]", "[4]"}, [](B b) { (void)(b.x < b.vector); }},
      {"equal: undefined", Kind::value, {"equal", "undefined"}, [](B b) { equal(b.x, b.undefined); }},
      {"allclose: tolerance", Kind::value, {"allclose", "-1"}, [](B b) { allclose(b.x, b.x, -1); }},
      {"where: float condition", Kind::dtype, {"where", "'condition'", "f32"}, [](B b) { where(b.x, b.x, b.x); }},
      {"where: shapes", Kind::shape, {"where", "[4]"}, [](B b) { where(b.truth, b.x, b.vector); }},
      {"where: dtypes", Kind::dtype, {"where", "f32", "f64"}, [](B b) { where(b.truth, b.x, b.wide); }},
      {"masked_fill: float mask", Kind::dtype, {"masked_fill", "'mask'", "f32"}, [](B b) { masked_fill(b.x, b.x, 0); }},
      {"masked_fill: a larger mask",
       Kind::shape,
       {"masked_fill", "[1, 2, 3]", "[2, 3]"},
       [](B b) { masked_fill(b.x, b.truth.unsqueeze(0), 0); }},
      {"masked_fill: half an integer",
       Kind::dtype,
       {"masked_fill", "i64"},
       [](B b) { masked_fill(b.whole, b.truth, 0.5); }},
      // Reductions
      {"sum: dimension", Kind::index, {"sum", "2", "[2, 3]", "[-2, 1]"}, [](B b) { sum(b.x, 2); }},
      {"sum: dimension twice",
       Kind::value,
       {"sum", "twice", "[2, 3]"},
       [](B b) {
         sum(b.x, {0, -2});
       }},
      {"mean: integers", Kind::dtype, {"mean", "i64", "to("}, [](B b) { mean(b.whole); }},
      {"var: dimension", Kind::index, {"var", "-3"}, [](B b) { var(b.x, -3); }},
      {"max: of nothing", Kind::value, {"max", "[0, 3]", "empty"}, [](B b) { max(b.nothing); }},
      {"max: over an empty dimension", Kind::value, {"max", "[0, 3]"}, [](B b) { max(b.nothing, 0); }},
      {"argmin: dimension", Kind::index, {"argmin", "[2, 3]"}, [](B b) { argmin(b.x, 5); }},
      {"logsumexp: integers", Kind::dtype, {"logsumexp", "i64"}, [](B b) { logsumexp(b.whole, 0); }},
      {"norm: boolean", Kind::dtype, {"norm", "bool"}, [](B b) { norm(b.truth); }},
      {"sum_to: shape", Kind::shape, {"sum_to", "[2, 3]", "[2]"}, [](B b) { sum_to(b.x, {2}); }},
      {"item: several", Kind::shape, {"item", "[2, 3]", "6"}, [](B b) { b.x.item<float>(); }},
      {"item: none", Kind::shape, {"item", "[0, 3]"}, [](B b) { b.nothing.item<float>(); }},
      // Views
      {"view: elements",
       Kind::shape,
       {"view", "[2, 3]", "[4, 2]", "6"},
       [](B b) {
         b.x.view({4, 2});
       }},
      {"view: strides", Kind::shape, {"view", "[3, 2]", "[1, 3]", "[6]", "reshape()"}, [](B b) { b.x.t().view({6}); }},
      {"view: two open sizes",
       Kind::shape,
       {"view", "-1"},
       [](B b) {
         b.x.view({-1, -1});
       }},
      {"reshape: elements", Kind::shape, {"reshape", "[5]"}, [](B b) { b.x.reshape({5}); }},
      {"flatten: order", Kind::shape, {"flatten", "start_dim"}, [](B b) { b.x.flatten(1, 0); }},
      {"permute: too few", Kind::shape, {"permute", "[2, 3]"}, [](B b) { b.x.permute({0}); }},
      {"permute: twice",
       Kind::shape,
       {"permute", "0"},
       [](B b) {
         b.x.permute({0, 0});
       }},
      {"transpose: dimension", Kind::index, {"transpose", "[2, 3]", "2"}, [](B b) { b.x.transpose(0, 2); }},
      {"expand: size",
       Kind::shape,
       {"expand", "[2, 3]", "[4, 3]"},
       [](B b) {
         b.x.expand({4, 3});
       }},
      {"expand: fewer dimensions", Kind::shape, {"expand", "[3]"}, [](B b) { b.x.expand({3}); }},
      {"expand: negative",
       Kind::shape,
       {"expand", "-1"},
       [](B b) {
         b.x.expand({-1, 2, 3});
       }},
      {"squeeze: dimension", Kind::index, {"squeeze"}, [](B b) { b.x.squeeze(2); }},
      {"unsqueeze: dimension", Kind::index, {"unsqueeze", "4", "[-3, 2]"}, [](B b) { b.x.unsqueeze(4); }},
      {"slice: step", Kind::value, {"slice", "-1", "flip()"}, [](B b) { b.x.slice(0, 0, 2, -1); }},
      {"slice: of a number", Kind::index, {"slice", "no dimensions"}, [](B b) { b.number.slice(0); }},
      {"narrow: length", Kind::index, {"narrow", "3", "[2, 3]"}, [](B b) { b.x.narrow(0, 1, 3); }},
      {"select: index", Kind::index, {"select", "2", "[2, 3]"}, [](B b) { b.x[2]; }},
      {"select: of a number", Kind::index, {"select", "no dimensions"}, [](B b) { b.number[0]; }},
      {"split: size", Kind::value, {"split", "0"}, [](B b) { b.x.split(0); }},
      {"split: sizes",
       Kind::shape,
       {"split", "[2, 3]"},
       [](B b) {
         split(b.x, std::vector<int64_t>{1, 1}, 1);
       }},
      {"chunk: none", Kind::value, {"chunk", "0 chunks"}, [](B b) { b.x.chunk(0); }},
      // Joining
      {"cat: nothing", Kind::value, {"cat", "at least one"}, [](B) { cat({}); }},
      {"cat: shapes",
       Kind::shape,
       {"cat", "tensors[1]", "[2, 3, 4]"},
       [](B b) {
         cat({b.x, b.cube});
       }},
      {"cat: dtypes",
       Kind::dtype,
       {"cat", "tensors[1]", "f64"},
       [](B b) {
         cat({b.x, b.wide});
       }},
      {"cat: numbers",
       Kind::shape,
       {"cat", "stack()"},
       [](B b) {
         cat({b.number, b.number});
       }},
      {"cat: undefined",
       Kind::value,
       {"cat", "tensors[1]", "undefined"},
       [](B b) {
         cat({b.x, b.undefined});
       }},
      {"stack: shapes",
       Kind::shape,
       {"stack", "[4]", "[2, 3]", "cat()"},
       [](B b) {
         stack({b.x, b.vector});
       }},
      {"flip: twice",
       Kind::shape,
       {"flip", "twice"},
       [](B b) {
         b.x.flip({0, 0});
       }},
      {"triu: a vector", Kind::shape, {"triu", "[4]"}, [](B b) { b.vector.triu(); }},
      // Indexing
      {"gather: index out of range",
       Kind::index,
       {"gather", "index 3", "position [1, 0]", "[0, 3)", "[2, 3]"},
       [](B b) { gather(b.x, 1, b.whole); }},
      {"gather: dtype", Kind::dtype, {"gather", "'index'", "f32", "i64"}, [](B b) { gather(b.x, 1, b.x); }},
      {"gather: dimensions", Kind::shape, {"gather", "[3]", "[2, 3]"}, [](B b) { gather(b.x, 1, b.words); }},
      {"scatter_add: source",
       Kind::shape,
       {"scatter_add", "[2, 3]", "[1, 3]"},
       [](B b) { scatter_add(b.x, 0, b.whole, b.x[Range(0, 1)]); }},
      {"index_select: index",
       Kind::index,
       {"index_select", "index 4", "position [1]", "[0, 2)", "[2, 3]"},
       [](B b) { index_select(b.x, 0, b.words); }},
      {"index_add: source",
       Kind::shape,
       {"index_add", "[2, 3]", "[3, 4]"},
       [](B b) { index_add(b.cube[0], 0, b.words * 0, b.x); }},
      {"embedding: id",
       Kind::index,
       {"embedding", "id 5", "position [2]", "[0, 5)", "5 rows"},
       [](B b) {
         embedding(b.words, ones({5, 2}));
       }},
      {"embedding: weight",
       Kind::shape,
       {"embedding", "[4]", "[count, width]"},
       [](B b) { embedding(b.words, b.vector); }},
      {"embedding: ids", Kind::dtype, {"embedding", "'ids'", "f32"}, [](B b) { embedding(b.x, b.x); }},
      {"one_hot: classes", Kind::index, {"one_hot", "4", "3 classes"}, [](B b) { one_hot(b.words, 3); }},
      // Matrices
      {"matmul: inner", Kind::shape, {"matmul", "[2, 3]", "[4]", "3 and 4"}, [](B b) { matmul(b.x, b.vector); }},
      {"matmul: batches",
       Kind::shape,
       {"matmul", "batch", "[2]", "[3]"},
       [](B) {
         matmul(ones({2, 1, 1}), ones({3, 1, 1}));
       }},
      {"matmul: a number", Kind::shape, {"matmul", "at least one dimension"}, [](B b) { matmul(b.x, b.number); }},
      {"matmul: dtypes", Kind::dtype, {"matmul", "f32", "f64"}, [](B b) { matmul(b.x, b.wide.t()); }},
      {"matmul: integers", Kind::dtype, {"matmul", "i64"}, [](B b) { matmul(b.whole, b.whole.t()); }},
      {"linear: width",
       Kind::shape,
       {"linear", "[2, 3]", "[5, 4]", "4"},
       [](B b) {
         linear(b.x, ones({5, 4}));
       }},
      {"linear: bias",
       Kind::shape,
       {"linear", "bias", "[4]", "[5]"},
       [](B b) {
         linear(b.x, ones({5, 3}), b.vector);
       }},
      // Softmax, norms, dropout
      {"softmax: dimension", Kind::index, {"softmax", "2", "[2, 3]"}, [](B b) { softmax(b.x, 2); }},
      {"log_softmax: integers", Kind::dtype, {"log_softmax", "i64"}, [](B b) { log_softmax(b.whole, 0); }},
      {"layer_norm: shape", Kind::shape, {"layer_norm", "[4]", "[2, 3]"}, [](B b) { layer_norm(b.x, {4}); }},
      {"layer_norm: weight", Kind::shape, {"layer_norm", "weight", "[4]"}, [](B b) { layer_norm(b.x, {3}, b.vector); }},
      {"layer_norm: eps", Kind::value, {"layer_norm", "eps"}, [](B b) { layer_norm(b.x, {3}, {}, {}, -1); }},
      {"rms_norm: dtypes", Kind::dtype, {"rms_norm", "f32", "f64"}, [](B b) { rms_norm(b.x, {3}, b.wide[0]); }},
      {"dropout: probability", Kind::value, {"dropout", "1.5", "[0, 1]"}, [](B b) { dropout(b.x, 1.5); }},
      {"dropout: NaN", Kind::value, {"dropout", "[0, 1]"}, [](B b) { dropout(b.x, std::nan("")); }},
      {"dropout: integers", Kind::dtype, {"dropout", "i64"}, [](B b) { dropout(b.whole, 0.5); }},
      // Losses
      {"cross_entropy: class",
       Kind::index,
       {"cross_entropy", "target 4", "position [1]", "[0, 3)", "-100"},
       [](B b) {
         cross_entropy(b.x, from_vector<int64_t>({0, 4}));
       }},
      {"cross_entropy: negative class",
       Kind::index,
       {"cross_entropy", "-1"},
       [](B b) {
         cross_entropy(b.x, from_vector<int64_t>({-1, 0}));
       }},
      {"cross_entropy: targets' shape",
       Kind::shape,
       {"cross_entropy", "[2, 3]", "[2]", "[3]"},
       [](B b) { cross_entropy(b.x, b.words * 0); }},
      {"cross_entropy: targets' dtype",
       Kind::dtype,
       {"cross_entropy", "'targets'", "f32"},
       [](B b) { cross_entropy(b.x, b.x[0]); }},
      {"cross_entropy: smoothing",
       Kind::value,
       {"cross_entropy", "label_smoothing", "2"},
       [](B b) { cross_entropy(b.x, b.targets, {.label_smoothing = 2}); }},
      {"cross_entropy: weight",
       Kind::shape,
       {"cross_entropy", "weight", "[4]", "3"},
       [](B b) { cross_entropy(b.x, b.targets, {.weight = b.vector}); }},
      {"nll_loss: class",
       Kind::index,
       {"nll_loss", "3"},
       [](B b) {
         nll_loss(b.x, from_vector<int64_t>({0, 3}));
       }},
      {"mse_loss: shapes never broadcast",
       Kind::shape,
       {"mse_loss", "[2, 3]", "[1, 3]"},
       [](B b) {
         mse_loss(b.x, ones({1, 3}));
       }},
      {"bce: shapes",
       Kind::shape,
       {"binary_cross_entropy_with_logits", "[3]"},
       [](B b) { binary_cross_entropy_with_logits(b.x, ones({3})); }},
      {"bce: pos_weight",
       Kind::shape,
       {"pos_weight", "[4]"},
       [](B b) { binary_cross_entropy_with_logits(b.x, b.x, {.pos_weight = b.vector}); }},
      {"kl_div: dtypes", Kind::dtype, {"kl_div", "f32", "f64"}, [](B b) { kl_div(b.x, b.wide); }},
      // Attention
      {"attention: widths",
       Kind::shape,
       {"scaled_dot_product_attention", "[2, 3, 4]", "[2, 3, 5]"},
       [](B b) {
         scaled_dot_product_attention(b.cube, ones({2, 3, 5}), b.cube);
       }},
      {"attention: keys and values",
       Kind::shape,
       {"[2, 2, 4]", "value"},
       [](B b) {
         scaled_dot_product_attention(b.cube, b.cube, ones({2, 2, 4}));
       }},
      {"attention: mask of another shape",
       Kind::shape,
       {"mask", "[2, 3]", "[3, 3]"},
       [](B b) { scaled_dot_product_attention(b.cube, b.cube, b.cube, {.mask = b.truth}); }},
      {"attention: mask of three dimensions",
       Kind::shape,
       {"mask", "3 dimensions"},
       [](B b) {
         scaled_dot_product_attention(b.cube, b.cube, b.cube, {.mask = ones({2, 3, 3}, DType::boolean)});
       }},
      {"attention: key mask",
       Kind::shape,
       {"key_mask", "[3, 2]", "[2, 3]"},
       [](B b) { scaled_dot_product_attention(b.cube, b.cube, b.cube, {.key_mask = b.truth.t()}); }},
      {"attention: float key mask",
       Kind::dtype,
       {"key_mask", "f32"},
       [](B b) { scaled_dot_product_attention(b.cube, b.cube, b.cube, {.key_mask = b.x}); }},
      {"attention: dropout",
       Kind::value,
       {"dropout", "-0.5"},
       [](B b) { scaled_dot_product_attention(b.cube, b.cube, b.cube, {.dropout = -0.5}); }},
      {"attention: dtypes",
       Kind::dtype,
       {"query", "f32", "f64"},
       [](B b) { scaled_dot_product_attention(b.cube, b.cube.to(DType::f64), b.cube); }},
      {"attention: a vector",
       Kind::shape,
       {"query", "[4]"},
       [](B b) { scaled_dot_product_attention(b.vector, b.vector, b.vector); }},
      // Undefined tensors, methods
      {"shape of an undefined tensor", Kind::value, {"shape", "undefined"}, [](B b) { b.undefined.shape(); }},
      {"data: another type", Kind::dtype, {"f32", "f64", "to()"}, [](B b) { b.x.data<double>(); }},
      {"t: a cube", Kind::shape, {"t", "[2, 3, 4]"}, [](B b) { b.cube.t(); }},
      {"size: dimension", Kind::index, {"size", "7"}, [](B b) { b.x.size(7); }},
      {"index: too many",
       Kind::index,
       {"index", "[2, 3]"},
       [](B b) {
         b.x.index({0, 0, 0});
       }},
  };
}

std::vector<Mistake> mistakes_of_creation() {
  return {
      {"zeros: negative size",
       Kind::shape,
       {"zeros", "[2, -3]"},
       [](B) {
         zeros({2, -3});
       }},
      {"empty: too large",
       Kind::shape,
       {"empty", "[4294967296, 4294967296]"},
       [](B) {
         empty({1LL << 32, 1LL << 32});
       }},
      {"zeros: too large beside an empty size",
       Kind::shape,
       {"zeros"},
       [](B) {
         zeros({0, 1LL << 32, 1LL << 32});
       }},
      {"from_vector: count",
       Kind::shape,
       {"from_vector", "3", "[2, 2]"},
       [](B) {
         from_vector<float>({1, 2, 3}, {2, 2});
       }},
      {"arange: step 0", Kind::value, {"arange", "step is 0"}, [](B) { arange(0, 5, 0); }},
      {"arange: endless", Kind::value, {"arange"}, [](B) { arange(0.0, std::numeric_limits<double>::infinity()); }},
      {"arange: boolean", Kind::dtype, {"arange", "bool"}, [](B) { arange(3, DType::boolean); }},
      {"linspace: steps", Kind::value, {"linspace", "-1"}, [](B) { linspace(0, 1, -1); }},
      {"linspace: integers", Kind::dtype, {"linspace", "i64"}, [](B) { linspace(0, 1, 3, DType::i64); }},
      {"eye: negative", Kind::shape, {"eye", "-1"}, [](B) { eye(-1); }},
      {"from_blob: null", Kind::value, {"from_blob", "null"}, [](B) { from_blob<float>(nullptr, {2}); }},
      {"zeros_like: undefined", Kind::value, {"zeros_like", "undefined"}, [](B b) { zeros_like(b.undefined); }},
      {"Shape: nine sizes",
       Kind::shape,
       {"Shape", "9 dimensions"},
       [](B) {
         zeros({1, 1, 1, 1, 1, 1, 1, 1, 1});
       }},
      {"a device that is not there",
       Kind::device,
       {"cuda:0"},
       [](B b) {
         b.x.to(Device{Device::Kind::cuda, 0});
       }},
      {"randn: integers", Kind::dtype, {"randn", "i64"}, [](B) { randn({2}, DType::i64); }},
      {"rand: negative size", Kind::shape, {"[-1]"}, [](B) { rand({-1}); }},
      {"randint: empty range", Kind::value, {"randint", "low 3", "high 3"}, [](B) { randint(3, 3, {2}); }},
      {"randperm: negative", Kind::value, {"randperm", "-2"}, [](B) { randperm(-2); }},
      {"bernoulli: probability", Kind::value, {"bernoulli", "[0, 1]"}, [](B b) { bernoulli(b.x); }},
      {"uniform_: bounds", Kind::value, {"uniform_", "low 2", "high 1"}, [](B b) { uniform_(b.x, 2, 1); }},
      {"normal_: std", Kind::value, {"normal_", "std -1"}, [](B b) { normal_(b.x, 0, -1); }},
      {"normal_: a leaf that needs a gradient", Kind::graph, {"normal_", "NoGrad"}, [](B b) { normal_(b.leaf, 0, 1); }},
      {"set_num_threads: none", Kind::value, {"0"}, [](B) { set_num_threads(0); }},
  };
}

std::vector<Mistake> mistakes_in_place_and_with_graphs() {
  return {
      {"add_: expanded", Kind::value, {"add_", "[2, 3]", "share memory", "clone()"}, [](B b) { b.row.add_(1); }},
      {"copy_: expanded", Kind::value, {"copy_", "share memory"}, [](B b) { b.row.copy_(b.x); }},
      {"zero_: expanded", Kind::value, {"fill_", "share memory"}, [](B b) { b.row.zero_(); }},
      {"add_: a leaf", Kind::graph, {"add_", "requires a gradient", "NoGrad"}, [](B b) { b.leaf.add_(1); }},
      {"mul_: computed", Kind::graph, {"mul_", "'mul'", "detach()"}, [](B b) { b.computed.mul_(2); }},
      {"fill_: computed under NoGrad",
       Kind::graph,
       {"fill_", "part of a graph"},
       [](B b) {
         NoGrad no_grad;
         b.computed.fill_(0);
       }},
      {"add_: would grow", Kind::shape, {"add_", "[2, 3, 4]", "[2, 3]"}, [](B b) { b.x.add_(b.cube); }},
      {"sub_: dtypes", Kind::dtype, {"sub_", "f64", "f32", "to()"}, [](B b) { b.x.sub_(b.wide); }},
      {"add_: a float into integers", Kind::dtype, {"add_", "i64"}, [](B b) { b.whole.add_(0.5); }},
      {"div_: integers", Kind::dtype, {"div_", "i64", "quotient"}, [](B b) { b.whole.div_(2); }},
      {"mul_: boolean", Kind::dtype, {"mul_", "bool"}, [](B b) { b.truth.mul_(b.truth); }},
      {"add_: scaled integers", Kind::dtype, {"add_", "i64"}, [](B b) { b.whole.add_(b.whole, 2); }},
      {"copy_: shape", Kind::shape, {"copy_", "[4]", "[2, 3]"}, [](B b) { b.x.copy_(b.vector); }},
      {"copy_: undefined", Kind::value, {"copy_", "'source'", "undefined"}, [](B b) { b.x.copy_(b.undefined); }},
      {"fill_: undefined", Kind::value, {"fill_", "undefined"}, [](B b) { b.undefined.fill_(0); }},
      {"backward: several numbers", Kind::shape, {"backward", "[2, 3]", "sum"}, [](B b) { b.computed.backward(); }},
      {"backward: nothing needs it",
       Kind::graph,
       {"backward", "set_requires_grad()"},
       [](B b) { sum(b.x).backward(); }},
      {"backward: under NoGrad",
       Kind::graph,
       {"backward", "NoGrad"},
       [](B b) {
         Tensor y;
         {
           NoGrad no_grad;
           y = sum(b.leaf);
         }
         y.backward();
       }},
      {"backward: gradient's shape",
       Kind::shape,
       {"backward", "[4]", "[2, 3]"},
       [](B b) { b.computed.backward(b.vector); }},
      {"backward: gradient's dtype", Kind::dtype, {"backward", "f64", "f32"}, [](B b) { b.computed.backward(b.wide); }},
      {"grad: an input that needs none",
       Kind::graph,
       {"grad", "input 0", "[2, 3]"},
       [](B b) { grad(sum(b.computed), {b.x}); }},
      {"grad: an input that is not used",
       Kind::graph,
       {"grad", "input 1", "allow_unused"},
       [](B b) {
         grad(sum(b.computed), {b.leaf, ones({2}).set_requires_grad()});
       }},
      {"grad: an undefined input",
       Kind::value,
       {"grad", "undefined"},
       [](B b) { grad(sum(b.computed), {b.undefined}); }},
      {"grad: gradients for two outputs",
       Kind::shape,
       {"grad", "1", "2 outputs"},
       [](B b) {
         grad({sum(b.computed), sum(b.leaf)}, {b.leaf}, {.grad_outputs = {ones({})}});
       }},
      {"set_requires_grad: integers",
       Kind::dtype,
       {"set_requires_grad", "i64"},
       [](B b) { b.whole.set_requires_grad(); }},
      {"set_requires_grad: off where computed",
       Kind::graph,
       {"set_requires_grad", "detach()"},
       [](B b) { b.computed.set_requires_grad(false); }},
      {"set_grad: shape", Kind::shape, {"set_grad", "[4]", "[2, 3]"}, [](B b) { b.leaf.set_grad(b.vector); }},
      {"register_hook: no gradient",
       Kind::graph,
       {"register_hook", "set_requires_grad()"},
       [](B b) { b.x.register_hook([](const Tensor& g) { return g; }); }},
      {"accumulate hook: not a leaf",
       Kind::graph,
       {"leaf"},
       [](B b) { b.computed.register_post_accumulate_grad_hook([](const Tensor&) {}); }},
      {"backward twice",
       Kind::graph,
       {"backward", "earlier backward", "retain_graph", "detach()"},
       [](B) {
         Tensor x = ones({2}).set_requires_grad();
         Tensor y = sum(x * x);
         y.backward();
         y.backward();
       }},
      {"saved tensor changed",
       Kind::graph,
       {"exp", "[1]", "in place", "version 0", "version 1"},
       [](B) {
         Tensor x = zeros({1}).set_requires_grad();
         Tensor y = exp(x);
         y.detach().mul_(2);
         sum(y).backward();
       }},
      {"saved input changed",
       Kind::graph,
       {"mul", "[2]", "in place"},
       [](B) {
         Tensor x = ones({2}).set_requires_grad(), w = ones({2});
         Tensor y = sum(x * w);
         w.add_(1);
         y.backward();
       }},
      {"custom_op: gradients' number",
       Kind::graph,
       {"mine", "2", "1 inputs"},
       [](B) {
         Tensor x = ones({2}).set_requires_grad();
         sum(custom_op(
                 "mine", {x}, [](const Tensors& in) { return in[0] * 2.0; },
                 [](const Tensors&, const Tensor& g) {
                   return Tensors{g, g};
                 }))
             .backward();
       }},
      {"custom_op: a gradient's shape",
       Kind::shape,
       {"mine", "input 0", "[3]", "[2]"},
       [](B) {
         Tensor x = ones({2}).set_requires_grad();
         sum(custom_op(
                 "mine", {x}, [](const Tensors& in) { return in[0] * 2.0; },
                 [](const Tensors&, const Tensor&) { return Tensors{ones({3})}; }))
             .backward();
       }},
      {"custom_op: a gradient's dtype",
       Kind::dtype,
       {"mine", "input 0", "f64", "f32"},
       [](B) {
         Tensor x = ones({2}).set_requires_grad();
         sum(custom_op(
                 "mine", {x}, [](const Tensors& in) { return in[0] * 2.0; },
                 [](const Tensors&, const Tensor& g) { return Tensors{g.to(DType::f64)}; }))
             .backward();
       }},
      {"hook: another shape",
       Kind::shape,
       {"hook", "[3]", "[2]"},
       [](B) {
         Tensor x = ones({2}).set_requires_grad();
         x.register_hook([](const Tensor&) { return ones({3}); });
         sum(x * 2.0).backward();
       }},
      {"gradcheck: f32",
       Kind::dtype,
       {"gradcheck", "f32", "f64"},
       [](B b) { gradcheck([](const Tensors& in) { return in[0] * 2.0; }, {b.leaf}); }},
      {"gradcheck: nothing to check",
       Kind::value,
       {"gradcheck"},
       [](B b) { gradcheck([](const Tensors& in) { return in[0] * 2.0; }, {b.wide}); }},
  };
}

std::vector<Mistake> mistakes_with_layers() {
  return {
      {"Linear: width",
       Kind::shape,
       {"linear", "[2, 4]", "[2, 3]", "(in Linear(3, 2))"},
       [](B b) {
         b.linear(ones({2, 4}));
       }},
      {"Linear: dtype", Kind::dtype, {"linear", "f64", "f32", "Linear"}, [](B b) { b.linear(b.wide); }},
      {"Linear: sizes", Kind::value, {"Linear", "0"}, [](B) { Linear(0, 3); }},
      {"LayerNorm: width",
       Kind::shape,
       {"layer_norm", "[3]", "[2, 4]", "LayerNorm"},
       [](B b) {
         b.norm(ones({2, 4}));
       }},
      {"LayerNorm: size", Kind::value, {"LayerNorm", "-1"}, [](B) { LayerNorm(-1); }},
      {"RMSNorm: size", Kind::value, {"RMSNorm", "0"}, [](B) { RMSNorm(0); }},
      {"Embedding: id", Kind::index, {"embedding", "5", "Embedding(5, 3)"}, [](B b) { b.tokens(b.words); }},
      {"Embedding: dtype", Kind::dtype, {"ids", "f32"}, [](B b) { b.tokens(b.x); }},
      {"Embedding: padding", Kind::value, {"padding_idx 5", "[0, 5)"}, [](B) { Embedding(5, 3, 5); }},
      {"Dropout: probability", Kind::value, {"Dropout", "2"}, [](B) { Dropout(2); }},
      {"MultiHeadAttention: heads", Kind::value, {"10", "3", "divisible"}, [](B) { MultiHeadAttention(10, 3); }},
      {"MultiHeadAttention: no heads", Kind::value, {"num_heads 0"}, [](B) { MultiHeadAttention(4, 0); }},
      {"MultiHeadAttention: width", Kind::shape, {"[2, 3]", "[4, 4]", "(in query)"}, [](B b) { b.attention(b.x); }},
      {"MultiHeadAttention: dimensions",
       Kind::shape,
       {"[4]", "[batch, length, width]"},
       [](B b) { b.attention(b.vector); }},
      {"MultiHeadAttention: lengths",
       Kind::shape,
       {"key", "value", "[2, 1, 4]"},
       [](B b) {
         b.attention(b.tokens3, b.tokens3, ones({2, 1, 4}));
       }},
      {"MultiHeadAttention: undefined", Kind::value, {"'query'", "undefined"}, [](B b) { b.attention(b.undefined); }},
      {"positions: too long",
       Kind::shape,
       {"positional encoding", "[5, 4]", "3", "max_length"},
       [](B b) {
         b.positions(ones({5, 4}));
       }},
      {"positions: offset",
       Kind::shape,
       {"offset 2"},
       [](B b) {
         b.positions(ones({2, 4}), 2);
       }},
      {"positions: a huge offset",
       Kind::shape,
       {"offset"},
       [](B b) {
         b.positions(ones({2, 4}), INT64_MAX);
       }},
      {"positions: negative offset",
       Kind::value,
       {"offset -1"},
       [](B b) {
         b.positions(ones({2, 4}), -1);
       }},
      {"TransformerEncoderLayer: width",
       Kind::shape,
       {"[2, 3, 5]", "norm1"},
       [](B b) {
         b.block.parameters();
         b.block(ones({2, 3, 5}));
       }},
      {"TransformerEncoderLayer: mask",
       Kind::shape,
       {"mask", "[2, 2]", "[3, 3]", "(in attention)"},
       [](B b) {
         b.block(b.tokens3, {.mask = ones({2, 2}, DType::boolean)});
       }},
      {"Sequential: inside",
       Kind::shape,
       {"[2, 5]", "(in 0)"},
       [](B b) {
         b.sequence(ones({2, 5}));
       }},
      {"to: a storage dtype", Kind::dtype, {"bf16"}, [](B b) { b.linear.to(DType::bf16); }},
      {"to: a device",
       Kind::device,
       {"cuda"},
       [](B b) {
         b.linear.to(Device{Device::Kind::cuda, 0});
       }},
      {"Parameter: shape",
       Kind::shape,
       {"Parameter", "[3, 2]", "[2, 3]"},
       [](B b) {
         b.linear.weight = ones({3, 2});
       }},
      {"Parameter: a graph", Kind::graph, {"Parameter", "detach()"}, [](B b) { b.linear.weight = b.computed; }},
      {"Parameter: integers", Kind::dtype, {"Parameter", "i64"}, [](B b) { Parameter(b.whole); }},
      {"load_state_dict: nothing fits",
       Kind::value,
       {"missing: bias, weight", "unexpected: w", "nothing was loaded"},
       [](B b) {
         b.linear.load_state_dict({{"w", b.x}});
       }},
      {"load_state_dict: one of two",
       Kind::value,
       {"missing: bias"},
       [](B b) {
         b.linear.load_state_dict({{"weight", b.x}});
       }},
      {"xavier_uniform_: a vector", Kind::shape, {"[4]"}, [](B b) { init::xavier_uniform_(b.vector); }},
      {"trunc_normal_: std", Kind::value, {"trunc_normal_", "std 0"}, [](B b) { init::trunc_normal_(b.x, 0, 0); }},
      {"trunc_normal_: bounds",
       Kind::value,
       {"trunc_normal_", "low 2", "1"},
       [](B b) { init::trunc_normal_(b.x, 0, 1, 2, 1); }},
      {"gradcheck: a layer that drops",
       Kind::value,
       {"not deterministic"},
       [](B b) {
         Dropout dropout(0.5);
         gradcheck(dropout, {ones({16}) + b.x[0][0]});
       }},
      {"clip_grad_norm: negative", Kind::value, {"-1"}, [](B b) { optim::clip_grad_norm(b.linear.parameters(), -1); }},
      {"SGD: Nesterov without momentum",
       Kind::value,
       {"SGD", "momentum"},
       [](B b) { optim::SGD(b.linear.parameters(), {.lr = 1, .nesterov = true}); }},
      {"AdamW: learning rate",
       Kind::value,
       {"AdamW", "-1"},
       [](B b) { optim::AdamW(b.linear.parameters(), {.lr = -1}); }},
      {"Adam: betas",
       Kind::value,
       {"Adam", "1"},
       [](B b) {
         optim::Adam(b.linear.parameters(), {.betas = {0.9, 1.0}});
       }},
  };
}

void run(const std::vector<Mistake>& table, const char* name) {
  for (const Mistake& mistake : table) {
    INFO(mistake.subject);
    Bench bench;
    const State before = state_of(bench);
    const MemoryStats memory = memory_stats();
    std::string message;
    bool right_kind = false, regards = false;
    try {
      mistake.call(bench);
    } catch (const std::exception& error) {
      message = error.what();
      right_kind = is_of(mistake.kind, error);
      regards = is<Error>(error);
    }
    CAPTURE(message);
    CHECK_FALSE(message.empty());
    CHECK(regards);
    CHECK(right_kind);
    for (const char* piece : mistake.pieces) {
      CAPTURE(piece);
      CHECK(message.find(piece) != std::string::npos);
    }
    CHECK(message.find('\n') == std::string::npos);
    CHECK(state_of(bench) == before);
    const MemoryStats after = memory_stats();
    CHECK(after.live_storages == memory.live_storages);
    CHECK(after.live_nodes == memory.live_nodes);
    CHECK(ErrorScope::innermost().empty());
  }
  std::cout << "errors, " << name << ": " << table.size() << " mistakes\n";
}

}  // namespace

TEST_CASE("errors of ops name op, argument, shapes and the way out, and change nothing") {
  run(mistakes_with_ops(), "ops");
}
TEST_CASE("errors of creation and random functions change nothing, nor draw") {
  run(mistakes_of_creation(), "creation");
}
TEST_CASE("errors of in-place methods, backward, grad and hooks change nothing") {
  run(mistakes_in_place_and_with_graphs(), "in place and graphs");
}
TEST_CASE("errors of layers and optimizers name the layer and change nothing") {
  run(mistakes_with_layers(), "layers");
}

TEST_CASE("in place: a size of 1 aliases nothing, whatever its stride") {
  Tensor x = zeros({3});
  Tensor seen = make_view(x, {1, 3}, {0, 1}, 0);
  seen.add_(1);
  CHECK(x.to_vector<float>() == std::vector<float>{1, 1, 1});
  make_view(x, {3, 1, 1}, {1, 0, 5}, 0).mul_(2);
  CHECK(x.to_vector<float>() == std::vector<float>{2, 2, 2});
  zeros({0, 3}).expand({2, 0, 3}).add_(1);  // nothing to alias
}

TEST_CASE("after an error the same tensors work as before") {
  Bench b;
  CHECK_THROWS_AS(matmul(b.leaf, b.vector), ShapeError);
  sum(matmul(b.leaf, ones({3, 2}))).backward();
  CHECK(b.leaf.grad().to_vector<float>() == std::vector<float>(6, 2));
  Tensor x = ones({2}).set_requires_grad();
  HookHandle handle = x.register_hook([](const Tensor&) -> Tensor { throw ValueError("hook: mine"); });
  CHECK_THROWS_AS(sum(x * x).backward(), ValueError);
  CHECK_FALSE(x.grad().defined());
  handle.remove();
  sum(x * x).backward();
  CHECK(x.grad().to_vector<float>() == std::vector<float>{2, 2});
}

}  // namespace errors_test
