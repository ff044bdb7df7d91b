// Inner loops over vectors. A row's last, partial vector goes through the same arithmetic as the others, and so do
// strided rows, block by block: the bits of an element do not depend on where it lies.
#if defined(REGARD_AUTOGRAD_BACKEND_CPU_SIMD_RUN_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef REGARD_AUTOGRAD_BACKEND_CPU_SIMD_RUN_INL_HPP
#undef REGARD_AUTOGRAD_BACKEND_CPU_SIMD_RUN_INL_HPP
#else
#define REGARD_AUTOGRAD_BACKEND_CPU_SIMD_RUN_INL_HPP
#endif

#include <hwy/highway.h>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whether masked loads and stores leave what the mask excludes alone.
#define REGARD_MASKED_MEMORY (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)

/// The first `count` elements (fewer than a vector), zeros after them.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_first(D d, const T* from, size_t count) {
#if REGARD_MASKED_MEMORY
  return hn::MaskedLoad(hn::FirstN(d, count), d, from);
#else
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)] = {};
  for (size_t i = 0; i < count; ++i) buffer[i] = from[i];
  return hn::Load(d, buffer);
#endif
}
template <class D, class V, class T = hn::TFromD<D>>
HWY_INLINE void store_first(V v, D d, T* to, size_t count) {
#if REGARD_MASKED_MEMORY
  hn::BlendedStore(v, hn::FirstN(d, count), d, to);
#else
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(v, d, buffer);
  for (size_t i = 0; i < count; ++i) to[i] = buffer[i];
#endif
}

template <class T>
HWY_INLINE void gather_block(T* block, const T* from, int64_t stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i) block[i] = from[i * stride];
}

/// y[i] = Op(d, a[i])
template <class T, class Op>
void unary_run(char* y_bytes, const char* a_bytes, int64_t y_stride, int64_t a_stride, int64_t count) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const Op op;
  auto* y = reinterpret_cast<T*>(y_bytes);
  const auto* a = reinterpret_cast<const T*>(a_bytes);
  if (y_stride == 1 && a_stride == 1) {
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) hn::StoreU(op(d, hn::LoadU(d, a + i)), d, y + i);
    if (i < count) {
      const auto rest = static_cast<size_t>(count - i);
      store_first(op(d, load_first(d, a + i, rest)), d, y + i, rest);
    }
    return;
  }
  constexpr int64_t block = 256;
  HWY_ALIGN T buffer[block] = {};
  for (int64_t i = 0; i < count; i += block) {
    const int64_t part = count - i < block ? count - i : block;
    gather_block(buffer, a + i * a_stride, a_stride, part);
    for (int64_t j = 0; j < part; j += lanes) hn::Store(op(d, hn::Load(d, buffer + j)), d, buffer + j);
    for (int64_t j = 0; j < part; ++j) y[(i + j) * y_stride] = buffer[j];
  }
}

/// y[i] = Op(d, a[i], b[i]); a stride of 0 is one number for all.
template <class T, class Op>
void binary_run(char* y_bytes, const char* a_bytes, const char* b_bytes, int64_t y_stride, int64_t a_stride,
                int64_t b_stride, int64_t count) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const Op op;
  auto* y = reinterpret_cast<T*>(y_bytes);
  const auto* a = reinterpret_cast<const T*>(a_bytes);
  const auto* b = reinterpret_cast<const T*>(b_bytes);
  int64_t i = 0;
  if (y_stride == 1 && a_stride == 1 && b_stride == 1) {
    for (; i + lanes <= count; i += lanes) hn::StoreU(op(d, hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, y + i);
    if (i < count) {
      const auto rest = static_cast<size_t>(count - i);
      store_first(op(d, load_first(d, a + i, rest), load_first(d, b + i, rest)), d, y + i, rest);
    }
  } else if (y_stride == 1 && a_stride == 1 && b_stride == 0) {
    const auto value = hn::Set(d, *b);
    for (; i + lanes <= count; i += lanes) hn::StoreU(op(d, hn::LoadU(d, a + i), value), d, y + i);
    if (i < count) {
      const auto rest = static_cast<size_t>(count - i);
      store_first(op(d, load_first(d, a + i, rest), value), d, y + i, rest);
    }
  } else if (y_stride == 1 && a_stride == 0 && b_stride == 1) {
    const auto value = hn::Set(d, *a);
    for (; i + lanes <= count; i += lanes) hn::StoreU(op(d, value, hn::LoadU(d, b + i)), d, y + i);
    if (i < count) {
      const auto rest = static_cast<size_t>(count - i);
      store_first(op(d, value, load_first(d, b + i, rest)), d, y + i, rest);
    }
  } else {
    constexpr int64_t block = 256;
    HWY_ALIGN T buffer_a[block] = {};
    HWY_ALIGN T buffer_b[block] = {};
    for (; i < count; i += block) {
      const int64_t part = count - i < block ? count - i : block;
      gather_block(buffer_a, a + i * a_stride, a_stride, part);
      gather_block(buffer_b, b + i * b_stride, b_stride, part);
      for (int64_t j = 0; j < part; j += lanes)
        hn::Store(op(d, hn::Load(d, buffer_a + j), hn::Load(d, buffer_b + j)), d, buffer_a + j);
      for (int64_t j = 0; j < part; ++j) y[(i + j) * y_stride] = buffer_a[j];
    }
  }
}

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
