// Walks one to four tensors of one shape together, in runs that an inner loop can vectorise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <regard/autograd/backend/cpu/parallel.hpp>
#include <regard/autograd/tensor.hpp>

namespace regard::cpu_backend {

/// The address of x's first element, without the checks of data<T>().
inline char* first_byte(const Tensor& x) {
  const TensorImpl& impl = *x.impl();
  return static_cast<char*>(impl.storage->data()) + impl.offset * element_size(impl.dtype);
}
/// Whether x is dense and row-major, read without a call.
inline bool is_dense(const Tensor& x) {
  const Shape& shape = x.impl()->shape;
  const Strides& strides = x.impl()->strides;
  int64_t expected = 1;
  for (int64_t d = shape.dim() - 1; d >= 0; --d) {
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

/// Elements of work a chunk, for parallel_for_short: they take about 2 microseconds or more.
inline constexpr int64_t cheap_grain = 16384;  ///< one addition, comparison or copy an element
inline constexpr int64_t math_grain = 8192;    ///< a vectorised exp, tanh, ... an element
inline constexpr int64_t slow_grain = 512;     ///< a call of the standard library an element

/// The order in which elements are visited.
enum class Order : uint8_t {
  any,     ///< the output's order in memory: the fastest
  logical  ///< row-major, as shape() counts
};

/// The common loop over N tensors of one shape: dimensions of size 1 are left out, and neighbours merged where
/// every tensor's strides allow it. Dense tensors of any shape become one run.
template <size_t N>
class Loop {
 public:
  using Pointers = std::array<char*, N>;
  using ElementStrides = std::array<int64_t, N>;

  /// The first tensor is the output, which decides the order when any will do.
  explicit Loop(const std::array<const Tensor*, N>& tensors, Order order = Order::any) {
    const Shape& shape = tensors[0]->impl()->shape;
    bool dense = true;
    for (size_t k = 0; k < N; ++k) {
      first_[k] = first_byte(*tensors[k]);
      bytes_[k] = element_size(tensors[k]->impl()->dtype);
      dense = dense && is_dense(*tensors[k]);
    }
    numel_ = shape.numel();
    sizes_[0] = numel_;
    strides_[0].fill(1);
    if (dense || numel_ <= 1) return;
    std::array<int, Shape::max_dims> from{};  // innermost first
    int count = 0;
    for (int d = static_cast<int>(shape.dim()) - 1; d >= 0; --d)
      if (shape[d] != 1) from[count++] = d;
    if (order == Order::any) {
      const Strides& output = tensors[0]->impl()->strides;
      for (int i = 1; i < count; ++i)
        for (int j = i; j > 0 && output[from[j]] < output[from[j - 1]]; --j) std::swap(from[j], from[j - 1]);
    }
    dims_ = 0;
    for (int i = 0; i < count; ++i) {
      const int d = from[i];
      bool merges = dims_ > 0;
      for (size_t k = 0; merges && k < N; ++k)
        merges = tensors[k]->impl()->strides[d] == strides_[dims_ - 1][k] * sizes_[dims_ - 1];
      if (merges) {
        sizes_[dims_ - 1] *= shape[d];
        continue;
      }
      sizes_[dims_] = shape[d];
      for (size_t k = 0; k < N; ++k) strides_[dims_][k] = tensors[k]->impl()->strides[d];
      ++dims_;
    }
  }

  int64_t numel() const { return numel_; }
  int dims() const { return dims_; }                                      ///< at least one; the innermost is 0
  int64_t size(int dim) const { return sizes_[dim]; }                     ///< of a merged dimension
  const ElementStrides& strides(int dim) const { return strides_[dim]; }  ///< in elements
  char* first(size_t tensor) const { return first_[tensor]; }
  int64_t element_bytes(size_t tensor) const { return bytes_[tensor]; }

  /// Calls f(pointers, strides, count), or f(pointers, strides, count, index), for runs of `count` elements, each
  /// tensor's `strides` elements apart, that together cover everything once; `index` is the number of the run's
  /// first element in the order of the visit. Chunks of `grain` elements go to threads; a run may be cut anywhere.
  template <class F>
  void run(int64_t grain, F&& f) const {
    if (numel_ == 0) return;
    if (numel_ <= grain)
      range(0, numel_, f);
    else
      parallel_for_short(numel_, grain, [this, &f](int64_t begin, int64_t end) { range(begin, end, f); });
  }

  /// The same for the elements [begin, end) of the visit, on this thread.
  template <class F>
  void range(int64_t begin, int64_t end, F&& f) const {
    Pointers pointers = first_;
    if (dims_ == 1) {
      for (size_t k = 0; k < N; ++k) pointers[k] += begin * strides_[0][k] * bytes_[k];
      call(f, pointers, end - begin, begin);
      return;
    }
    std::array<int64_t, Shape::max_dims> at{};
    int64_t rest = begin;
    for (int d = 0; d < dims_; ++d) {
      at[d] = rest % sizes_[d];
      rest /= sizes_[d];
      for (size_t k = 0; k < N; ++k) pointers[k] += at[d] * strides_[d][k] * bytes_[k];
    }
    for (int64_t index = begin; index < end;) {
      const int64_t left_in_row = sizes_[0] - at[0];
      const int64_t count = left_in_row < end - index ? left_in_row : end - index;
      call(f, pointers, count, index);
      index += count;
      if (index == end) return;
      for (size_t k = 0; k < N; ++k) pointers[k] -= at[0] * strides_[0][k] * bytes_[k];
      at[0] = 0;
      for (int d = 1; d < dims_; ++d) {
        if (++at[d] < sizes_[d]) {
          for (size_t k = 0; k < N; ++k) pointers[k] += strides_[d][k] * bytes_[k];
          break;
        }
        for (size_t k = 0; k < N; ++k) pointers[k] -= (sizes_[d] - 1) * strides_[d][k] * bytes_[k];
        at[d] = 0;
      }
    }
  }

 private:
  template <class F>
  void call(F&& f, const Pointers& pointers, int64_t count, int64_t index) const {
    if constexpr (std::is_invocable_v<F&, const Pointers&, const ElementStrides&, int64_t, int64_t>)
      f(pointers, strides_[0], count, index);
    else
      f(pointers, strides_[0], count);
  }

  int dims_ = 1;
  int64_t numel_ = 0;
  Pointers first_{};
  ElementStrides bytes_{};                               // of one element
  std::array<int64_t, Shape::max_dims> sizes_;           // innermost first
  std::array<ElementStrides, Shape::max_dims> strides_;  // [dim][tensor], elements
};

/// `iterate<2>({&y, &a}, cheap_grain, [](const auto& pointers, const auto& strides, int64_t count) { ... })`
template <size_t N, class F>
void iterate(const std::array<const Tensor*, N>& tensors, int64_t grain, F&& f) {
  Loop<N>(tensors).run(grain, f);
}

}  // namespace regard::cpu_backend
