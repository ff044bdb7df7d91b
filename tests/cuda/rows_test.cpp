// Reductions and rows on a GPU: sizes, strides and numbers that the op cases leave out, compared with the CPU.
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/ops/softmax_rows.hpp>
#include <regard/regard.hpp>

namespace rows_test {

using namespace regard;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

using Op = std::function<Tensor(const Tensor&)>;

// Equal to the CPU's result within `tolerance` of the largest element, special values included.
void check_close(const Tensor& got, const Tensor& right, double tolerance) {
  REQUIRE(got.shape() == right.shape());
  REQUIRE(got.dtype() == right.dtype());
  const std::vector<double> g = got.to_vector<double>(), r = right.to_vector<double>();
  double largest = 1e-30, worst = 0;
  for (double x : r)
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  size_t place = 0;
  for (size_t i = 0; i < r.size(); ++i) {
    double error = std::abs(g[i] - r[i]) / largest;
    if (g[i] == r[i] || (std::isnan(g[i]) && std::isnan(r[i]))) error = 0;
    if (error <= worst) continue;  // NaN goes on
    worst = std::isnan(error) ? inf : error;
    place = i;
  }
  CAPTURE(place, r.empty() ? 0 : g[place], r.empty() ? 0 : r[place]);
  CHECK(worst <= tolerance);
}
double tolerance_of(DType dtype) { return dtype == DType::f32 ? 4e-6 : 1e-13; }

// The op on x and on its copy on the GPU, of the same strides.
void check_op(const Tensor& whole, const std::function<Tensor(const Tensor&)>& view, const Op& op) {
  const Tensor x = view(whole);
  CAPTURE(x.shape(), x.strides(), x.dtype());
  check_close(op(view(whole.to(cuda()))), op(x), tolerance_of(x.dtype()));
}
void check_op(const Tensor& x, const Op& op) {
  check_op(
      x, [](const Tensor& same) { return same; }, op);
}

// Runs a row of the table on the CPU and on the GPU, and compares what it wrote.
using Call = std::function<std::vector<Tensor>(const Kernels& k, const std::function<Tensor(const Tensor&)>& here)>;
void check_call(const Call& call, DType dtype, double factor = 1) {
  const auto right = call(own_kernels(cpu()), [](const Tensor& x) { return x; });
  const auto got = call(own_kernels(cuda()), [](const Tensor& x) { return x.defined() ? x.to(cuda()) : x; });
  const auto again = call(own_kernels(cuda()), [](const Tensor& x) { return x.defined() ? x.to(cuda()) : x; });
  for (size_t i = 0; i < right.size(); ++i) {
    CAPTURE(i);
    if (!right[i].defined()) continue;
    check_close(got[i], right[i], factor * tolerance_of(dtype));
    CHECK(equal(masked_fill(got[i], got[i] != got[i], 7), masked_fill(again[i], again[i] != again[i], 7)));
  }
}

Tensor numbers(const Shape& shape, DType dtype = DType::f32) { return randn(shape, dtype); }

constexpr DType halves[] = {DType::bf16, DType::f16};
double rounding_of(DType half) { return half == DType::bf16 ? 0x1p-8 : 0x1p-11; }

// The same on 16-bit numbers: the CPU has them as f32, and results are some roundings apart.
void check_half(const Tensor& x, const Op& op, double roundings = 1) {
  for (DType dtype : halves) {
    CAPTURE(x.shape(), x.strides(), dtype);
    const Tensor got = op(x.to(dtype).to(cuda())), right = op(x.to(dtype).to(DType::f32));
    CHECK(got.dtype() == (is_floating(right.dtype()) ? dtype : right.dtype()));
    check_close(got.to(right.dtype()), right, is_floating(right.dtype()) ? roundings * rounding_of(dtype) + 4e-6 : 0);
  }
}
void check_half_call(const Call& call, double roundings) {
  for (DType dtype : halves) {
    const auto right = call(own_kernels(cpu()), [=](const Tensor& x) {
      return x.defined() && is_floating(x.dtype()) ? x.to(dtype).to(DType::f32) : x;
    });
    const auto on_gpu = [=](const Tensor& x) {
      return !x.defined() ? x : is_floating(x.dtype()) ? x.to(dtype).to(cuda()) : x.to(cuda());
    };
    const auto got = call(own_kernels(cuda()), on_gpu), again = call(own_kernels(cuda()), on_gpu);
    for (size_t i = 0; i < right.size(); ++i) {
      CAPTURE(i, dtype, got[i].dtype());
      const double tolerance = got[i].dtype() == DType::f32 ? 1e-5 : roundings * rounding_of(dtype) + 4e-6;
      check_close(got[i].to(DType::f32), right[i], tolerance);
      CHECK(equal(got[i], again[i]));
    }
  }
}
// For what is kept in f32 of 16-bit rows.
TensorOptions statistics_of(const Tensor& a) { return {a.dtype() == DType::f64 ? DType::f64 : DType::f32, a.device()}; }

}  // namespace

