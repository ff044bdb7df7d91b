// The matrix products of attention's tiles: a block of rows by a few vectors of columns stays in registers. Included
// once for each instruction set.
#if defined(REGARD_CPU_ATTENTION_PRODUCTS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef REGARD_CPU_ATTENTION_PRODUCTS_INL
#undef REGARD_CPU_ATTENTION_PRODUCTS_INL
#else
#define REGARD_CPU_ATTENTION_PRODUCTS_INL
#endif

#include <hwy/highway.h>

#include <regard/autograd/backend/cpu/rows-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {

// Vectors of columns that a block has at most, and its rows: as many as the registers hold. (With sanitizers, whose
// checks take the compiler minutes on large blocks, fewer rows: the results are the same.)
#if defined(REGARD_SANITIZE)
constexpr int most_vectors = 4;
constexpr int most_rows(int) { return 2; }
#elif HWY_TARGET == HWY_AVX3
constexpr int most_vectors = 4;
constexpr int most_rows(int vectors) { return vectors == 1 ? 16 : vectors == 2 ? 12 : vectors == 3 ? 8 : 6; }
#else
constexpr int most_vectors = 2;
constexpr int most_rows(int vectors) { return vectors == 1 ? 8 : 6; }
#endif

// R rows by V vectors (1 to 4) of sums.
template <int R, int V, class T>
struct Block {
  hn::Vec<Tag<T>> c0, c1, c2, c3;
  Block<R - 1, V, T> rest;

  HWY_INLINE void clear() {
    const Tag<T> d;
    c0 = hn::Zero(d);
    if constexpr (V > 1) c1 = c0;
    if constexpr (V > 2) c2 = c0;
    if constexpr (V > 3) c3 = c0;
    rest.clear();
  }
  // `last`: how many lanes of the last vector count.
  HWY_INLINE void read(const T* c, int64_t stride, int64_t last) {
    const Tag<T> d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    c0 = load(d, c, V == 1 ? last : lanes);
    if constexpr (V > 1) c1 = load(d, c + lanes, V == 2 ? last : lanes);
    if constexpr (V > 2) c2 = load(d, c + 2 * lanes, V == 3 ? last : lanes);
    if constexpr (V > 3) c3 = load(d, c + 3 * lanes, last);
    rest.read(c + stride, stride, last);
  }
  HWY_INLINE void write(T* c, int64_t stride, int64_t last) const {
    const Tag<T> d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    store(c0, d, c, V == 1 ? last : lanes);
    if constexpr (V > 1) store(c1, d, c + lanes, V == 2 ? last : lanes);
    if constexpr (V > 2) store(c2, d, c + 2 * lanes, V == 3 ? last : lanes);
    if constexpr (V > 3) store(c3, d, c + 3 * lanes, last);
    rest.write(c + stride, stride, last);
  }
  template <class B>
  HWY_INLINE void add(const T* a, int64_t stride, B b0, B b1, B b2, B b3) {
    const auto factor = hn::Set(Tag<T>(), *a);
    c0 = hn::MulAdd(factor, b0, c0);
    if constexpr (V > 1) c1 = hn::MulAdd(factor, b1, c1);
    if constexpr (V > 2) c2 = hn::MulAdd(factor, b2, c2);
    if constexpr (V > 3) c3 = hn::MulAdd(factor, b3, c3);
    rest.add(a + stride, stride, b0, b1, b2, b3);
  }
};
template <int V, class T>
struct Block<0, V, T> {
  HWY_INLINE void clear() {}
  HWY_INLINE void read(const T*, int64_t, int64_t) {}
  HWY_INLINE void write(T*, int64_t, int64_t) const {}
  template <class B>
  HWY_INLINE void add(const T*, int64_t, B, B, B, B) {}
};

// What a product works on: c [m, V vectors] = or += a [m, k] b [k, V vectors]. Element (i, p) of a is
// a[i * stride + p], or with `across` a[i + p * stride]. b is aligned to vectors.
template <class T>
struct Product {
  const T* a;
  int64_t a_stride;
  const T* b;
  int64_t b_stride;
  T* c;
  int64_t c_stride;
  bool accumulate;
  int64_t last;  // columns in the last vector
};

template <int R, int V, bool across, class T>
HWY_INLINE void multiply_block(int64_t k, const Product<T>& product, int64_t row) {
  const Tag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t a_stride = product.a_stride, b_stride = product.b_stride;
  const T* a = product.a + (across ? row : row * a_stride);
  const T* b = product.b;
  T* c = product.c + row * product.c_stride;
  Block<R, V, T> sums;
  if (product.accumulate)
    sums.read(c, product.c_stride, product.last);
  else
    sums.clear();
  for (int64_t p = 0; p < k; ++p, a += across ? a_stride : 1, b += b_stride) {
    const auto b0 = hn::Load(d, b);
    auto b1 = b0, b2 = b0, b3 = b0;
    if constexpr (V > 1) b1 = hn::Load(d, b + lanes);
    if constexpr (V > 2) b2 = hn::Load(d, b + 2 * lanes);
    if constexpr (V > 3) b3 = hn::Load(d, b + 3 * lanes);
    sums.add(a, across ? 1 : a_stride, b0, b1, b2, b3);
  }
  sums.write(c, product.c_stride, product.last);
}

// The last rows, fewer than R: one block of just as many.
template <int R, int V, bool across, class T>
HWY_INLINE void multiply_last_rows(int64_t rows, int64_t k, const Product<T>& product, int64_t row) {
  if constexpr (R > 1) {
    if (rows == R - 1) return multiply_block<R - 1, V, across>(k, product, row);
    multiply_last_rows<R - 1, V, across>(rows, k, product, row);
  }
}

template <int V, bool across, class T>
HWY_NOINLINE void multiply_rows(int64_t m, int64_t k, const Product<T>& product) {
  constexpr int most = most_rows(V);
  int64_t i = 0;
  for (; i + most <= m; i += most) multiply_block<most, V, across>(k, product, i);
  if (i < m) multiply_last_rows<most, V, across>(m - i, k, product, i);
}

template <bool across, class T>
HWY_INLINE void multiply(int vectors, int64_t m, int64_t k, const Product<T>& product) {
  if (vectors == 1) return multiply_rows<1, across>(m, k, product);
  if (vectors == 2) return multiply_rows<2, across>(m, k, product);
  if constexpr (most_vectors > 2) {
    if (vectors == 3) return multiply_rows<3, across>(m, k, product);
    return multiply_rows<4, across>(m, k, product);
  }
}

// c [m, n] = or += a b for any number of columns; b's rows are padded to whole vectors, c's are not.
template <class T>
HWY_INLINE void add_product(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_stride, const T* b, int64_t b_stride,
                            T* c, int64_t c_stride, bool accumulate) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Tag<T>()));
  for (int64_t j = 0; j < n; j += most_vectors * lanes) {
    const int64_t columns = n - j < most_vectors * lanes ? n - j : most_vectors * lanes;
    const int64_t vectors = (columns + lanes - 1) / lanes;
    multiply<false>(
        static_cast<int>(vectors), m, k,
        Product<T>{a, a_stride, b + j, b_stride, c + j, c_stride, accumulate, columns - (vectors - 1) * lanes});
  }
}

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // REGARD_CPU_ATTENTION_PRODUCTS_INL
