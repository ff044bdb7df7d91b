// Reading and adding at indices: the GPU's rows against the CPU's.
#include "both_devices.hpp"

namespace index_test {

using namespace both_devices;

constexpr DType every_dtype[] = {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64, DType::boolean};

Tensor numbers(const Shape& shape, DType dtype) {
  const Tensor x = randn(shape);
  return dtype == DType::boolean ? x > 0 : dtype == DType::i64 ? (x * 100).to(dtype) : x.to(dtype);
}

TEST_CASE("cuda index: the range of an index") {
  const auto check_range = [](const Tensor& index, int64_t low, int64_t high) {
    int64_t smallest = 1, largest = -1;
    kernels(index).index_range(index, &smallest, &largest);
    CHECK(smallest == low);
    CHECK(largest == high);
  };
  check_range(from_vector<int64_t>({5}, {1}).to(cuda()), 5, 5);
  check_range(from_vector<int64_t>({-3, -7, -3}, {3}).to(cuda()), -7, -3);
  check_range(from_vector<int64_t>({INT64_MAX, 0, INT64_MIN}, {3}).to(cuda()), INT64_MIN, INT64_MAX);
  const Tensor many = arange<int64_t>(20000).reshape({100, 200}).to(cuda());
  check_range(many, 0, 19999);
  check_range(many.t(), 0, 19999);
  check_range(many.select(1, 3), 3, 19803);
  check_range(many[7][9].expand({50}), 1409, 1409);
}

TEST_CASE("cuda index: gather and index_select") {
  manual_seed(1);
  for (DType dtype : every_dtype)
    for (const Shape& shape : {Shape{3, 6, 5}, Shape{2, 4, 16}, Shape{1, 7, 24}})
      for (int64_t dim = 0; dim < 3; ++dim) {
        INFO(dtype << " " << shape << " along " << dim);
        Shape picked = shape;
        picked[dim] = 9;
        const Tensor list = randint(0, shape[dim], {9});
        const Pair each = on_both(randint(0, shape[dim], picked));
        const Pair from_list = seen(on_both(cat({list, list})), [](const Tensor& t) { return t.slice(0, 0, 9); });
        for (const Pair& x : in_layouts(numbers(shape, dtype)))
          for (const Pair& y : outputs(picked, dtype)) {
            kernels(y.cpu).gather(y.cpu, x.cpu, dim, each.cpu);
            kernels(y.gpu).gather(y.gpu, x.gpu, dim, each.gpu);
            check_same(y);
            kernels(y.cpu).index_select(y.cpu, x.cpu, dim, from_list.cpu);
            kernels(y.gpu).index_select(y.gpu, x.gpu, dim, from_list.gpu);
            check_same(y);
          }
      }
}

// With f64 on the CPU in place of 16-bit numbers, which it only stores.
Pair computed(const Pair& x) {
  return computes(x.cpu.dtype(), cpu()) || !is_floating(x.cpu.dtype()) ? x : Pair{x.cpu.to(DType::f64), x.gpu};
}

// y += source on both; twice on the GPU, where the host's runtime runs threads forward once and backward once.
template <class Add>
void check_added(const Pair& y, const Add& add) {
  const Tensor again = y.gpu.clone();
  add(y.cpu);
  add(y.gpu);
  add(again);
  CHECK(equal(y.gpu, again));
  const DType dtype = y.gpu.dtype();
  if (dtype != y.cpu.dtype())  // sums of 16-bit numbers are rounded once
    return check_same(y.gpu.to(DType::f64), y.cpu, dtype == DType::bf16 ? 0x1p-8 : 0x1p-11, 1e-6);
  const bool narrow = dtype == DType::f32;
  check_same(y, narrow ? 2e-7 : 1e-15, narrow ? 1e-5 : 1e-12);
}

TEST_CASE("cuda index: scatter_add, few and many") {
  manual_seed(2);
  struct Case {
    Shape shape, picked;
    int64_t dim;
  };
  const Case cases[] = {{{3, 4}, {5, 4}, 0},      {{3, 40}, {3, 1}, 1},      {{2, 3, 2}, {2, 70, 1}, 1},
                        {{5, 300}, {5, 2000}, 1}, {{2000, 3}, {1500, 3}, 0}, {{2, 6, 3}, {2, 1100, 3}, 1},
                        {{70000}, {1500}, 0},     {{4}, {1500}, 0}};
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64})
    for (const Case& c : cases) {
      INFO(dtype << " " << c.shape << " along " << c.dim);
      const Tensor index = randint(0, c.shape[c.dim], c.picked), source = numbers(c.picked, dtype);
      const Pair at = on_both(index), from = computed(on_both(source));
      const auto add = [&](const Tensor& y) {
        const bool gpu = y.device() == cuda();
        kernels(y).scatter_add(y, c.dim, gpu ? at.gpu : at.cpu, gpu ? from.gpu : from.cpu);
      };
      const Tensor start = numbers(c.shape, dtype);
      check_added(computed(on_both(start)), add);
      if (c.shape.dim() > 1) check_added(computed(in_layouts(start)[1]), add);  // transposed
    }
}

