// Attention with a key-value cache: what it gives for the next tokens is what a call without a cache gives for them.
#include <catch2/catch.hpp>

#include <cmath>

#include <regard/regard.hpp>

namespace key_value_cache_test {

using namespace regard;
using namespace regard::layers;
using Catch::Matchers::Contains;

namespace {

double distance(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  return a.numel() == 0 ? 0 : (a.to(DType::f64) - b.to(DType::f64)).abs().max().item<double>();
}
double tolerance(DType dtype) { return dtype == DType::f64 ? 1e-12 : 1e-5; }

struct Variant {
  const char* name;
  MultiHeadAttentionOptions options;
};
std::vector<Variant> variants() {
  return {{"plain", {}},
          {"no bias", {.bias = false}},
          {"grouped", {.key_value_heads = 2}},
          {"one head of keys", {.key_value_heads = 1}},
          {"rotary", {.rotary = true}},
          {"rotary pairs of a part, grouped",
           {.key_value_heads = 2, .rotary = true, .rotary_base = 50, .rotary_interleaved = true, .rotary_width = 2}},
          {"alibi", {.alibi = true}},
          {"alibi, grouped, rotary", {.key_value_heads = 2, .rotary = true, .alibi = true}}};
}

/// The outputs for x [N, T, E] read in pieces of these lengths, of masks over all T.
template <class L, class Masks>
Tensor in_pieces(const L& layer, KeyValueCache& cache, const Tensor& x, const std::vector<int64_t>& pieces,
                 const Masks& masks) {
  NoGrad no_grad;
  Tensors outputs;
  int64_t from = 0;
  for (int64_t piece : pieces) {
    outputs.push_back(layer(x.narrow(-2, from, piece), cache, masks(from, piece)));
    from += piece;
    CHECK(cache.length == from);
  }
  return cat(outputs, -2);
}

/// Restores the number of threads.
struct Threads {
  int former = num_threads();
  Threads() = default;
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { set_num_threads(former); }
};

template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("key-value cache: pieces of any size give what the whole gives, with every option of attention") {
  manual_seed(1);
  const std::vector<std::vector<int64_t>> cuts{{13}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {5, 1, 7}, {1, 12}};
  for (DType dtype : {DType::f32, DType::f64})
    for (const Variant& variant : variants()) {
      MultiHeadAttention attention(16, 4, variant.options);
      attention.to(dtype);
      attention.eval();
      Tensor x = randn({3, 13, 16}, dtype), whole = attention(x, {.causal = true});
      for (const auto& pieces : cuts)
        for (int64_t capacity : {0, 13, 40}) {
          INFO(variant.name << " " << dtype << ", " << pieces.size() << " pieces, capacity " << capacity);
          KeyValueCache cache(capacity);
          Tensor y = in_pieces(attention, cache, x, pieces, [](int64_t, int64_t) { return AttentionMasks{}; });
          CHECK(distance(y, whole) < tolerance(dtype));
        }
    }
}

TEST_CASE("key-value cache: padding on the left and masks over all keys") {
  manual_seed(2);
  const int64_t length = 9;
  Tensor padding = arange(length).unsqueeze(0) >= from_vector<int64_t>({0, 4, 2}, {3, 1});  // [3, 9]
  Tensor allowed = rand({length, length}) < 0.7, added = randn({1, 4, length, length}, DType::f64);
  for (const Variant& variant : variants()) {
    MultiHeadAttention attention(8, 4, variant.options);
    attention.to(DType::f64);
    attention.eval();
    Tensor x = randn({3, length, 8}, DType::f64);
    for (int kind = 0; kind < 3; ++kind) {
      INFO(variant.name << ", kind " << kind);
      const auto masks = [&](int64_t from, int64_t count) {
        const int64_t seen = from + count;
        AttentionMasks m;
        if (kind != 1) m.key_mask = padding.narrow(1, 0, seen);
        if (kind == 1) m.mask = allowed.narrow(0, from, count).narrow(1, 0, seen);
        if (kind == 2) m.mask = added.narrow(2, from, count).narrow(3, 0, seen);
        return m;
      };
      AttentionMasks all = masks(0, length);
      all.causal = true;
      Tensor whole = attention(x, all);
      KeyValueCache cache;
      CHECK(distance(in_pieces(attention, cache, x, {4, 1, 1, 3}, masks), whole) < 1e-12);
    }
  }
}

TEST_CASE("key-value cache: positions are relative: tokens after padding give what they give alone") {
  manual_seed(3);
  for (const MultiHeadAttentionOptions& options :
       {MultiHeadAttentionOptions{}, MultiHeadAttentionOptions{.rotary = true},
        MultiHeadAttentionOptions{.alibi = true}}) {
    MultiHeadAttention attention(8, 2, options);
    attention.to(DType::f64);
    Tensor x = randn({1, 6, 8}, DType::f64), padded = cat({randn({1, 3, 8}, DType::f64), x}, 1);
    NoGrad no_grad;
    KeyValueCache cache;
    Tensor y = attention(padded, cache, {.mask = {}, .key_mask = (arange(9) >= 3).unsqueeze(0)});
    CHECK(distance(y.narrow(1, 3, 6), attention(x, {.causal = true})) < 1e-12);
  }
}

TEST_CASE("key-value cache: without a batch, in a long sequence, on one and two threads to the bit") {
  manual_seed(4);
  const Threads restore;
  NoGrad no_grad;
  MultiHeadAttention attention(32, 4, {.key_value_heads = 2, .rotary = true});
  attention.eval();
  Tensor x = randn({300, 32});
  const auto read = [&](int threads) {
    set_num_threads(threads);
    KeyValueCache cache;
    Tensors y;
    y.push_back(attention(x.narrow(0, 0, 290), cache));
    for (int64_t t = 290; t < 300; ++t) y.push_back(attention(x.narrow(0, t, 1), cache));
    return cat(y, 0);
  };
  Tensor one = read(1);
  CHECK(one.shape() == Shape{300, 32});
  CHECK(distance(one, attention(x, {.causal = true})) < 1e-5);
  CHECK(equal(read(2), one));
}

TEST_CASE("key-value cache: memory is written in place, allocated once with a capacity and by doubling without") {
  NoGrad no_grad;
  MultiHeadAttention attention(8, 2);
  for (int64_t capacity : {100, 0}) {
    KeyValueCache cache(capacity);
    int moves = 0;
    const void* memory = nullptr;
    for (int64_t t = 0; t < 100; ++t) {
      attention(randn({1, 1, 8}), cache);
      if (cache.key.raw_data() != memory) ++moves;
      memory = cache.key.raw_data();
    }
    CHECK(cache.length == 100);
    CHECK(moves == (capacity ? 1 : 4));  // for 16, 32, 64 and 128 tokens
    CHECK(cache.key.size(2) == (capacity ? 100 : 128));
  }
}

TEST_CASE("key-value cache: reorder, truncate and copies") {
  manual_seed(5);
  NoGrad no_grad;
  MultiHeadAttention attention(8, 2, {.rotary = true});
  attention.to(DType::f64);
  Tensor x = randn({3, 5, 8}, DType::f64), next = randn({4, 1, 8}, DType::f64);
  KeyValueCache cache;
  attention(x, cache);
  // Rows 2, 0, 0 and 1 go on; the first three copies keep the state before.
  KeyValueCache copy = cache;
  const Tensor rows = from_vector<int64_t>({2, 0, 0, 1});
  cache.reorder(rows);
  CHECK(cache.key.size(0) == 4);
  Tensor whole = attention(cat({x.index_select(0, rows), next}, 1), {.causal = true});
  CHECK(distance(attention(next, cache), whole.narrow(1, 5, 1)) < 1e-12);
  CHECK(copy.length == 5);
  CHECK(copy.key.size(0) == 3);
  attention(x.narrow(1, 0, 1), copy);
  CHECK(cache.length == 6);

  cache.truncate(5);
  Tensor other = randn({4, 2, 8}, DType::f64);
  whole = attention(cat({x.index_select(0, rows), other}, 1), {.causal = true});
  CHECK(distance(attention(other, cache), whole.narrow(1, 5, 2)) < 1e-12);
  cache.reorder(arange(4));  // as they are
  CHECK(cache.length == 7);
  cache.clear();
  CHECK(cache.length == 0);
  CHECK_FALSE(cache.key.defined());
  cache.reorder(rows);  // of nothing
  KeyValueCache moved = std::move(copy);
  CHECK(moved.length == 6);
  std::vector<KeyValueCache> several(3, KeyValueCache(7));
  CHECK(several[2].capacity == 7);
}

TEST_CASE("key-value cache: errors say what is wrong, and nothing was read then") {
  MultiHeadAttention attention(8, 2);
  attention.eval();
  KeyValueCache cache(4);
  const Tensor x = randn({2, 3, 8});
  CHECK_THAT(message_of([&] { attention(x, cache); }),
             Contains("no gradient goes through a cache") && Contains("NoGrad") && Contains("in MultiHeadAttention(8"));
  CHECK(cache.length == 0);
  NoGrad no_grad;
  attention(x, cache);
  CHECK_THAT(message_of([&] { attention(x, cache); }),
             Contains("holds 3 tokens and is given 3 more") && Contains("capacity 4") && Contains("truncate()"));
  CHECK_THAT(message_of([&] {
               attention(randn({1, 1, 8}), cache);
             }),
             Contains("[2, 2, 3, 4]") && Contains("[1, 2, 1, 4]") && Contains("batch sizes 2 and 1 differ"));
  CHECK_THAT(message_of([&] { MultiHeadAttention(8, 4)(randn({2, 1, 8}), cache); }), Contains("one attention layer"));
  MultiHeadAttention wide(8, 2);
  wide.to(DType::f64);
  CHECK_THAT(message_of([&] { wide(randn({2, 1, 8}, DType::f64), cache); }), Contains("holds f32 and is given f64"));
  CHECK_THAT(message_of([&] {
               attention(randn({2, 1, 8}), cache, {.mask = {}, .key_mask = ones({2, 3}) != 0});
             }),
             Contains("key_mask [2, 3]") && Contains("[2, 4]"));
  CHECK_THAT(message_of([&] { attention(randn({1, 2, 1, 8}), cache); }), Contains("[batch, length, width]"));
  CHECK(cache.length == 3);
  CHECK_THAT(message_of([&] { cache.truncate(4); }), Contains("4 tokens of the 3"));
  CHECK_THAT(message_of([&] { cache.reorder(from_vector<int64_t>({0, 2})); }), Contains("2"));
  CHECK_THROWS_AS(cache.reorder(from_vector<int64_t>({0, 2})), IndexError);
  CHECK_THROWS_AS(cache.reorder(zeros({2})), DTypeError);
  CHECK_THROWS_AS(cache.reorder(zeros({0}, DType::i64)), ShapeError);
  CHECK(cache.key.size(0) == 2);
  CHECK_THROWS_AS(KeyValueCache(-1), ValueError);
}

TEST_CASE("key-value cache: attention over a memory projects it once") {
  manual_seed(6);
  NoGrad no_grad;
  for (const MultiHeadAttentionOptions& options :
       {MultiHeadAttentionOptions{},
        MultiHeadAttentionOptions{.key_width = 6, .value_width = 6, .key_value_heads = 1}}) {
    MultiHeadAttention attention(8, 2, options);
    attention.to(DType::f64);
    attention.eval();
    Tensor memory = randn({2, 20, options.key_width ? 6 : 8}, DType::f64), x = randn({2, 3, 8}, DType::f64);
    const AttentionMasks masks{.mask = {}, .key_mask = rand({2, 20}) < 0.8};
    Tensor whole = attention(x, memory, memory, masks);
    KeyValueCache cache;
    for (int64_t t = 0; t < 3; ++t) {
      Tensor y = attention.attend_cached(x.narrow(1, t, 1), cache, t == 0 ? memory : Tensor(), masks);
      CHECK(distance(y, whole.narrow(1, t, 1)) < 1e-12);
      CHECK(cache.length == 20);
    }
    CHECK(distance(attention.attend_cached(x, cache, memory, masks), whole) < 1e-12);
    // Without a batch.
    KeyValueCache own;
    CHECK(distance(attention.attend_cached(x[1], own, memory[1]), attention(x[1], memory[1], memory[1])) < 1e-12);

    CHECK_THAT(message_of([&] { attention.attend_cached(x, cache, memory.narrow(1, 0, 4)); }),
               Contains("holds 20 tokens of another"));
    CHECK_THAT(message_of([&] { attention.attend_cached(x.narrow(0, 0, 1), cache); }), Contains("cache of batch 2"));
    KeyValueCache empty_cache, small(3);
    CHECK_THAT(message_of([&] { attention.attend_cached(x, empty_cache); }), Contains("no memory to fill it"));
    CHECK_THAT(message_of([&] { attention.attend_cached(x, small, memory); }), Contains("capacity 3"));
    CHECK_THAT(message_of([&] {
                 attention.attend_cached(x, empty_cache, memory, {.mask = {}, .key_mask = ones({2, 2}) != 0});
               }),
               Contains("key_mask [2, 2]"));
    CHECK_FALSE(empty_cache.key.defined());
  }
  MultiHeadAttention rotary(8, 2, {.rotary = true});
  KeyValueCache cache;
  CHECK_THAT(message_of([&] {
               rotary.attend_cached(randn({1, 1, 8}), cache, randn({1, 2, 8}));
             }),
             Contains("rotary and alibi"));
}

TEST_CASE("key-value cache: encoder and decoder layers with caches give what they give without") {
  manual_seed(7);
  for (const TransformerLayerOptions& options :
       {TransformerLayerOptions{}, TransformerLayerOptions{.norm_first = false, .bias = false},
        TransformerLayerOptions{.dropout = 0.3, .key_value_heads = 2, .rotary = true},
        TransformerLayerOptions{.key_value_heads = 1, .alibi = true}}) {
    TransformerEncoderLayer encoder(16, 4, options);
    encoder.to(DType::f64);
    encoder.eval();
    Tensor x = randn({2, 7, 16}, DType::f64), memory = randn({2, 5, 16}, DType::f64);
    KeyValueCache cache;
    Tensor y = in_pieces(encoder, cache, x, {3, 1, 1, 2}, [](int64_t, int64_t) { return AttentionMasks{}; });
    CHECK(distance(y, encoder(x, {.causal = true})) < 1e-12);

    TransformerDecoderLayer decoder(16, 4, options);
    decoder.to(DType::f64);
    decoder.eval();
    DecoderMasks masks;
    masks.cross.key_mask = from_vector<int64_t>({1, 1, 1, 0, 0, 1, 1, 1, 1, 1}, {2, 5});
    Tensor whole = decoder(x, memory, masks);
    NoGrad no_grad;
    DecoderCache both;
    Tensors parts;
    for (auto [from, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 3}, {4, 1}, {5, 2}})
      parts.push_back(decoder(x.narrow(1, from, count), from == 0 ? memory : Tensor(), both, masks));
    CHECK(distance(cat(parts, 1), whole) < 1e-12);
    // Back to three targets, with the rows changed about.
    both.truncate(3);
    const Tensor rows = from_vector<int64_t>({1, 0, 1});
    both.reorder(rows);
    DecoderMasks picked;
    picked.cross.key_mask = masks.cross.key_mask.index_select(0, rows);
    Tensor again = decoder(x.index_select(0, rows).narrow(1, 3, 4), {}, both, picked);
    CHECK(distance(again, whole.index_select(0, rows).narrow(1, 3, 4)) < 1e-12);
    CHECK(message_of([&] { decoder(x.narrow(1, 0, 1), {}, both); }).find("batch sizes") != std::string::npos);
    CHECK(both.self.length == 7);
    both.clear();
    CHECK(message_of([&] { decoder(x, {}, both); }).find("no memory") != std::string::npos);
    CHECK(both.self.length == 0);
  }
}

TEST_CASE("decoder layer with weights: the output is the same, the weights are those over the memory") {
  manual_seed(8);
  for (bool norm_first : {true, false}) {
    TransformerDecoderLayer decoder(8, 2, {.norm_first = norm_first, .key_value_heads = 1});
    Tensor x = randn({2, 3, 8}).set_requires_grad(), memory = randn({2, 5, 8});
    DecoderMasks masks;
    masks.cross.key_mask = from_vector<int64_t>({1, 1, 1, 0, 0, 1, 1, 1, 1, 1}, {2, 5});
    auto [y, weights] = decoder.forward_with_weights(x, memory, masks);
    CHECK(equal(y, decoder(x, memory, masks)));
    REQUIRE(weights.shape() == Shape{2, 2, 3, 5});
    CHECK(distance(weights.sum(-1), ones({2, 2, 3})) < 1e-6);
    CHECK(equal(weights[0].slice(2, 3), zeros({2, 3, 2})));
    // The weights are those of this attention alone.
    Tensor in = norm_first ? decoder.norm2(x + decoder.attention(decoder.norm1(x), masks.self))
                           : decoder.norm1(x + decoder.attention(x, masks.self));
    CHECK(equal(weights, decoder.cross_attention.forward_with_weights(in, memory, memory, masks.cross).second));
    sum(square(weights)).backward();
    CHECK(x.grad().defined());
  }
}

}  // namespace key_value_cache_test
