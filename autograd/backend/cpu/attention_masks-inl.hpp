// The masks of attention's tiles: what may be attended to and what dropout keeps, as bits, and what is added to scores.
// Included once for each instruction set.
#if defined(REGARD_CPU_ATTENTION_MASKS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef REGARD_CPU_ATTENTION_MASKS_INL
#undef REGARD_CPU_ATTENTION_MASKS_INL
#else
#define REGARD_CPU_ATTENTION_MASKS_INL
#endif

#include <hwy/highway.h>
#include <bit>
#include <cstring>
#include <limits>

#include <regard/autograd/backend/cpu/attention_tile-inl.hpp>
#include <regard/autograd/philox.hpp>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {

template <class T>
struct TileMask {
  const Word<T>* allowed = nullptr;  // null: all
  const Word<T>* kept = nullptr;     // by dropout; null: all
  const T* added = nullptr;          // [keys, columns]; null: nothing
};

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
HWY_INLINE void read_float_mask(const AttentionProblem<T>& p, const TilePlace& tile, T* added) {
  const T* data = reinterpret_cast<const T*>(p.mask.data) + tile.n * p.mask.batch + tile.h * p.mask.head +
                  tile.first_query * p.mask.row + tile.first_key * p.mask.column;
  const HeadRows<const T> rows{data, 0, 0, p.mask.row, p.mask.column};
  read_columns(added, tile.columns, rows, data, tile.queries, tile.keys, T(1));
}

// What is added to scores: a float mask, the distances of ALiBi, or both.
template <class T>
HWY_INLINE void read_added(const AttentionProblem<T>& p, const TilePlace& tile, T* added) {
  const bool has_mask = p.mask_kind == MaskKind::floating;
  if (has_mask) read_float_mask(p, tile, added);
  if (p.slopes == nullptr) return;
  const Tag<T> d;
  const auto slope = hn::Set(d, static_cast<T>(p.slopes[tile.h])), zero = hn::Zero(d);
  for (int64_t k = 0; k < tile.keys; ++k) {
    const int64_t from = tile.first_query + p.keys - p.queries - (tile.first_key + k);
    for (int64_t column = 0; column < tile.columns; column += lanes_of<T>()) {
      const auto distance = hn::Abs(hn::Add(hn::Iota(d, T(0)), hn::Set(d, static_cast<T>(from + column))));
      T* at = added + k * tile.columns + column;
      hn::Store(hn::Sub(has_mask ? hn::Load(d, at) : zero, hn::Mul(slope, distance)), d, at);
    }
  }
}

template <class T>
HWY_INLINE bool adds_to_scores(const AttentionProblem<T>& p) {
  return p.mask_kind == MaskKind::floating || p.slopes != nullptr;
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
    added = parts.take<T>(adds_to_scores(p) ? most_tile_keys * columns : 0);
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
  if (adds_to_scores(p)) {
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
  const T* data = rows.at(tile.n, p.key_head(tile.h)) + tile.first_key * rows.row;
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

#endif  // REGARD_CPU_ATTENTION_MASKS_INL
