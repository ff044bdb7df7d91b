// Functions of numbers, for kernels. f32 within a few ulp of the CPU's; formulas that are easy to get wrong at the ends
// of the range stand here once.
#pragma once

#include <math.h>

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

namespace regard::cuda_backend {

template <class T>
__host__ __device__ constexpr T infinity() {
  return std::numeric_limits<T>::infinity();
}

template <class T>
inline constexpr T log2_of_e = static_cast<T>(1.4426950408889634074);

template <class T>
__device__ T sigmoid(T x) {
  const T e = exp(-fabs(x));
  return (x < 0 ? e : T(1)) / (1 + e);
}
/// The derivative of sigmoid, accurate in both tails.
template <class T>
__device__ T logistic_derivative(T x) {
  const T e = exp(-fabs(x));
  return e / ((1 + e) * (1 + e));
}
/// x * share; the limit at minus infinity is 0, where the product would be NaN.
template <class T>
__device__ T times_share(T x, T share) {
  return x == -infinity<T>() ? T(-0.0) : x * share;
}
template <class T>
__device__ T hold(T x, T limit) {
  return x < -limit ? -limit : x > limit ? limit : x;
}

inline constexpr double sqrt_half = 0.70710678118654752440;            // 1 / sqrt(2)
inline constexpr double normal_density_0 = 0.39894228040143267794;     // 1 / sqrt(2 pi)
inline constexpr double twice_sqrt_2_over_pi = 1.5957691216057307117;  // 2 sqrt(2 / pi)

template <class T>
__device__ T gelu(T x) {
  return times_share(x, T(0.5) * erfc(-x * T(sqrt_half)));
}
template <class T>
__device__ T gelu_grad(T x, T g) {
  const T held = hold(x, T(50));
  return g * (T(0.5) * erfc(-x * T(sqrt_half)) + held * exp(T(-0.5) * held * held) * T(normal_density_0));
}
template <class T>
__device__ T gelu_tanh(T x) {
  return times_share(x, sigmoid(T(twice_sqrt_2_over_pi) * (x + T(0.044715) * x * x * x)));
}
template <class T>
__device__ T gelu_tanh_grad(T x, T g) {
  const T held = hold(x, T(50));
  const T v = T(twice_sqrt_2_over_pi) * (held + T(0.044715) * held * held * held);
  return g *
         (sigmoid(v) + held * logistic_derivative(v) * T(twice_sqrt_2_over_pi) * (1 + T(3 * 0.044715) * held * held));
}
template <class T>
__device__ T silu(T x) {
  return times_share(x, sigmoid(x));
}
template <class T>
__device__ T silu_grad(T x, T g) {
  return g * (sigmoid(x) + hold(x, sizeof(T) == 8 ? T(800) : T(120)) * logistic_derivative(x));
}

}  // namespace regard::cuda_backend
