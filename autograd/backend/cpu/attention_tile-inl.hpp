// Parts of attention's tiles that forward and backward share: rows and columns brought into place, masks, exponentials.
// A tile of scores lies transposed, [keys, queries], so that the queries' softmaxes run side by side in vectors.
// Included once for each instruction set.
#if defined(REGARD_CPU_ATTENTION_TILE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef REGARD_CPU_ATTENTION_TILE_INL
#undef REGARD_CPU_ATTENTION_TILE_INL
#else
#define REGARD_CPU_ATTENTION_TILE_INL
#endif

#include <hwy/highway.h>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include <regard/autograd/backend/cpu/attention_problem.hpp>
#include <regard/autograd/backend/cpu/attention_products-inl.hpp>
#include <regard/autograd/philox.hpp>

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

template <class T>
struct TileMask {
  const Word<T>* allowed = nullptr;  // null: all
  const Word<T>* kept = nullptr;     // by dropout; null: all
  const T* added = nullptr;          // [keys, columns]; null: nothing
};

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

HWY_INLINE bool mask_allows(MaskKind kind, const char* mask, int64_t at) {
  if (kind == MaskKind::boolean) return mask[at] != 0;
  int64_t value;
  std::memcpy(&value, mask + at * 8, 8);
  return value != 0;
}

// The bits of `count` (at most 32) neighbours of a boolean or integer mask.
HWY_INLINE uint32_t mask_bits(MaskKind kind, const char* mask, int64_t stride, int64_t count) {
  uint32_t bits = 0;
  int64_t i = 0;
  if (kind == MaskKind::boolean && stride == 1 && std::endian::native == std::endian::little) {
    for (; i + 8 <= count; i += 8) {  // eight bytes of 0 or 1 to eight bits
      uint64_t bytes;
      std::memcpy(&bytes, mask + i, 8);
      bits |= static_cast<uint32_t>((bytes * 0x0102040810204080U) >> 56) << i;
    }
  }
  for (; i < count; ++i) bits |= uint32_t{mask_allows(kind, mask, i * stride)} << i;
  return bits;
}
HWY_INLINE int64_t mask_bytes(MaskKind kind) { return kind == MaskKind::boolean ? 1 : 8; }

// Fills `words` with what is allowed; false where nothing is, and mask.allowed stays null where everything is.
template <class T>
HWY_INLINE bool read_allowed(const AttentionProblem<T>& p, const TilePlace& tile, Word<T>* words, TileMask<T>& mask) {
  const bool has_mask = p.mask_kind == MaskKind::boolean || p.mask_kind == MaskKind::integer;
  if (!tile.cut && !has_mask && p.key_mask_kind == MaskKind::none) return true;
  bool any = false, all = true;
  for (int64_t w = 0; w * 32 < tile.keys; ++w) {
    const int64_t key = tile.first_key + w * 32, count = tile.keys - w * 32 < 32 ? tile.keys - w * 32 : 32;
    const uint32_t whole = first_bits(count);
    uint32_t keys = whole;
    if (p.key_mask_kind != MaskKind::none)
      keys &= mask_bits(p.key_mask_kind,
                        p.key_mask + (tile.n * p.key_mask_batch + key * p.key_mask_key) * mask_bytes(p.key_mask_kind),
                        p.key_mask_key, count);
    const char* rows = has_mask ? p.mask.data + (tile.n * p.mask.batch + tile.h * p.mask.head +
                                                 tile.first_query * p.mask.row + key * p.mask.column) *
                                                    mask_bytes(p.mask_kind)
                                : nullptr;
    for (int64_t i = 0; i < tile.columns; ++i) {
      uint32_t bits = i < tile.queries ? keys : 0;
      if (tile.cut) bits &= first_bits(tile.visible + i - w * 32);
      if (has_mask && bits != 0)
        bits &= mask_bits(p.mask_kind, rows + i * p.mask.row * mask_bytes(p.mask_kind), p.mask.column, count);
      words[w * tile.columns + i] = bits;
      if (i < tile.queries) {
        any = any || bits != 0;
        all = all && bits == whole;
      }
    }
  }
  if (!all) mask.allowed = words;
  return any;
}

