// What is computed element by element, copied or rearranged: the GPU's rows against the CPU's, over layouts and dtypes.
#include <cmath>
#include <limits>

#include "both_devices.hpp"

namespace elementwise_test {

using namespace both_devices;

constexpr double infinite = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
constexpr DType every_dtype[] = {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64, DType::boolean};

// Ordinary numbers, with special ones among them.
Tensor numbers(const Shape& shape, DType dtype, bool special = false) {
  std::vector<double> values = randn(shape).to_vector<double>();
  const std::vector<double> odd{0, -0.0, infinite, -infinite, nan, 1e-42, -1e-42, 3e38, -3e38, 100, -100, 1, -1, 0.5};
  for (size_t i = 0; special && i < values.size(); i += 3) values[i] = odd[i / 3 * 5 % odd.size()];
  const Tensor x = from_vector<double>(values, shape);
  return dtype == DType::i64 ? (x * 5).to(dtype) : dtype == DType::boolean ? x > 0 : x.to(dtype);
}

void check_binary(BinaryOp op, DType of, const Tensor& a, const Tensor& b, double rtol) {
  INFO("op " << static_cast<int>(op) << " of " << a.dtype());
  const Pair other = on_both(b);
  for (const Pair& y : outputs(a.shape(), of))
    for (const Pair& x : in_layouts(a)) {
      kernels(y.cpu).binary(op, y.cpu, x.cpu, other.cpu);
      kernels(y.gpu).binary(op, y.gpu, x.gpu, other.gpu);
      check_same(y, rtol);
    }
  const Pair y = outputs(a.shape(), of)[0], x = on_both(a);
  for (const Pair& z : in_layouts(b)) {
    kernels(y.cpu).binary(op, y.cpu, x.cpu, z.cpu);
    kernels(y.gpu).binary(op, y.gpu, x.gpu, z.gpu);
    check_same(y, rtol);
  }
}

struct Row {
  BinaryOp op;
  double ulps;  // 0: the same bits
};
constexpr Row floating_rows[] = {{BinaryOp::add, 0},        {BinaryOp::sub, 0},         {BinaryOp::mul, 0},
                                 {BinaryOp::div, 0},        {BinaryOp::pow, 8},         {BinaryOp::maximum, 0},
                                 {BinaryOp::minimum, 0},    {BinaryOp::tanh_grad_y, 8}, {BinaryOp::sigmoid_grad_y, 8},
                                 {BinaryOp::relu_grad_y, 0}};
constexpr BinaryOp comparisons[] = {BinaryOp::eq, BinaryOp::ne, BinaryOp::lt, BinaryOp::le, BinaryOp::gt, BinaryOp::ge};

TEST_CASE("cuda elementwise: functions of two tensors") {
  manual_seed(1);
  for (DType dtype : {DType::f32, DType::f64})
    for (const Row& row : floating_rows) {
      const double rtol = row.ulps * (dtype == DType::f32 ? 0x1p-23 : 0x1p-52);
      check_binary(row.op, dtype, numbers({5, 12}, dtype, true), numbers({5, 12}, dtype, true), rtol);
    }
  // Smooth gradients in the range where neither side is an approximation of nearly 0.
  for (DType dtype : {DType::f32, DType::f64})
    for (BinaryOp op : {BinaryOp::gelu_grad_x, BinaryOp::gelu_tanh_grad_x, BinaryOp::silu_grad_x}) {
      const Pair x = on_both(numbers({7, 9}, dtype)), g = on_both(numbers({7, 9}, dtype));
      const Pair y = on_both(zeros({7, 9}, dtype));
      kernels(y.cpu).binary(op, y.cpu, x.cpu, g.cpu);
      kernels(y.gpu).binary(op, y.gpu, x.gpu, g.gpu);
      check_same(y, dtype == DType::f32 ? 2e-6 : 1e-13, dtype == DType::f32 ? 1e-6 : 1e-14);
    }
}

TEST_CASE("cuda elementwise: integers wrap, comparisons of every dtype, logic") {
  manual_seed(2);
  const Tensor ends = from_vector<int64_t>({INT64_MIN, INT64_MAX, -1, 0, 3, int64_t{1} << 40}, {2, 3});
  const Tensor small = from_vector<int64_t>({3, 2, 0, 5, 1, 2}, {2, 3});
  for (BinaryOp op : {BinaryOp::add, BinaryOp::sub, BinaryOp::mul, BinaryOp::maximum, BinaryOp::minimum}) {
    check_binary(op, DType::i64, ends, ends.flip(0), 0);
    check_binary(op, DType::i64, numbers({5, 12}, DType::i64), numbers({5, 12}, DType::i64), 0);
  }
  check_binary(BinaryOp::pow, DType::i64, ends, small, 0);
  for (DType dtype : every_dtype)
    for (BinaryOp op : comparisons)
      check_binary(op, DType::boolean, numbers({3, 20}, dtype, dtype != DType::i64),
                   numbers({3, 20}, dtype, dtype != DType::i64), 0);
  for (BinaryOp op : {BinaryOp::logical_and, BinaryOp::logical_or, BinaryOp::logical_xor})
    check_binary(op, DType::boolean, numbers({5, 12}, DType::boolean), numbers({5, 12}, DType::boolean), 0);
  CHECK_THROWS_AS(kernels(cuda()).binary(BinaryOp::div, on_both(ends).gpu, on_both(ends).gpu, on_both(ends).gpu),
                  DTypeError);
}

TEST_CASE("cuda elementwise: a tensor and a number") {
  manual_seed(3);
  const auto check_number = [](BinaryOp op, DType of, const Tensor& a, Scalar number, double rtol) {
    INFO("op " << static_cast<int>(op) << " of " << a.dtype() << " and " << number.to_double());
    for (bool first : {false, true})
      for (const Pair& y : outputs(a.shape(), of))
        for (const Pair& x : in_layouts(a)) {
          kernels(y.cpu).binary_scalar(op, y.cpu, x.cpu, number, first);
          kernels(y.gpu).binary_scalar(op, y.gpu, x.gpu, number, first);
          check_same(y, rtol);
        }
  };
  for (const Row& row : floating_rows)
    check_number(row.op, DType::f32, numbers({3, 12}, DType::f32, true), 0.7, row.ulps * 0x1p-23);
  for (double exponent : {2.0, 1.0, 0.5, -0.5, -1.0, 0.0, 3.0, -2.5})
    for (DType dtype : {DType::f32, DType::f64})
      check_number(BinaryOp::pow, dtype, numbers({3, 12}, dtype, true), exponent, dtype == DType::f32 ? 1e-6 : 1e-14);
  check_number(BinaryOp::mul, DType::i64, numbers({3, 12}, DType::i64), (int64_t{1} << 53) + 1, 0);
  for (DType dtype : every_dtype)
    for (BinaryOp op : comparisons) check_number(op, DType::boolean, numbers({2, 6}, dtype, dtype != DType::i64), 1, 0);
}

TEST_CASE("cuda elementwise: written over its input") {
  manual_seed(4);
  const Tensor start = numbers({6, 8}, DType::f32), other = numbers({6, 8}, DType::f32);
  for (const Pair& b : in_layouts(other))
    for (const Pair& y : in_layouts(start)) {
      if (y.cpu.strides()[0] == 0 || y.cpu.strides()[1] == 0) continue;
      for (const auto& [to, from] : {std::pair(y.cpu, b.cpu), std::pair(y.gpu, b.gpu)}) {
        kernels(to).binary(BinaryOp::mul, to, to, from);
        kernels(to).binary_scalar(BinaryOp::add, to, to, 0.25, false);
        kernels(to).axpy(to, from, -0.3);
      }
      check_same(y, 1e-6, 1e-7);
    }
}

TEST_CASE("cuda elementwise: selection") {
  manual_seed(5);
  for (DType dtype : every_dtype) {
    const Tensor a = numbers({5, 12}, dtype, dtype != DType::i64), b = numbers({5, 12}, dtype);
    for (const Pair& condition : in_layouts(numbers({5, 12}, DType::boolean)))
      for (const Pair& x : in_layouts(a)) {
        const Pair y = outputs(a.shape(), dtype)[0], z = on_both(b);
        kernels(y.cpu).where(y.cpu, condition.cpu, x.cpu, z.cpu);
        kernels(y.gpu).where(y.gpu, condition.gpu, x.gpu, z.gpu);
        check_same(y);
        kernels(y.cpu).masked_fill(y.cpu, x.cpu, condition.cpu, -1.5);
        kernels(y.gpu).masked_fill(y.gpu, x.gpu, condition.gpu, -1.5);
        check_same(y);
      }
    const Pair y = on_both(a), mask = on_both(numbers({5, 12}, DType::i64));
    kernels(y.cpu).masked_fill(y.cpu, y.cpu, mask.cpu, 2);
    kernels(y.gpu).masked_fill(y.gpu, y.gpu, mask.gpu, 2);
    check_same(y);
  }
  for (DType dtype : {DType::f32, DType::f64, DType::i64})
    for (const auto& [low, high] : {std::pair(-0.4, 0.6), std::pair(-infinite, 1.0), std::pair(0.0, infinite)})
      for (const Pair& x : in_layouts(numbers({5, 12}, dtype, dtype != DType::i64))) {
        const Pair y = outputs({5, 12}, dtype)[2];
        kernels(y.cpu).clamp(y.cpu, x.cpu, low, high);
        kernels(y.gpu).clamp(y.gpu, x.gpu, low, high);
        check_same(y);
      }
}

TEST_CASE("cuda elementwise: triangles and reversed dimensions") {
  manual_seed(6);
  for (DType dtype : every_dtype)
    for (const Pair& x : in_layouts(numbers({2, 5, 7}, dtype))) {
      for (int64_t diagonal : {int64_t{0}, int64_t{2}, int64_t{-3}, int64_t{100}, INT64_MIN, INT64_MAX})
        for (bool upper : {false, true}) {
          const Pair y = outputs({2, 5, 7}, dtype)[1];
          kernels(y.cpu).triangle(y.cpu, x.cpu, diagonal, upper);
          kernels(y.gpu).triangle(y.gpu, x.gpu, diagonal, upper);
          check_same(y);
        }
      for (const Shape& dims : {Shape{}, Shape{2}, Shape{0, 1}, Shape{0, 1, 2}}) {
        const Pair y = outputs({2, 5, 7}, dtype)[0];
        kernels(y.cpu).flip(y.cpu, x.cpu, dims);
        kernels(y.gpu).flip(y.gpu, x.gpu, dims);
        check_same(y);
      }
    }
}

TEST_CASE("cuda elementwise: copies between dtypes and layouts") {
  manual_seed(7);
  for (DType to : every_dtype)
    for (DType from : every_dtype) {
      INFO(to << " from " << from);
      Tensor x = numbers({5, 12}, from, from != DType::i64);
      if (from == DType::f64) {  // beyond what an i64 can be
        x[0].copy_(from_vector<double>({1e300, -1e300, 9.3e18, -9.3e18, 9.2e18, -9.2e18, 0.9, -0.9, nan, 2.5, 3.5, 1}));
      }
      for (const Pair& a : in_layouts(x)) {
        const Pair y = outputs({5, 12}, to)[0];
        kernels(y.cpu).copy(y.cpu, a.cpu);
        kernels(y.gpu).copy(y.gpu, a.gpu);
        check_same(y);
      }
      const Pair a = on_both(x);
      for (const Pair& y : outputs({5, 12}, to)) {
        kernels(y.cpu).copy(y.cpu, a.cpu);
        kernels(y.gpu).copy(y.gpu, a.gpu);
        check_same(y);
      }
    }
}

TEST_CASE("cuda elementwise: large transposed copies") {
  manual_seed(8);
  for (DType dtype : every_dtype)
    for (const Shape& shape : {Shape{2, 70, 65}, Shape{1, 9, 700}, Shape{3, 128, 64}})
      for (DType to : {dtype, DType::f32}) {
        INFO(to << " from " << dtype << " " << shape);
        const Pair x = on_both(numbers(shape, dtype));
        // The last dimension of the input becomes the first, the middle, or stays and the others change.
        for (const Shape& order : {Shape{2, 0, 1}, Shape{0, 2, 1}, Shape{1, 0, 2}, Shape{2, 1, 0}}) {
          const Pair a = seen(x, [&](const Tensor& t) { return t.permute(order); });
          const Pair y = on_both(zeros(a.cpu.shape(), to));
          kernels(y.cpu).copy(y.cpu, a.cpu);
          kernels(y.gpu).copy(y.gpu, a.gpu);
          check_same(y);
          const Pair back = on_both(zeros(shape, to));  // written across
          const Pair across = seen(back, [&](const Tensor& t) { return t.permute(order); });
          kernels(across.cpu).copy(across.cpu, y.cpu);
          kernels(across.gpu).copy(across.gpu, y.gpu);
          check_same(back);
        }
      }
  // Operands that lie across the output.
  const Pair a = seen(on_both(numbers({70, 65}, DType::f32)), [](const Tensor& t) { return t.t(); });
  const Pair b = on_both(numbers({65, 70}, DType::f32)), y = on_both(zeros({65, 70}));
  for (const auto& [to, one, two] : {std::tuple(y.cpu, a.cpu, b.cpu), std::tuple(y.gpu, a.gpu, b.gpu)}) {
    kernels(to).binary(BinaryOp::sub, to, one, two);
    kernels(to).axpy(to, one, 2);
  }
  check_same(y, 1e-6, 1e-7);
}

TEST_CASE("cuda elementwise: fill, arange") {
  for (DType dtype : every_dtype) {
    for (double value : {0.0, 1.0, -2.5, infinite})
      for (const Pair& y : outputs({5, 12}, dtype)) {
        kernels(y.cpu).fill(y.cpu, value);
        kernels(y.gpu).fill(y.gpu, value);
        check_same(y);
      }
    const Pair line = on_both(zeros({41}, dtype)), places = on_both(zeros({20, 3}, dtype));
    kernels(line.cpu).arange(line.cpu, 0.1, 0.7);
    kernels(line.gpu).arange(line.gpu, 0.1, 0.7);
    check_same(line);
    const Pair column = seen(places, [](const Tensor& t) { return t.select(1, 1); });
    kernels(column.cpu).arange(column.cpu, -7, 3);
    kernels(column.gpu).arange(column.gpu, -7, 3);
    check_same(places);
  }
}

TEST_CASE("cuda elementwise: rotary positions") {
  manual_seed(9);
  for (DType dtype : {DType::f32, DType::f64})
    for (int64_t pairs : {int64_t{1}, int64_t{3}, int64_t{4}, int64_t{8}})
      for (int64_t rest : {int64_t{0}, int64_t{1}, int64_t{4}}) {
        const int64_t width = 2 * pairs + rest;
        const Pair cosines = on_both(numbers({5, pairs}, dtype)), sines = on_both(numbers({5, pairs}, dtype));
        const Tensor start = numbers({2, 5, width}, dtype);
        for (bool interleaved : {false, true})
          for (bool back : {false, true}) {
            INFO(dtype << " " << pairs << " pairs and " << rest << (interleaved ? ", interleaved" : ""));
            for (const Pair& x : in_layouts(start)) {
              const Pair y = seen(on_both(zeros({5, 2, width}, dtype)),
                                  [](const Tensor& t) { return t.transpose(0, 1); });  // heads stay where they are
              kernels(y.cpu).rotate(y.cpu, x.cpu, cosines.cpu, sines.cpu, interleaved, back);
              kernels(y.gpu).rotate(y.gpu, x.gpu, cosines.gpu, sines.gpu, interleaved, back);
              check_same(y, 1e-6, 1e-6);
            }
            const Pair x = on_both(start);
            const Tensor y = zeros(start.shape(), dtype);
            kernels(y).rotate(y, x.cpu, cosines.cpu, sines.cpu, interleaved, back);
            kernels(x.gpu).rotate(x.gpu, x.gpu, cosines.gpu, sines.gpu, interleaved, back);  // over itself
            check_same(x.gpu, y, 1e-6, 1e-6);
          }
      }
}

TEST_CASE("cuda elementwise: nothing at all") {
  for (const Shape& shape : {Shape{0}, Shape{3, 0}, Shape{0, 4, 2}}) {
    const Tensor x = zeros(shape, cuda()), mask = zeros(shape, {DType::boolean, cuda()});
    const Tensor y = zeros(shape, cuda()), d = zeros(shape, {DType::f64, cuda()});
    const Kernels& rows = kernels(x);
    rows.binary(BinaryOp::add, y, x, x);
    rows.binary_scalar(BinaryOp::pow, y, x, 2, false);
    rows.where(y, mask, x, x);
    rows.masked_fill(y, x, mask, 1);
    rows.clamp(y, x, 0, 1);
    rows.copy(y, x);
    rows.copy(d, x);
    rows.fill(y, 1);
    rows.axpy(y, x, 2);
    rows.flip(y, x, {0});
    if (shape.dim() > 1) rows.triangle(y, x, 0, true);
    if (shape.dim() == 1) rows.arange(y, 0, 1);
    CHECK(y.to(cpu()).numel() == 0);
  }
}

}  // namespace elementwise_test