TEST_CASE("cuda rows: sums over rows and columns of many sizes") {
  manual_seed(1);
  for (DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : {Shape{3, 1}, Shape{2, 127}, Shape{5, 128}, Shape{3, 1029}, Shape{70, 36}, Shape{400, 3},
                               Shape{1, 9000}, Shape{9000, 1}, Shape{700, 40}, Shape{2, 4096}, Shape{1500, 4}}) {
      const Tensor x = numbers(shape, dtype);
      for (int64_t dim : {0, 1}) {
        check_op(x, [=](const Tensor& t) { return sum(t, dim); });
        check_op(x, [=](const Tensor& t) { return logsumexp(t, dim, true); });
      }
      check_op(x, [](const Tensor& t) { return mean(t); });
      check_op(x, [](const Tensor& t) { return var(t, 0); });
      check_op(x, [](const Tensor& t) { return var(t); });
      check_op(x, [](const Tensor& t) { return norm(t); });
      check_op(x, [](const Tensor& t) { return max(t, 0).first; });
      check_op(x, [](const Tensor& t) { return min(t, 1).second; });
      check_op(x, [](const Tensor& t) { return max(t); });
      check_op(x, [](const Tensor& t) { return argmax(t); });
    }
  }
}

TEST_CASE("cuda rows: reductions of any strides, over any dimensions") {
  manual_seed(2);
  const Tensor whole = numbers({6, 34, 5});
  const std::vector<std::function<Tensor(const Tensor&)>> views = {
      [](const Tensor& x) { return x; },
      [](const Tensor& x) {
        return x.permute({2, 0, 1});
      },
      [](const Tensor& x) {
        return x.permute({1, 2, 0});
      },
      [](const Tensor& x) { return x.slice(1, 3, 31, 2); },
      [](const Tensor& x) {
        return x.slice(1, 1, 2).expand({6, 9, 5});
      },
      [](const Tensor& x) { return x.slice(0, 1, 5).slice(2, 1, 4); }};
  for (const auto& view : views) {
    for (const Shape& dims : {Shape{0}, Shape{1}, Shape{2}, Shape{0, 1}, Shape{0, 2}, Shape{1, 2}, Shape{0, 1, 2}}) {
      CAPTURE(dims);
      check_op(whole, view, [&](const Tensor& t) { return sum(t, Dims(dims)); });
      check_op(whole, view, [&](const Tensor& t) { return var(t, Dims(dims)); });
      check_op(whole, view, [&](const Tensor& t) { return logsumexp(t, Dims(dims), true); });
      check_op(whole, view, [&](const Tensor& t) { return any(t > 2.0, Dims(dims)); });
    }
    for (int64_t dim : {0, 1, 2}) {
      check_op(whole, view, [&](const Tensor& t) { return max(t, dim, true).second; });
      check_op(whole, view, [&](const Tensor& t) { return softmax(t, dim); });
      check_op(whole, view, [&](const Tensor& t) { return log_softmax(t, dim); });
    }
  }
}

