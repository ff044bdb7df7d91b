// Dropout, with the CPU's mask.
#include <regard/autograd/backend/cuda/counted.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/random.hpp>

namespace regard::cuda_backend {
namespace {

template <class T>
struct Drop {
  DropoutMask mask;
  T scale;
  __device__ T operator()(int64_t i, T x) const {
    return mask.keeps(static_cast<uint64_t>(i)) ? x * scale : T{0};  // infinities and NaN are dropped too
  }
};

}  // namespace

void dropout(const Tensor& y, const Tensor& a, double p, uint64_t seed, uint64_t offset) {
  const DropoutMask mask(p, seed, offset);
  visit_floating(y.dtype(), [&]<class E>(E) {
    using T = Number<E>;
    counted<E, E>("dropout", Drop<T>{mask, mask.scale<T>()}, y, a);
  });
}

}  // namespace regard::cuda_backend
