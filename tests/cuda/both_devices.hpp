// One computation on the CPU and on the GPU, compared.
#pragma once

#include <catch2/catch.hpp>

#include <functional>
#include <string>
#include <vector>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/regard.hpp>

namespace both_devices {

using namespace regard;

/// The same elements on both.
struct Pair {
  Tensor cpu, gpu;
};
inline Pair on_both(const Tensor& x) { return {x, x.to(cuda())}; }

/// The same view of both.
template <class F>
Pair seen(const Pair& x, const F& view) {
  return {view(x.cpu), view(x.gpu)};
}
/// [r, c] or [b, r, c] in some of the layouts that tensors have: dense, transposed, with gaps, at an odd offset,
/// repeated.
inline std::vector<Pair> in_layouts(const Tensor& x) {
  const int64_t dims = x.dim(), rows = x.size(-2), columns = x.size(-1);
  std::vector<Pair> all{on_both(x)};
  all.push_back(seen(on_both(x.transpose(dims - 2, dims - 1).contiguous()),
                     [=](const Tensor& t) { return t.transpose(dims - 2, dims - 1); }));
  all.push_back(seen(on_both(cat({x, x}, -1)), [=](const Tensor& t) { return t.narrow(dims - 1, 0, columns); }));
  all.push_back(seen(on_both(cat({x.slice(dims - 1, 0, 1), x}, -1)),
                     [=](const Tensor& t) { return t.narrow(dims - 1, 1, columns); }));
  all.push_back(seen(on_both(x.narrow(dims - 2, 0, 1).contiguous()), [=](const Tensor& t) {
    Shape shape = t.shape();
    shape[dims - 2] = rows;
    return t.expand(shape);
  }));
  all.push_back(seen(on_both(x.narrow(dims - 1, 0, 1).contiguous()), [=](const Tensor& t) {
    Shape shape = t.shape();
    shape[dims - 1] = columns;
    return t.expand(shape);
  }));
  return all;
}

/// `like` on both, full of ones, in layouts that can be written.
inline std::vector<Pair> outputs(const Shape& shape, DType dtype) {
  std::vector<Pair> all = in_layouts(ones(shape, dtype));
  all.resize(4);
  return all;
}

/// NaN equals NaN; i64 and booleans must be equal.
inline void check_same(const Tensor& got, const Tensor& want, double rtol = 0, double atol = 0) {
  REQUIRE(got.device() == cuda());
  const Tensor here = got.to(cpu());
  REQUIRE(here.shape() == want.shape());
  REQUIRE(here.dtype() == want.dtype());
  if (!is_floating(want.dtype())) {
    CHECK(equal(here, want));
  } else if (!allclose(here, want, rtol, atol, true)) {
    const Tensor difference = abs(here.to(DType::f64) - want.to(DType::f64));
    FAIL_CHECK("differ by up to " << difference.max().item<double>() << " of " << want.shape());
  }
}
inline void check_same(const Pair& got, double rtol = 0, double atol = 0) { check_same(got.gpu, got.cpu, rtol, atol); }

}  // namespace both_devices