TEST_CASE("cuda rows: reductions keep the CPU's range, NaN, ties and integers") {
  const Tensor large = from_vector<float>({3e38F, 3e38F, -1, 3e38F, 0, 7}, {2, 3});
  check_op(large, [](const Tensor& t) { return mean(t, 0); });
  check_op(large, [](const Tensor& t) { return mean(t, 1); });
  check_op(large, [](const Tensor& t) { return norm(t); });
  std::vector<double> special(900, 1.5);
  special[17] = nan;
  special[33] = inf;
  special[650] = -inf;
  special[300] = nan;
  const Tensor odd = from_vector<double>(special, {30, 30}).to(DType::f32);
  for (int64_t dim : {0, 1}) {
    check_op(odd, [=](const Tensor& t) { return max(t, dim).second; });
    check_op(odd, [=](const Tensor& t) { return min(t, dim).first; });
    check_op(odd, [=](const Tensor& t) { return logsumexp(t, dim); });
    check_op(odd, [=](const Tensor& t) { return sum(t, dim); });
    check_op(odd, [=](const Tensor& t) { return all(t, dim); });
    check_op(full({4, 50}, -inf), [=](const Tensor& t) { return logsumexp(t, dim); });
    check_op(zeros({40, 700}), [=](const Tensor& t) { return max(t, dim).second; });
  }
  check_op(odd, [](const Tensor& t) { return max(t); });
  check_op(odd, [](const Tensor& t) { return argmin(t); });
  const Tensor whole = randint(-1000, 1000, {9, 700});
  check_op(whole, [](const Tensor& t) { return sum(t, 0); });
  check_op(whole, [](const Tensor& t) { return min(t, 1).first; });
  check_op(whole > 0, [](const Tensor& t) { return sum(t); });
  check_op(whole > 990, [](const Tensor& t) { return any(t, 1); });
  check_op(full({2}, int64_t{1} << 62), [](const Tensor& t) { return sum(t * 3); });
}

TEST_CASE("cuda rows: softmax and its gradients over rows of every length") {
  manual_seed(3);
  for (DType dtype : {DType::f32, DType::f64}) {
    for (int64_t length : {1, 2, 31, 32, 64, 100, 129, 512, 516, 1000, 2048, 4100, 8200}) {
      const int64_t rows = length < 200 ? 37 : length < 3000 ? 3 : 1;
      const Tensor x = numbers({rows, length}, dtype) * 4.0, g = numbers({rows, length}, dtype);
      for (int64_t dim : {0, 1}) {
        if (dim == 0 && length > 200) continue;
        CAPTURE(length, dim);
        check_call(
            [&](const Kernels& k, const auto& here) {
              const Tensor a = here(x), dy = here(g);
              const Tensor y = empty_like(a), log_y = empty_like(a), da = empty_like(a), log_da = empty_like(a);
              k.softmax(y, a, dim, false);
              k.softmax_grad(da, y, dy, dim);
              k.log_softmax(log_y, a, dim);
              k.log_softmax_grad(log_da, log_y, dy, dim);
              return std::vector{y, da, log_y, log_da};
            },
            dtype);
      }
    }
  }
  for (const Shape& shape : {Shape{3, 200, 2}, Shape{2, 1200, 3}, Shape{2, 9, 40}})  // columns
    check_call(
        [&, x = numbers(shape), g = numbers(shape)](const Kernels& k, const auto& here) {
          const Tensor a = here(x).clone(), da = empty_like(a);
          k.softmax(a, a, 1, false);  // over itself
          k.softmax_grad(da, a, here(g), 1);
          return std::vector{a, da};
        },
        DType::f32);
}