// Fills `words` with what dropout keeps.
#if HWY_TARGET == HWY_SCALAR
template <class T>
HWY_INLINE void read_kept(const AttentionProblem<T>& p, const TilePlace& tile, Word<T>* words) {
  for (int64_t w = 0; w * 32 < tile.keys; ++w)
    for (int64_t i = 0; i < tile.columns; ++i) {
      const int64_t row = (tile.n * p.heads + tile.h) * p.queries + tile.first_query + i;
      const int64_t key = tile.first_key + w * 32, keys = keys_of_column<T>(tile, i) - w * 32;
      uint32_t bits = 0;
      for (int64_t k = 0; k < 32 && k < keys; ++k) {
        const uint64_t counter = p.offset + static_cast<uint64_t>(row * p.keys + key + k);
        bits |= uint32_t{(regard::detail::philox_element(p.seed, counter)[0] >> 8) >= p.drop_threshold} << k;
      }
      words[w * tile.columns + i] = bits;
    }
}
#else
// Philox of philox.hpp, of which word 0 alone is wanted: a counter a 64-bit lane, whose lower halves hold the words
// (what the upper halves hold does not matter, except in the end).
template <class T>
HWY_INLINE void read_kept(const AttentionProblem<T>& p, const TilePlace& tile, Word<T>* words) {
  using Philox = regard::detail::PhiloxConstants;
  const hn::ScalableTag<uint64_t> d;
  const hn::Repartition<uint32_t, decltype(d)> half;
  const hn::RebindToSigned<decltype(d)> di;
  constexpr size_t most_lanes = HWY_MAX_BYTES / sizeof(uint64_t);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN uint64_t round_keys[Philox::rounds * 2 * most_lanes];
  for (int round = 0; round < Philox::rounds; ++round) {
    const auto n = static_cast<uint32_t>(round);
    uint64_t* at = round_keys + 2 * round * lanes;
    hn::Store(hn::Set(d, uint64_t{static_cast<uint32_t>(p.seed) + n * Philox::weyl0}), d, at);
    hn::Store(hn::Set(d, uint64_t{static_cast<uint32_t>(p.seed >> 32) + n * Philox::weyl1}), d, at + lanes);
  }
  const auto multiplier0 = hn::Set(half, Philox::multiplier0), multiplier1 = hn::Set(half, Philox::multiplier1);
  const auto times = [&](auto words_of, auto multiplier)
                         HWY_ATTR { return hn::MulEven(hn::BitCast(half, words_of), multiplier); };
  const auto lower = hn::Set(d, uint64_t{0xffffffffU});
  const auto least = hn::Set(di, static_cast<int64_t>(p.drop_threshold) << 8);
  const int64_t row = (tile.n * p.heads + tile.h) * p.queries + tile.first_query;
  const uint64_t first = p.offset + static_cast<uint64_t>(row * p.keys + tile.first_key);
  for (int64_t column = 0; column < tile.columns; column += lanes) {
    HWY_ALIGN uint64_t buffer[most_lanes];
    for (int64_t i = 0; i < lanes; ++i) buffer[i] = first + static_cast<uint64_t>((column + i) * p.keys);
    const auto counters = hn::Load(d, buffer);
    const int64_t keys = keys_of_column<T>(tile, column / lanes_of<T>() * lanes_of<T>());
    for (int64_t w = 0; w * 32 < tile.keys; ++w) {
      auto bits = hn::Zero(d);
      for (int64_t k = w * 32; k < w * 32 + 32 && k < keys; ++k) {
        const auto counter = hn::Add(counters, hn::Set(d, static_cast<uint64_t>(k)));
        auto product0 = times(counter, multiplier0);  // the first round, words 2 and 3 being 0
        auto c0 = hn::Xor(hn::ShiftRight<32>(counter), hn::Load(d, round_keys));
        auto c1 = hn::Zero(d);
        auto c2 = hn::Xor(hn::ShiftRight<32>(product0), hn::Load(d, round_keys + lanes));
        auto c3 = product0;
        for (int round = 1; round + 1 < Philox::rounds; ++round) {
          product0 = times(c0, multiplier0);
          const auto product1 = times(c2, multiplier1);
          c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), c1), hn::Load(d, round_keys + 2 * round * lanes));
          c1 = product1;
          c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), c3), hn::Load(d, round_keys + (2 * round + 1) * lanes));
          c3 = product0;
        }
        constexpr int last = Philox::rounds - 1;
        c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(times(c2, multiplier1)), c1),
                     hn::Load(d, round_keys + 2 * last * lanes));
        const auto dropped = hn::Lt(hn::BitCast(di, hn::And(c0, lower)), least);
        const auto bit = hn::BitCast(di, hn::Set(d, uint64_t{1} << (k % 32)));
        bits = hn::Or(bits, hn::BitCast(d, hn::IfThenZeroElse(dropped, bit)));
      }
      hn::Store(bits, d, buffer);
      for (int64_t i = 0; i < lanes; ++i) words[w * tile.columns + column + i] = static_cast<Word<T>>(buffer[i]);
    }
  }
}
#endif