TEST_CASE("cuda index: index_add, few and many") {
  manual_seed(3);
  struct Case {
    Shape shape;
    int64_t dim, count, places;  // indices are below `places`
  };
  const Case cases[] = {{{7, 8}, 0, 20, 7},           {{7, 3}, 0, 1, 7},          {{3, 7, 5}, 1, 70, 4},
                        {{300, 4}, 0, 1024, 300},     {{300, 4}, 0, 1500, 300},   {{300, 5}, 0, 3000, 2},
                        {{4, 12}, 0, 1200, 1},        {{3, 5000}, 1, 1100, 5000}, {{9}, 0, 2500, 9},
                        {{70000, 4}, 0, 1100, 70000}, {{2, 30, 8}, 1, 1500, 30},  {{400, 136}, 0, 30, 400}};
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64})
    for (const Case& c : cases) {
      INFO(dtype << " " << c.shape << " along " << c.dim << ", " << c.count);
      Shape given = c.shape;
      given[c.dim] = c.count;
      const Pair at = on_both(randint(0, c.places, {c.count}));
      const Tensor start = numbers(c.shape, dtype), source = numbers(given, dtype);
      const auto add = [&](const Pair& from) {
        return [&c, &at, from = computed(from)](const Tensor& y) {
          const bool gpu = y.device() == cuda();
          kernels(y).index_add(y, c.dim, gpu ? at.gpu : at.cpu, gpu ? from.gpu : from.cpu);
        };
      };
      check_added(computed(on_both(start)), add(on_both(source)));
      if (c.shape.dim() < 2) continue;
      check_added(computed(in_layouts(start)[1]), add(in_layouts(source)[3]));  // transposed, at an odd offset
      check_added(computed(on_both(start)), add(in_layouts(source)[2]));        // with gaps
    }
}

TEST_CASE("cuda index: the gradient of a large embedding") {
  manual_seed(4);
  const int64_t vocabulary = 50257, width = 8, count = 1600;
  const Tensor ids = cat({randint(0, vocabulary, {count - 400}), full({400}, 13, DType::i64)});
  const Pair weight = on_both(randn({vocabulary, width})), list = on_both(ids), g = on_both(randn({count, width}));
  for (int64_t padding : {int64_t{-1}, int64_t{13}}) {
    Pair grads;
    for (bool gpu : {false, true}) {
      const Tensor w = (gpu ? weight.gpu : weight.cpu).detach();
      w.set_requires_grad();
      const Tensor y = embedding(gpu ? list.gpu : list.cpu, w, padding);
      y.backward(gpu ? g.gpu : g.cpu);
      (gpu ? grads.gpu : grads.cpu) = w.grad();
    }
    check_same(grads, 2e-7, 1e-6);
  }
}

TEST_CASE("cuda index: nothing at all") {
  const Tensor x = ones({3, 4}, cuda()), none = zeros({0}, {DType::i64, cuda()});
  const Tensor empty_rows = zeros({0, 4}, cuda()), index = zeros({0, 4}, {DType::i64, cuda()});
  kernels(x).index_add(x, 0, none, empty_rows);
  kernels(x).scatter_add(x, 0, index, empty_rows);
  kernels(x).gather(empty_rows, x, 0, index);
  kernels(x).index_select(empty_rows, x, 0, none);
  CHECK(equal(x.to(cpu()), ones({3, 4})));
}

}  // namespace index_test