TEST_CASE("cuda rows: softmax of infinities, NaN and empty rows") {
  for (int64_t length : {5, 600, 9000}) {
    std::vector<float> x(static_cast<size_t>(6 * length), 0.5F);
    const auto at = [&](int64_t row, int64_t i) -> float& { return x[static_cast<size_t>(row * length + i)]; };
    const auto infinite = static_cast<float>(inf);
    for (int64_t i = 0; i < length; ++i) at(0, i) = at(4, i) = at(5, i) = -infinite;
    at(1, 2) = -infinite;
    at(2, 3) = infinite;
    at(3, 4) = static_cast<float>(nan);
    at(4, 1) = 2;
    at(5, 1) = static_cast<float>(nan);
    const Tensor a = from_vector<float>(x, {6, length});
    for (bool zero : {false, true}) {
      CAPTURE(length, zero);
      check_call(
          [&](const Kernels& k, const auto& here) {
            const Tensor in = here(a), y = empty_like(in), log_y = empty_like(in);
            k.softmax(y, in, 1, zero);
            k.log_softmax(log_y, in, 1);
            return std::vector{y, log_y};
          },
          DType::f32);
    }
  }
}

TEST_CASE("cuda rows: norms and their gradients over rows of every width") {
  manual_seed(4);
  for (DType dtype : {DType::f32, DType::f64}) {
    for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
             {300, 3}, {41, 32}, {19, 100}, {67, 257}, {9, 516}, {5, 2048}, {2, 4200}, {1, 64}}) {
      const Tensor x = numbers({rows, width}, dtype) * 2.0 + 30.0, g = numbers({rows, width}, dtype);
      const Tensor w = numbers({width}, dtype), b = numbers({width}, dtype);
      for (const bool plain : {false, true}) {
        CAPTURE(rows, width, plain, dtype);
        check_call(
            [&, width = width](const Kernels& k, const auto& here) {
              const Tensor a = here(x), dy = here(g), weight = here(plain ? Tensor() : w);
              const TensorOptions options{a.dtype(), a.device()};
              const Tensor y = empty_like(a), mean = empty({a.size(0)}, options), rstd = empty_like(mean);
              k.layer_norm(y, mean, rstd, a, weight, here(plain ? Tensor() : b), 1e-5);
              const Tensor da = empty_like(a), dw = empty({width}, options), db = empty({width}, options);
              k.layer_norm_grad(da, dw, db, dy, a, mean, rstd, weight);
              const Tensor db_alone = empty({width}, options), da_alone = empty_like(a);
              k.layer_norm_grad({}, {}, db_alone, dy, a, mean, rstd, weight);
              k.layer_norm_grad(da_alone, {}, {}, dy, a, mean, rstd, weight);
              return std::vector{y, mean, rstd, da, dw, db, db_alone, da_alone};
            },
            dtype, 4);
        check_call(
            [&, width = width](const Kernels& k, const auto& here) {
              const Tensor a = here(x), weight = here(plain ? Tensor() : w);
              const TensorOptions options{a.dtype(), a.device()};
              const Tensor y = empty_like(a), rstd = empty({a.size(0)}, options);
              k.rms_norm(y, rstd, a, weight, 1e-6);
              const Tensor da = empty_like(a), dw = empty({width}, options);
              k.rms_norm_grad(da, dw, here(g), a, rstd, weight);
              return std::vector{y, rstd, da, dw};
            },
            dtype, 4);
      }
    }
  }
}

TEST_CASE("cuda rows: layer norm keeps its digits where the mean is large") {
  for (double base : {100.0, 1e4, 4e4}) {
    std::vector<float> row;
    for (int i = 0; i < 48; ++i) row.push_back(static_cast<float>(base + i % 7));
    const Tensor x = from_vector<float>(row, {3, 16});
    const Tensor right = layer_norm(x.to(DType::f64), {16}).to(DType::f32);
    CAPTURE(base);
    check_close(layer_norm(x.to(cuda()), {16}), right, 1e-5);
    check_op(x, [](const Tensor& t) { return layer_norm(t, {16}); });
  }
}

