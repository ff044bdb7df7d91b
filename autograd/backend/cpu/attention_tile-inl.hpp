// Parts of attention's tiles that forward and backward share: where a tile lies, rows and columns brought into place,
// exponentials.
// A tile of scores lies transposed, [keys, queries], so that the queries' softmaxes run side by side in vectors.
// Included once for each instruction set.
#if defined(REGARD_CPU_ATTENTION_TILE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef REGARD_CPU_ATTENTION_TILE_INL
#undef REGARD_CPU_ATTENTION_TILE_INL
#else
#define REGARD_CPU_ATTENTION_TILE_INL
#endif

#include <hwy/highway.h>
#include <cstring>
#include <type_traits>

#include <regard/autograd/backend/cpu/attention_problem.hpp>
#include <regard/autograd/backend/cpu/attention_products-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {

constexpr int64_t most_tile_keys = 64;
static_assert(most_tile_keys % 32 == 0);
constexpr int64_t tile_words = most_tile_keys / 32;

template <class T>
HWY_INLINE int64_t lanes_of() {
  return static_cast<int64_t>(hn::Lanes(Tag<T>()));
}
template <class T>
HWY_INLINE int64_t most_tile_queries() {
  return most_vectors * lanes_of<T>();
}
template <class T>
HWY_INLINE int64_t whole_vectors(int64_t count) {
  return (count + lanes_of<T>() - 1) / lanes_of<T>() * lanes_of<T>();
}

// Which of a tile's weights count: bit k % 32 of word [k / 32][query] for key k. As wide as T, for use beside it.
template <class T>
using Word = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
HWY_INLINE uint32_t first_bits(int64_t count) {
  return count <= 0 ? 0 : count >= 32 ? ~uint32_t{0} : (uint32_t{1} << count) - 1;
}

// A tile: `queries` (padded to `columns`, whole vectors) from `first_query` by `keys` from `first_key`.
struct TilePlace {
  int64_t n, h, first_query, queries, columns, first_key, keys;
  int64_t visible;  // of these keys, how many the first query may see as far as causal order goes
  bool cut;         // whether causal order cuts through the tile

  template <class T>
  HWY_INLINE TilePlace(const AttentionProblem<T>& p, int64_t batch, int64_t head, int64_t query, int64_t query_count,
                       int64_t query_columns, int64_t key, int64_t key_count)
      : n(batch),
        h(head),
        first_query(query),
        queries(query_count),
        columns(query_columns),
        first_key(key),
        keys(key_count),
        visible(query + 1 + p.keys - p.queries - key),
        cut(p.causal && visible < key_count) {}
};

// Calls f(key, keys, column) for the steps of a tile: these keys matter to the queries from `column` on alone.
template <class T, class F>
HWY_INLINE void each_step(const TilePlace& tile, F f) {
  if (!tile.cut) return f(int64_t{0}, tile.keys, int64_t{0});
  const int64_t lanes = lanes_of<T>();
  const auto column_of = [&](int64_t key) { return key < tile.visible ? 0 : (key + 1 - tile.visible) / lanes * lanes; };
  for (int64_t key = 0; key < tile.keys;) {
    const int64_t column = column_of(key);
    int64_t end = key + lanes;
    while (end < tile.keys && column_of(end) == column) end += lanes;
    if (end > tile.keys) end = tile.keys;
    f(key, end - key, column);
    key = end;
  }
}
// How many of the tile's keys the steps give the vector of queries at `column`.
template <class T>
HWY_INLINE int64_t keys_of_column(const TilePlace& tile, int64_t column) {
  if (!tile.cut) return tile.keys;
  const int64_t lanes = lanes_of<T>(), seen = tile.visible + column + lanes - 1;
  const int64_t whole = seen <= 0 ? 0 : (seen + lanes - 1) / lanes * lanes;
  return whole < tile.keys ? whole : tile.keys;
}