template <class T>
HWY_INLINE void read_added(const AttentionProblem<T>& p, const TilePlace& tile, T* added) {
  const T* data = reinterpret_cast<const T*>(p.mask.data) + tile.n * p.mask.batch + tile.h * p.mask.head +
                  tile.first_query * p.mask.row + tile.first_key * p.mask.column;
  const HeadRows<const T> rows{data, 0, 0, p.mask.row, p.mask.column};
  read_columns(added, tile.columns, rows, data, tile.queries, tile.keys, T(1));
}

// Memory for what a tile's masks need.
template <class T>
struct MaskMemory {
  Word<T>*allowed, *kept;
  T* added;
  HWY_INLINE MaskMemory(const AttentionProblem<T>& p, AttentionParts& parts, int64_t columns) {
    const bool blocks = p.causal || p.key_mask_kind != MaskKind::none || p.mask_kind != MaskKind::none;
    allowed = parts.take<Word<T>>(blocks ? tile_words * columns : 0);
    kept = parts.take<Word<T>>(p.drops ? tile_words * columns : 0);
    added = parts.take<T>(p.mask_kind == MaskKind::floating ? most_tile_keys * columns : 0);
  }
};

// False where nothing in the tile is allowed.
template <class T>
HWY_INLINE bool read_mask(const AttentionProblem<T>& p, const TilePlace& tile, const MaskMemory<T>& memory,
                          TileMask<T>& mask) {
  if (!read_allowed(p, tile, memory.allowed, mask)) return false;
  if (p.drops) {
    read_kept(p, tile, memory.kept);
    mask.kept = memory.kept;
  }
  if (p.mask_kind == MaskKind::floating) {
    read_added(p, tile, memory.added);
    mask.added = memory.added;
  }
  return true;
}

// The bit of key k in a column of words, as a mask of lanes.
template <class T>
HWY_INLINE auto lanes_of_bit(const Word<T>* words, int64_t columns, int64_t key) {
  const hn::RebindToUnsigned<Tag<T>> du;
  const auto bits = hn::Load(du, words + key / 32 * columns);
  return hn::RebindMask(Tag<T>(), hn::TestBit(bits, hn::Set(du, Word<T>{1} << (key % 32))));
}

// One vector of scores, masked: s + added, or -inf.
template <class T, class V>
HWY_INLINE V masked_score(V score, const TileMask<T>& mask, int64_t columns, int64_t key, int64_t column) {
  const Tag<T> d;
  const auto blocked = hn::Set(d, -std::numeric_limits<T>::infinity());
  if (mask.added != nullptr) {
    const auto added = hn::Load(d, mask.added + key * columns + column);
    score = hn::IfThenElse(hn::Eq(added, blocked), blocked, hn::Add(score, added));
  }
  if (mask.allowed != nullptr)
    score = hn::IfThenElse(lanes_of_bit<T>(mask.allowed + column, columns, key), score, blocked);
  return score;
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

// Keys or values of a tile: where they lie, or copied to `memory` with zeros for keys that no query may see.
template <class T>
struct TileRows {
  const T* data;
  int64_t stride;
};
template <class T>
HWY_INLINE bool must_copy(const AttentionProblem<T>& p, const HeadRows<const T>& rows) {
  return rows.column != 1 || p.blocks_keys();
}
template <class T>
HWY_INLINE TileRows<T> tile_rows(const AttentionProblem<T>& p, const TilePlace& tile, const HeadRows<const T>& rows,
                                 int64_t width, T* memory) {
  const T* data = rows.at(tile.n, tile.h) + tile.first_key * rows.row;
  if (!must_copy(p, rows)) return {data, rows.row};
  const bool row_mask = p.blocks_keys() && (p.mask_kind == MaskKind::boolean || p.mask_kind == MaskKind::integer) &&
                        (p.mask.row == 0 || p.queries == 1);
  for (int64_t k = 0; k < tile.keys; ++k) {
    T* to = memory + k * width;
    const int64_t key = tile.first_key + k;
    const bool blocked =
        (p.key_mask_kind != MaskKind::none &&
         !mask_allows(p.key_mask_kind, p.key_mask, tile.n * p.key_mask_batch + key * p.key_mask_key)) ||
        (row_mask &&
         !mask_allows(p.mask_kind, p.mask.data, tile.n * p.mask.batch + tile.h * p.mask.head + key * p.mask.column));
    if (blocked)
      std::memset(to, 0, static_cast<size_t>(width) * sizeof(T));
    else if (rows.column == 1)
      std::memcpy(to, data + k * rows.row, static_cast<size_t>(width) * sizeof(T));
    else
      for (int64_t j = 0; j < width; ++j) to[j] = data[k * rows.row + j * rows.column];
  }
  return {memory, width};
}

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // REGARD_CPU_ATTENTION_TILE_INL