TEST_CASE("cuda rows: cross-entropy and its gradient") {
  manual_seed(5);
  for (DType dtype : {DType::f32, DType::f64}) {
    for (const auto& [rows, classes] :
         std::vector<std::pair<int64_t, int64_t>>{{50, 2}, {33, 64}, {9, 130}, {7, 1001}, {3, 8200}, {2, 9001}}) {
      const Tensor x = numbers({rows, classes}, dtype) * 5.0, weight = rand({classes}, dtype),
                   g = numbers({rows}, dtype);
      Tensor targets = randint(0, classes, {rows});
      targets.select(0, 1).fill_(-100);
      for (double smoothing : {0.0, 0.1, 1.0}) {
        for (bool weighted : {false, true}) {
          CAPTURE(rows, classes, smoothing, weighted);
          check_call(
              [&](const Kernels& k, const auto& here) {
                const Tensor logits = here(x).clone(), t = here(targets), w = here(weighted ? weight : Tensor());
                const Tensor dlosses = here(g), losses = empty_like(dlosses), log_sum_exp = empty_like(dlosses);
                const Tensor dlogits = empty_like(logits);
                k.cross_entropy(losses, log_sum_exp, logits, t, w, -100, smoothing);
                k.cross_entropy_grad(dlogits, dlosses, log_sum_exp, logits, t, w, -100, smoothing);
                // Over the logits, from one gradient for all.
                const Tensor same = sum(dlosses).expand(dlosses.shape());
                k.cross_entropy_grad(logits, same, log_sum_exp, logits, t, w, -100, smoothing);
                return std::vector{losses, log_sum_exp, dlogits, logits};
              },
              dtype);
        }
      }
    }
  }
  std::vector<float> odd = {1, static_cast<float>(inf),  2, 1, static_cast<float>(nan),
                            0, -static_cast<float>(inf), 3, 1};
  check_call(
      [&](const Kernels& k, const auto& here) {
        const Tensor logits = here(from_vector<float>(odd, {3, 3})), losses = here(zeros({3})), lse = here(zeros({3}));
        k.cross_entropy(losses, lse, logits, here(from_vector<int64_t>({0, 0, 0})), {}, -1, 0);
        return std::vector{losses, lse};
      },
      DType::f32);
}

TEST_CASE("cuda rows: reductions of 16-bit numbers round once") {
  manual_seed(6);
  const std::vector<std::function<Tensor(const Tensor&)>> views = {
      [](const Tensor& x) { return x; }, [](const Tensor& x) { return x.transpose(0, 1); },
      [](const Tensor& x) { return x.slice(1, 1); },
      [](const Tensor& x) { return x.slice(0, 0, 1).expand(x.shape()); }};
  for (const Shape& shape :
       {Shape{3, 2}, Shape{2, 127}, Shape{70, 36}, Shape{400, 9}, Shape{2, 9000}, Shape{1500, 8}}) {
    const Tensor x = numbers(shape) + 0.5;
    for (const auto& view : views) {
      const auto check = [&](const Op& op) { check_half(x, [&](const Tensor& t) { return op(view(t)); }); };
      for (int64_t dim : {0, 1}) {
        check([=](const Tensor& t) { return sum(t, dim); });
        check([=](const Tensor& t) { return logsumexp(t, dim, true); });
        check([=](const Tensor& t) { return max(t, dim).first; });
        check([=](const Tensor& t) { return min(t, dim).second; });
        check([=](const Tensor& t) { return var(t, dim); });
      }
      check([](const Tensor& t) { return mean(t); });
      check([](const Tensor& t) { return norm(t); });
      check([](const Tensor& t) { return max(t); });
      check([](const Tensor& t) { return argmin(t); });
      check([](const Tensor& t) { return any(t, 1); });
    }
  }
  // The sum leaves f16's range, the mean does not.
  check_half(full({3, 700}, 60000), [](const Tensor& t) { return mean(t, 1); });
  CHECK(equal(sum(full({3, 700}, 60000, {DType::f16, cuda()}), 1), full({3}, inf, {DType::f16, cuda()})));
}

