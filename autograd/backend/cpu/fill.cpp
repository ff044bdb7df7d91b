// Tensors from numbers: fill and arange.
#include <regard/autograd/backend/cpu/convert.hpp>
#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/iterate.hpp>

namespace regard::cpu_backend {

void fill(const Tensor& y, Scalar value) {
  visit_dtype(y.dtype(), [&]<class T>(T) {
    const T element = value.to<T>();
    iterate<1>({&y}, cheap_grain, [element](const auto& pointers, const auto& strides, int64_t count) {
      auto* to = reinterpret_cast<T*>(pointers[0]);
      if (strides[0] == 1)
        for (int64_t i = 0; i < count; ++i) to[i] = element;
      else
        for (int64_t i = 0; i < count; ++i) to[i * strides[0]] = element;
    });
  });
}

void arange(const Tensor& y, Scalar start, Scalar step) {
  // start + i * step for each i by itself: no error builds up along the way.
  visit_dtype(y.dtype(), [&]<class T>(T) {
    using Number = std::conditional_t<std::is_same_v<T, int64_t>, int64_t, double>;
    const auto first = start.to<Number>(), by = step.to<Number>();
    Loop<1>({&y}, Order::logical)
        .run(cheap_grain, [=](const auto& pointers, const auto& strides, int64_t count, int64_t index) {
          auto* to = reinterpret_cast<T*>(pointers[0]);
          for (int64_t i = 0; i < count; ++i)
            to[i * strides[0]] = convert<T>(first + static_cast<Number>(index + i) * by);
        });
  });
}

}  // namespace regard::cpu_backend