// to [rows, columns] = the transpose of from [columns, rows], row i times factor(i). Rows of `to` are padded with zeros
// to whole vectors where `pad`, else nothing past their end is written.
template <bool pad, class T, class Factor>
HWY_INLINE void transpose_rows(T* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t rows,
                               int64_t columns, Factor factor) {
  const Tag<T> d;
  const int64_t lanes = lanes_of<T>();
#if HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) {
    // Four columns of `lanes` rows of `from`: four vectors, each of every fourth row's four elements, whose 128-bit
    // parts are transposed side by side.
    const hn::Repartition<double, Tag<T>> wide;
    const auto lane = hn::Iota(d, T(0));
    for (int64_t j = 0; j < columns; j += lanes) {
      const int64_t count = columns - j < lanes ? columns - j : lanes;
      const auto inside = hn::FirstN(d, static_cast<size_t>(count));
      const auto put = [&](T* at, auto value) HWY_ATTR {
        if constexpr (pad)
          hn::Store(hn::IfThenElseZero(inside, value), d, at);
        else
          store(value, d, at, count);
      };
      int64_t i = 0;
      for (; i + 4 <= rows; i += 4) {
        const auto gather = [&](int64_t first) HWY_ATTR {
          const auto row = [&](int64_t at)
                               HWY_ATTR { return from + (j + (at < count ? at : count - 1)) * from_stride + i; };
          auto vector = hn::LoadDup128(d, row(first));
          for (int64_t at = 4; at < lanes; at += 4)
            vector = hn::IfThenElse(hn::Ge(lane, hn::Set(d, static_cast<T>(at))), hn::LoadDup128(d, row(first + at)),
                                    vector);
          return vector;
        };
        const auto r0 = gather(0), r1 = gather(1), r2 = gather(2), r3 = gather(3);
        const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
        const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
        const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
        const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
        T* at = to + i * to_stride + j;
        put(at, hn::Mul(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), factor(i)));
        put(at + to_stride, hn::Mul(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), factor(i + 1)));
        put(at + 2 * to_stride, hn::Mul(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), factor(i + 2)));
        put(at + 3 * to_stride, hn::Mul(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), factor(i + 3)));
      }
      HWY_ALIGN T row[HWY_MAX_BYTES / sizeof(T)] = {};
      for (; i < rows; ++i) {
        for (int64_t at = 0; at < count; ++at) row[at] = from[(j + at) * from_stride + i];
        put(to + i * to_stride + j, hn::Mul(hn::Load(d, row), factor(i)));
      }
    }
    return;
  }
#endif
  HWY_ALIGN T row[HWY_MAX_BYTES / sizeof(T)] = {};
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; j += lanes) {
      const int64_t count = columns - j < lanes ? columns - j : lanes;
      for (int64_t at = 0; at < lanes; ++at) row[at] = at < count ? from[(j + at) * from_stride + i] : T(0);
      const auto value = hn::Mul(hn::Load(d, row), factor(i));
      if constexpr (pad)
        hn::Store(value, d, to + i * to_stride + j);
      else
        store(value, d, to + i * to_stride + j, count);
    }
}

// to [width, columns] = the transposed rows times factor; zeros past the last row, `columns` being whole vectors.
template <class T>
HWY_INLINE void read_columns(T* to, int64_t columns, const HeadRows<const T>& from, const T* data, int64_t rows,
                             int64_t width, T factor) {
  const auto factors = hn::Set(Tag<T>(), factor);
  if (from.column == 1) {
    transpose_rows<true>(to, columns, data, from.row, width, rows, [=](int64_t) HWY_ATTR { return factors; });
  } else {
    for (int64_t j = 0; j < width; ++j) {
      for (int64_t i = 0; i < rows; ++i) to[j * columns + i] = data[i * from.row + j * from.column] * factor;
      for (int64_t i = rows; i < columns; ++i) to[j * columns + i] = 0;
    }
  }
}

// to [rows padded to `padded`, width padded to `stride`] = rows times factor, zeros around them.
template <class T>
HWY_INLINE void read_rows(T* to, int64_t stride, int64_t padded, const HeadRows<const T>& from, const T* data,
                          int64_t rows, int64_t width, T factor) {
  const Tag<T> d;
  const auto factors = hn::Set(d, factor);
  for (int64_t i = 0; i < rows; ++i, data += from.row, to += stride) {
    if (from.column == 1) {
      for (int64_t j = 0; j < width; j += lanes_of<T>())
        hn::StoreU(hn::Mul(load(d, data + j, width - j), factors), d, to + j);
    } else {
      for (int64_t j = 0; j < width; ++j) to[j] = data[j * from.column] * factor;
      for (int64_t j = width; j < stride; ++j) to[j] = 0;
    }
  }
  if (rows < padded) std::memset(to, 0, static_cast<size_t>((padded - rows) * stride) * sizeof(T));
}

// e^x for x of at most about 0 (below 80), within 1 ulp; 0 below -87, where e^x leaves the normal numbers. NaN stays.
template <class T, class V>
HWY_INLINE V exp_of_difference(V x) {
  const Tag<T> d;
  if constexpr (sizeof(T) == 8) {
    return exp_of(d, x);
  } else {
    const hn::RebindToSigned<Tag<T>> di;
    const auto n = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504F)));
    const V nf = hn::ConvertTo(d, n);
    V r = hn::NegMulAdd(nf, hn::Set(d, 0.693359375F), x);
    r = hn::NegMulAdd(nf, hn::Set(d, -2.12194440e-4F), r);
    constexpr float c[] = {1.9875691500e-4F, 1.3981999507e-3F, 8.3334519073e-3F,
                           4.1665795894e-2F, 1.6666665459e-1F, 5.0000001201e-1F};
    const V power = hn::Add(hn::MulAdd(polynomial(d, r, c), hn::Mul(r, r), r), hn::Set(d, 1.0F));
    const V two_to_n = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0F)), hn::Mul(power, two_to_n));
  }
}

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // REGARD_CPU_ATTENTION_TILE_INL