TEST_CASE("cuda rows: softmax of 16-bit numbers") {
  manual_seed(7);
  for (int64_t length : {1, 7, 64, 129, 256, 1000, 4104, 8200}) {
    const int64_t rows = length < 200 ? 37 : 2;
    const Tensor x = numbers({rows, length}) * 4.0, g = numbers({rows, length});
    for (int64_t dim : {0, 1}) {
      CAPTURE(length, dim);
      check_half(x, [=](const Tensor& t) { return softmax(t, dim); });
      check_half(x, [=](const Tensor& t) { return log_softmax(t, dim); });
      check_half_call(
          [&, y = softmax(x, dim), log_y = log_softmax(x, dim)](const Kernels& k, const auto& here) {
            const Tensor dy = here(g), da = empty_like(dy), log_da = empty_like(dy);
            k.softmax_grad(da, here(y), dy, dim);
            k.log_softmax_grad(log_da, here(log_y), dy, dim);
            return std::vector{da, log_da};
          },
          1);
    }
  }
}

TEST_CASE("cuda rows: norms of 16-bit numbers, their statistics in f32") {
  manual_seed(8);
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
           {300, 3}, {41, 32}, {67, 257}, {9, 520}, {5, 2048}, {3, 4096}, {2, 4200}}) {
    const Tensor x = numbers({rows, width}) * 2.0 + 3.0, g = numbers({rows, width}), w = numbers({width}),
                 b = numbers({width});
    for (const bool plain : {false, true}) {
      CAPTURE(rows, width, plain);
      check_half_call(
          [&, width = width](const Kernels& k, const auto& here) {
            const Tensor a = here(x), dy = here(g), weight = here(plain ? Tensor() : w);
            const TensorOptions options{a.dtype(), a.device()};
            const Tensor y = empty_like(a), mean = empty({a.size(0)}, statistics_of(a)), rstd = empty_like(mean);
            k.layer_norm(y, mean, rstd, a, weight, here(plain ? Tensor() : b), 1e-5);
            const Tensor da = empty_like(a), dw = empty({width}, options), db = empty({width}, options);
            k.layer_norm_grad(da, dw, db, dy, a, mean, rstd, weight);
            const Tensor rms = empty_like(a), rms_rstd = empty_like(mean), rms_da = empty_like(a),
                         rms_dw = empty({width}, options);
            k.rms_norm(rms, rms_rstd, a, weight, 1e-6);
            k.rms_norm_grad(rms_da, rms_dw, dy, a, rms_rstd, weight);
            return std::vector{y, mean, rstd, da, dw, db, rms, rms_rstd, rms_da, rms_dw};
          },
          1);
    }
  }
}

TEST_CASE("cuda rows: cross-entropy of 16-bit logits, its losses in f32") {
  manual_seed(9);
  for (const auto& [rows, classes] :
       std::vector<std::pair<int64_t, int64_t>>{{50, 2}, {33, 64}, {9, 130}, {7, 1001}, {3, 8200}, {2, 9001}}) {
    const Tensor x = numbers({rows, classes}) * 5.0, weight = rand({classes}), g = numbers({rows});
    Tensor targets = randint(0, classes, {rows});
    targets.select(0, 1).fill_(-100);
    for (double smoothing : {0.0, 0.1}) {
      for (bool weighted : {false, true}) {
        CAPTURE(rows, classes, smoothing, weighted);
        check_half_call(
            [&](const Kernels& k, const auto& here) {
              const Tensor logits = here(x), t = here(targets), w = here(weighted ? weight : Tensor());
              const Tensor dlosses = g.to(logits.device()), losses = empty_like(dlosses),
                           log_sum_exp = empty_like(dlosses), dlogits = empty_like(logits);
              k.cross_entropy(losses, log_sum_exp, logits, t, w, -100, smoothing);
              k.cross_entropy_grad(dlogits, dlosses, log_sum_exp, logits, t, w, -100, smoothing);
              return std::vector{losses, log_sum_exp, dlogits};
            },
            1);
      }
    }
  }
}

TEST_CASE("cuda rows: rotary positions of 16-bit numbers turn by f32 angles") {
  manual_seed(10);
  for (bool interleaved : {false, true})
    for (const Shape& shape : {Shape{2, 3, 40, 64}, Shape{5, 24}})
      check_half(numbers(shape),
                 [=](const Tensor& t) { return rotary_positions(t, 3000, {.interleaved = interleaved}); });
}

}  // namespace rows_test
