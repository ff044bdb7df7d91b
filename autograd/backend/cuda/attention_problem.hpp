// What attention's kernels work on, and which scores count: masks, causal order, distances, dropout.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <regard/autograd/backend/cuda/convert.hpp>
#include <regard/autograd/backend/cuda/math.hpp>
#include <regard/autograd/backend/cuda/random.hpp>
#include <regard/autograd/backend/cuda/reduction.hpp>
#include <regard/autograd/backend/cuda/runtime.hpp>
#include <regard/autograd/backend/kernels.hpp>

namespace regard::cuda_backend {

/// What every GPU since sm_80 lets a block have.
inline constexpr size_t most_shared_bytes = 99 * 1024;

/// 16 bytes, which a thread moves at once.
template <class T>
inline constexpr int vector_width = 16 / static_cast<int>(sizeof(T));
template <class T>
struct alignas(16) Vector {
  T at[vector_width<T>];
};
template <class T>
__device__ Vector<T> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T>*>(from);
}

/// A [N, H, length, width] tensor in memory.
template <class T>
struct HeadRows {
  T* data = nullptr;
  int64_t batch = 0, head = 0, row = 0, column = 0;  // strides
  bool vectors = false;                              // rows are whole, aligned vectors of 16 bytes

  __host__ __device__ explicit operator bool() const { return data != nullptr; }
  __device__ T* at(int64_t n, int64_t h) const { return data + n * batch + h * head; }
};

template <class T>
HeadRows<T> rows_of(const Tensor& x) {
  if (!x.defined()) return {};
  const Strides& s = x.strides();
  bool vectors = s[3] == 1 && x.size(3) % vector_width<T> == 0 && reinterpret_cast<uintptr_t>(x.raw_data()) % 16 == 0;
  for (int d = 0; d < 3; ++d) vectors = vectors && (x.size(d) == 1 || s[d] % vector_width<T> == 0);
  return {static_cast<T*>(x.raw_data()), s[0], s[1], s[2], s[3], vectors};
}
/// Dense memory for such a tensor.
template <class T>
__host__ __device__ HeadRows<T> dense_rows(T* data, int64_t heads, int64_t length, int64_t width) {
  return {data, heads * length * width, length * width, width, 1, width % vector_width<T> == 0};
}

enum class MaskKind : uint8_t { none, boolean, integer, floating };

/// Passed to kernels by value. E is the type of elements, T that of what is computed with them.
template <class E>
struct AttentionProblem {
  using T = Number<E>;
  int batch, heads, queries, keys, width, value_width;
  int group;  // query heads that share a head of keys and values: head h uses h / group of k, v, dk and dv
  HeadRows<const E> q, k, v;
  T* statistics;         // [N, H, 2, L]: largest score and inverse sum of each row
  HeadRows<const E> dy;  // backward alone, and so is delta
  const T* delta;        // [N, H, L]: the sum of dy y of each row
  MaskKind mask_kind;
  HeadRows<const char> mask;  // strides in elements of its kind
  MaskKind key_mask_kind;
  const char* key_mask;
  int64_t key_mask_batch, key_mask_key;  // strides
  const double* slopes;                  // [H] of ALiBi; null: none
  T scale, keep_scale;                   // of scores; of weights that dropout keeps
  bool causal, drops;
  DropoutMask dropout;

  __host__ __device__ bool mask_allows() const {
    return mask_kind == MaskKind::boolean || mask_kind == MaskKind::integer;
  }
  /// Whether what may be attended to must be read, beside what causal order says.
  __host__ __device__ bool reads_allowed() const { return mask_allows() || key_mask_kind != MaskKind::none; }
  /// Whether keys may be blocked for every query alike: what stands there must not be used, be it NaN.
  __host__ __device__ bool blocks_keys() const {
    return key_mask_kind != MaskKind::none || (mask_allows() && (mask.row == 0 || queries == 1));
  }
  /// Whether scores count as they are, as far as causal order lets them.
  __host__ __device__ bool is_plain() const { return !reads_allowed() && !adds_to_scores() && !drops; }
  __host__ __device__ bool adds_to_scores() const { return mask_kind == MaskKind::floating || slopes != nullptr; }
  /// How many keys query q may see as far as causal order goes.
  __host__ __device__ int visible_keys(int q) const {
    if (!causal) return keys;
    const int visible = q + 1 + keys - queries;
    return visible < 0 ? 0 : visible < keys ? visible : keys;
  }
};

inline MaskKind mask_kind_of(const Tensor& mask) {
  if (!mask.defined()) return MaskKind::none;
  if (is_floating(mask.dtype())) return MaskKind::floating;
  return mask.dtype() == DType::boolean ? MaskKind::boolean : MaskKind::integer;
}

