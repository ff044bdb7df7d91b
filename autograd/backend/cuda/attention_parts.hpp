// Results of attention that several blocks compute in parts, and how they are put together, in their order.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <optional>
#include <type_traits>

#include <regard/autograd/backend/cuda/attention_problem.hpp>
#include <regard/autograd/backend/cuda/row_grid.hpp>

namespace regard::cuda_backend {

// ---- The output: parts of the keys

/// What parts of the keys give: of each row the sum of exponentials times values, the largest score, the sum.
template <class T>
struct KeyParts {
  int count = 1;
  T *output = nullptr, *largest = nullptr, *total = nullptr;  // [parts, N * H * L, Dv], [parts, N * H * L]
};

/// Memory for `count` parts, for as long as it lives. One part: none.
template <class T>
class KeyPartsMemory {
 public:
  template <class E>
  KeyPartsMemory(const AttentionProblem<E>& p, int64_t count, Device device) {
    if (count <= 1) return;
    const int64_t rows = int64_t{p.batch} * p.heads * p.queries;
    memory_.emplace(count * rows * (p.value_width + 2) * static_cast<int64_t>(sizeof(T)), device);
    parts_.count = static_cast<int>(count);
    parts_.output = memory_->template as<T>();
    parts_.largest = parts_.output + count * rows * p.value_width;
    parts_.total = parts_.largest + count * rows;
  }
  const KeyParts<T>& parts() const { return parts_; }

 private:
  KeyParts<T> parts_;
  std::optional<Scratch> memory_;
};

/// Parts of the keys to the output and statistics. A thread for each element of the output.
template <class E, class T = Number<E>>
__global__ void join_parts_kernel(AttentionProblem<E> p, HeadRows<E> y, KeyParts<T> parts) {
  const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * p.queries;
  for (int64_t row = first_row(); row < rows; row += row_step()) {
    T largest = -infinity<T>();
    for (int part = 0; part < parts.count; ++part) largest = Larger()(largest, parts.largest[part * rows + row]);
    const T shift = shift_of(largest);
    const auto share = [&](int part) { return power_of(parts.largest[part * rows + row], shift); };
    T total = 0;
    for (int part = 0; part < parts.count; ++part) total += parts.total[part * rows + row] * share(part);
    const T inverse = total == 0 ? T(0) : 1 / total;
    const int64_t head = row / p.queries, query = row - head * p.queries, n = head / p.heads, h = head - n * p.heads;
    for (int64_t column = first_column(); column < p.value_width; column += column_step()) {
      T sum = 0;
      for (int part = 0; part < parts.count; ++part)
        sum += parts.output[(part * rows + row) * p.value_width + column] * share(part);
      y.at(n, h)[query * y.row + column * y.column] = element<E>(sum * inverse);
    }
    if (first_column() == 0) {
      T* statistics = p.statistics + 2 * head * p.queries + query;
      statistics[0] = total == 0 ? T(0) : largest;
      statistics[p.queries] = inverse;
    }
  }
}

// ---- Gradients: the sum of dy y of each row

/// [N, H, L], in y's dtype, or f32 where that has 16 bits.
void write_delta(void* delta, const Tensor& dy, const Tensor& y);

/// The same for as long as it lives; `y` may be attention_delta()'s result, which is it already.
template <class T>
class Delta {
 public:
  Delta(const Tensor& dy, const Tensor& y) {
    if (y.dim() == 3) {
      data_ = device_pointer<const T>(y);
      return;
    }
    memory_.emplace(y.size(0) * y.size(1) * y.size(2) * static_cast<int64_t>(sizeof(T)), y.device());
    write_delta(memory_->template as<void>(), dy, y);
    data_ = memory_->template as<const T>();
  }
  const T* data() const { return data_; }

 private:
  const T* data_;
  std::optional<Scratch> memory_;
};

// ---- Gradients: parts of the queries

/// to = the sum of `parts` dense parts, in their order.
template <class E, class T = Number<E>>
__global__ void sum_parts_kernel(HeadRows<E> to, const T* from, int parts, int64_t rows, int heads, int length,
                                 int width) {
  for (int64_t row = first_row(); row < rows; row += row_step()) {
    const int64_t head = row / length, i = row - head * length, n = head / heads, h = head - n * heads;
    E* const at = to.at(n, h) + i * to.row;
    for (int64_t column = first_column(); column < width; column += column_step()) {
      T sum = from[row * width + column];
      for (int part = 1; part < parts; ++part) sum += from[(part * rows + row) * width + column];
      at[column * to.column] = element<E>(sum);
    }
  }
}

/// A gradient that a kernel writes: in place, or first to memory of its own, in parts that are then added up.
template <class E>
class Target {
 public:
  using T = Number<E>;

  Target(const Tensor& gradient, bool in_place, int64_t parts)
      : gradient_(gradient), in_place_(in_place && parts == 1), parts_(parts) {
    if (gradient.defined() && !in_place_)
      memory_.emplace(parts * gradient.numel() * static_cast<int64_t>(sizeof(T)), gradient.device());
  }
  bool wanted() const { return gradient_.defined(); }
  HeadRows<E> rows() const { return rows_of<E>(gradient_); }
  /// What the kernel writes, where sums are of the gradient's own type.
  HeadRows<T> written() const {
    static_assert(std::is_same_v<E, T>);
    if (!memory_) return rows();
    return dense_rows<T>(parts(), gradient_.size(1), gradient_.size(2), gradient_.size(3));
  }
  /// Dense [parts, N, H, length, width]; null: the gradient itself is written.
  T* parts() const { return memory_ ? memory_->template as<T>() : nullptr; }
  /// From one part to the next.
  int64_t part() const { return gradient_.defined() ? gradient_.numel() : 0; }
  void finish(const char* op) const {
    if (!memory_) return;
    const int64_t length = gradient_.size(2), rows = gradient_.size(0) * gradient_.size(1) * length;
    launch(op, stream_of(gradient_), row_grid(rows, gradient_.size(3)), sum_parts_kernel<E>, rows_of<E>(gradient_),
           parts(), static_cast<int>(parts_), rows, static_cast<int>(gradient_.size(1)), static_cast<int>(length),
           static_cast<int>(gradient_.size(3)));
  }

 private:
  const Tensor& gradient_;
  bool in_place_;
  int64_t parts_;
  std::optional<Scratch> memory_;
};

/// Whether a gradient is written over what it is of.
inline bool is_over(const Tensor& gradient, const Tensor& x) {
  return gradient.defined() && gradient.raw_data() == x.raw_data();
}

}  // namespace regard::cuda_backend