template <class E>
AttentionProblem<E> make_attention_problem(const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Tensor& mask, const Tensor& key_mask, const Tensor& alibi,
                                           const AttentionSettings& settings) {
  using T = Number<E>;
  const bool drops = settings.dropout > 0;
  const DropoutMask dropout(settings.dropout, settings.seed, settings.offset);
  AttentionProblem<E> p{.batch = static_cast<int>(q.size(0)),
                        .heads = static_cast<int>(q.size(1)),
                        .queries = static_cast<int>(q.size(2)),
                        .keys = static_cast<int>(k.size(2)),
                        .width = static_cast<int>(q.size(3)),
                        .value_width = static_cast<int>(v.size(3)),
                        .group = static_cast<int>(k.size(1) > 0 ? q.size(1) / k.size(1) : 1),
                        .q = rows_of<const E>(q),
                        .k = rows_of<const E>(k),
                        .v = rows_of<const E>(v),
                        .statistics = device_pointer<T>(statistics),
                        .dy = {},
                        .delta = nullptr,
                        .mask_kind = mask_kind_of(mask),
                        .mask = rows_of<const char>(mask),
                        .key_mask_kind = mask_kind_of(key_mask),
                        .key_mask = device_pointer<const char>(key_mask),
                        .key_mask_batch = 0,
                        .key_mask_key = 0,
                        .slopes = device_pointer<const double>(alibi),
                        .scale = static_cast<T>(settings.scale),
                        .keep_scale = dropout.scale<T>(),
                        .causal = settings.causal,
                        .drops = drops,
                        .dropout = dropout};
  if (key_mask.defined()) {
    p.key_mask_batch = key_mask.strides()[0];
    p.key_mask_key = key_mask.strides()[1];
  }
  return p;
}

/// The masks of one head of queries.
template <class E>
class HeadMask {
 public:
  using T = Number<E>;

  __device__ HeadMask(const AttentionProblem<E>& p, int n, int h)
      : mask_(p.mask ? p.mask.data + (n * p.mask.batch + h * p.mask.head) * bytes_of(p.mask_kind) : nullptr),
        key_mask_(p.key_mask ? p.key_mask + n * p.key_mask_batch * bytes_of(p.key_mask_kind) : nullptr),
        slope_(p.slopes ? static_cast<T>(p.slopes[h]) : T(0)),
        first_weight_((static_cast<uint64_t>(n) * static_cast<uint64_t>(p.heads) + static_cast<uint64_t>(h)) *
                      static_cast<uint64_t>(p.queries) * static_cast<uint64_t>(p.keys)) {}

  /// Whether the masks that are not floating, and causal order, let query q attend to key k; false beyond the last.
  __device__ bool allows(const AttentionProblem<E>& p, int q, int k) const {
    if (q >= p.queries || k >= p.visible_keys(q)) return false;
    if (key_mask_ && !is_set(p.key_mask_kind, key_mask_, k * p.key_mask_key)) return false;
    return !p.mask_allows() || is_set(p.mask_kind, mask_, q * p.mask.row + k * p.mask.column);
  }
  /// Whether any query may attend to key k as far as AttentionProblem::blocks_keys() goes.
  __device__ bool shows(const AttentionProblem<E>& p, int k) const {
    if (k >= p.keys) return false;
    if (key_mask_ && !is_set(p.key_mask_kind, key_mask_, k * p.key_mask_key)) return false;
    return !p.mask_allows() || (p.mask.row != 0 && p.queries > 1) || is_set(p.mask_kind, mask_, k * p.mask.column);
  }
  /// The score with what is added to it: a float mask, the distance of ALiBi, or both; minus infinity where it blocks.
  __device__ T masked(const AttentionProblem<E>& p, int q, int k, T score) const {
    T added = 0;
    if (p.mask_kind == MaskKind::floating) {
      added = number(reinterpret_cast<const E*>(mask_)[q * p.mask.row + k * p.mask.column]);
      if (added == -infinity<T>()) return added;
    }
    if (p.slopes) {
      const int distance = q + p.keys - p.queries - k;
      added -= slope_ * static_cast<T>(distance < 0 ? -distance : distance);
    }
    return score + added;
  }
  /// Whether dropout keeps the weight of query q and key k.
  __device__ bool keeps(const AttentionProblem<E>& p, int q, int k) const {
    return p.dropout.keeps(first_weight_ + static_cast<uint64_t>(q) * static_cast<uint64_t>(p.keys) +
                           static_cast<uint64_t>(k));
  }

 private:
  __device__ static int64_t bytes_of(MaskKind kind) {
    return kind == MaskKind::boolean ? 1 : kind == MaskKind::integer ? 8 : static_cast<int64_t>(sizeof(E));
  }
  __device__ static bool is_set(MaskKind kind, const char* mask, int64_t at) {
    return kind == MaskKind::boolean ? mask[at] != 0 : reinterpret_cast<const int64_t*>(mask)[at] != 0;
  }

  const char *mask_, *key_mask_;
  T slope_;
  uint64_t first_weight_;
};

/// What is taken from scores before their exponential. Nothing allowed so far (minus infinity): 0, so that the power is
/// 0 and not NaN.
template <class T>
__device__ T shift_of(T largest) {
  return largest == -infinity<T>() ? T(0) : largest;
}
/// e^(score - shift).
template <class T>
__device__ T power_of(T score, T shift) {
  return exp2((score - shift) * log2_of_e<T>);
}

}  // namespace regard::cuda_backend
