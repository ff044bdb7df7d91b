// Tensors: elements and access, views and what they share, writing in place, memory that the caller keeps.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace tensor_test {

using namespace regard;
using Catch::Matchers::Contains;

namespace {

using Numbers = std::vector<double>;
using Integers = std::vector<int64_t>;

/// 0, 1, 2, ... in f64.
Tensor counting(const Shape& shape) { return arange(shape.numel(), DType::f64).view(shape); }
Numbers numbers(const Tensor& x) { return x.to_vector<double>(); }

const std::vector<DType> kAll = {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64, DType::boolean};

}  // namespace

TEST_CASE("writing in place to an expanded tensor is an error: its elements are one") {
  Tensor one = ones({1, 1});
  Tensor x = one.expand({4, 5});
  CHECK_THROWS_AS(x.add_(1), ValueError);
  CHECK_THROWS_AS(x.add_(ones({4, 5})), ValueError);
  CHECK_THROWS_AS(x.add_(ones({4, 5}), 0.5), ValueError);
  CHECK_THROWS_AS(x.sub_(ones({4, 5})), ValueError);
  CHECK_THROWS_AS(x.mul_(2), ValueError);
  CHECK_THROWS_AS(x.div_(2), ValueError);
  CHECK_THROWS_AS(x.copy_(zeros({4, 5})), ValueError);
  CHECK_THROWS_AS(x.fill_(3), ValueError);
  CHECK_THROWS_AS(x.zero_(), ValueError);
  CHECK_THROWS_WITH(x.add_(1), Contains("add_") && Contains("[4, 5]") && Contains("[0, 0]") && Contains("clone()"));
  CHECK(one.item<double>() == 1);
  CHECK(one.version() == 0);
  x.clone().add_(1);
  // Overlapping windows share memory with no stride of 0 in them.
  Tensor windows = make_view(counting({6}), {4, 3}, {1, 1}, 0);
  CHECK_THROWS_AS(windows.add_(1), ValueError);
  Tensor loose = make_view(counting({12}), {3, 4}, {2, 3}, 0);  // 0 3 6 9, 2 5 8 11, 4 7 10 13: refused, to be safe
  CHECK_THROWS_AS(loose.add_(1), ValueError);
}

TEST_CASE("strides of dimensions of size 1, and of no elements, do not stand in the way of writing") {
  Tensor row = make_view(counting({3}), {1, 3}, {0, 1}, 0);
  row.add_(1);
  CHECK(numbers(row) == Numbers{1, 2, 3});
  make_view(counting({3}), {0, 3}, {0, 0}, 0).add_(1);
  Tensor gaps = counting({2, 6}).slice(1, 0, 6, 2);
  gaps.mul_(10);
  CHECK(numbers(gaps) == Numbers{0, 20, 40, 60, 80, 100});
  Tensor turned = counting({2, 3});
  turned.t().copy_(from_vector<double>({1, 2, 3, 4, 5, 6}, {3, 2}));
  CHECK(numbers(turned) == Numbers{1, 3, 5, 2, 4, 6});
}

TEST_CASE("in-place arithmetic: values, broadcasting, casts of integers, and versions") {
  Tensor x = from_vector<double>({1, 2, 3, 4}, {2, 2});
  CHECK(x.version() == 0);
  x.add_(from_vector<double>({10, 20})).mul_(from_vector<int64_t>({2, 3})).sub_(ones({2, 1}, DType::f64)).div_(2);
  CHECK(numbers(x) == Numbers{10.5, 32.5, 12.5, 35.5});
  CHECK(x.version() == 4);
  x.add_(ones({2, 2}, DType::f64), -0.5).div_(full({}, 0.5, DType::f64)).add_(1);
  CHECK(numbers(x) == Numbers{21, 65, 25, 71});
  Tensor view = x[1];
  view.fill_(7);
  CHECK(numbers(x) == Numbers{21, 65, 7, 7});
  CHECK(x.version() == 8);
  CHECK(view.version() == 8);
  x.add_(x);
  x.mul_(x);
  CHECK(numbers(x) == Numbers{1764, 16900, 196, 196});

  Tensor i = from_vector<int64_t>({1, 2, 3});
  i.add_(2).mul_(from_vector<int64_t>({1, 2, 3})).sub_(from_vector<bool>({true, false, true}));
  CHECK(i.to_vector<int64_t>() == Integers{2, 8, 14});
  Tensor b = zeros({2}, DType::boolean);
  b.fill_(true);
  CHECK(b.to_vector<bool>() == std::vector<bool>{true, true});
}

TEST_CASE("reading and writing overlapping parts of one tensor") {
  Tensor x = counting({6});
  x[Range(1)].copy_(x[Range(0, 5)]);
  CHECK(numbers(x) == Numbers{0, 0, 1, 2, 3, 4});
  x = counting({6});
  x[Range(0, 5)].add_(x[Range(1)]);
  CHECK(numbers(x) == Numbers{1, 3, 5, 7, 9, 5});
  Tensor square = counting({3, 3});
  square.add_(square.t());
  CHECK(numbers(square) == Numbers{0, 4, 8, 4, 8, 12, 8, 12, 16});
  square.mul_(square[0]);
  CHECK(numbers(square) == Numbers{0, 16, 64, 0, 32, 96, 0, 48, 128});
}

TEST_CASE("in-place writes that do not fit are errors, and change nothing") {
  Tensor x = from_vector<float>({1, 2, 3});
  CHECK_THROWS_AS(x.add_(ones({2})), ShapeError);
  CHECK_THROWS_AS(x.add_(ones({2, 3})), ShapeError);
  CHECK_THROWS_AS(x.copy_(ones({2, 3})), ShapeError);
  CHECK_THROWS_AS(x.add_(ones({3}, DType::f64)), DTypeError);
  CHECK_THROWS_WITH(x.mul_(ones({3}, DType::f64)), Contains("mul_") && Contains("f64") && Contains("to()"));
  CHECK_THROWS_AS(x.add_(Tensor()), ValueError);
  CHECK_THROWS_AS(x.copy_(Tensor()), ValueError);
  Tensor i = from_vector<int64_t>({1, 2, 3});
  CHECK_THROWS_AS(i.add_(0.5), DTypeError);
  CHECK_THROWS_AS(i.add_(x), DTypeError);
  CHECK_THROWS_AS(i.div_(2), DTypeError);
  CHECK_THROWS_AS(i.add_(i, 0.5), DTypeError);
  CHECK_THROWS_AS(ones({2}, DType::boolean).add_(true), DTypeError);
  CHECK_THROWS_AS(ones({2}, DType::bf16).mul_(2), DTypeError);
  CHECK(x.to_vector<float>() == std::vector<float>{1, 2, 3});
  CHECK(i.to_vector<int64_t>() == Integers{1, 2, 3});
  CHECK(x.version() == 0);
  CHECK(i.version() == 0);
  x.copy_(from_vector<double>({0.5}));  // copy_ casts and broadcasts
  CHECK(x.to_vector<float>() == std::vector<float>{0.5, 0.5, 0.5});
}

TEST_CASE("an undefined tensor says so, whatever is asked of it") {
  Tensor x;
  CHECK_FALSE(x.defined());
  CHECK_THROWS_AS(x.shape(), ValueError);
  CHECK_THROWS_AS(x.dtype(), ValueError);
  CHECK_THROWS_AS(x.item<float>(), ValueError);
  CHECK_THROWS_AS(x.to_vector<float>(), ValueError);
  CHECK_THROWS_AS(x.grad(), ValueError);
  CHECK_THROWS_AS(x.requires_grad(), ValueError);
  CHECK_THROWS_AS(x.zero_grad(), ValueError);
  CHECK_THROWS_AS(x.detach(), ValueError);
  CHECK_THROWS_AS(x + 1, ValueError);
  CHECK_THROWS_AS(x[0], ValueError);
  CHECK_THROWS_WITH(x.shape(), Contains("undefined"));
}

TEST_CASE("item: the only element, converted; anything else is an error") {
  CHECK(full({}, 2.5).item<double>() == 2.5);
  CHECK(full({1, 1, 1}, 2.5).item<float>() == 2.5F);
  CHECK(full({}, 2.5).item<int64_t>() == 2);
  CHECK(full({}, int64_t{1} << 60).item<int64_t>() == int64_t{1} << 60);
  CHECK(full({}, std::numeric_limits<int64_t>::max()).item<int64_t>() == std::numeric_limits<int64_t>::max());
  CHECK(full({}, (1 << 24) + 1).item<int>() == (1 << 24) + 1);  // more than a float holds
  CHECK(full({}, (1LL << 60) + 1).item<long long>() == (1LL << 60) + 1);
  CHECK(full({}, true).item<bool>());
  CHECK(full({}, 0.1).item<bool>());
  CHECK(full({}, 1.5, DType::bf16).item<double>() == 1.5);
  CHECK(full({}, 1.5, DType::f16).item<float>() == 1.5F);
  CHECK(counting({2, 3})[1][2].item<double>() == 5);
  CHECK_THROWS_AS(ones({2}).item<float>(), ShapeError);
  CHECK_THROWS_WITH(ones({2, 3}).item<float>(), Contains("[2, 3]") && Contains("6 elements"));
  CHECK_THROWS_AS(ones({0}).item<float>(), ShapeError);
}

TEST_CASE("to_vector gives row-major order from every layout and dtype") {
  const Numbers plain = {0, 1, 0, 1, 1, 0};
  for (DType from : kAll) {
    Tensor dense = from_vector<double>(plain, {2, 3}).to(from);
    CAPTURE(from);
    CHECK(numbers(dense) == plain);
    CHECK(dense.to_vector<float>() == std::vector<float>(plain.begin(), plain.end()));
    CHECK(dense.to_vector<int64_t>() == Integers(plain.begin(), plain.end()));
    CHECK(dense.to_vector<bool>() == std::vector<bool>{false, true, false, true, true, false});
    CHECK(static_cast<float>(dense.to_vector<bfloat16>()[1]) == 1);
    CHECK(static_cast<float>(dense.to_vector<float16>()[1]) == 1);
    CHECK(numbers(dense.t()) == Numbers{0, 1, 1, 1, 0, 0});
    CHECK(numbers(dense.slice(1, 0, 3, 2)) == Numbers{0, 0, 1, 0});
    CHECK(numbers(dense[1].expand({2, 3})) == Numbers{1, 1, 0, 1, 1, 0});
    CHECK(dense[Range(2)].to_vector<float>().empty());
    CHECK(numbers(dense[0][1]) == Numbers{1});
  }
  Tensor x = ones({2}).set_requires_grad();
  CHECK(numbers(2 * x) == Numbers{2, 2});  // no matter the graph
}

TEST_CASE("typed access wants the elements' own type") {
  Tensor x = counting({2, 3});
  CHECK(x.data<double>()[4] == 4);
  CHECK(x[1].data<double>()[1] == 4);
  CHECK(x.slice(1, 1).data<double>() == x.data<double>() + 1);
  CHECK_THROWS_AS(x.data<float>(), DTypeError);
  CHECK_THROWS_WITH(x.data<int64_t>(), Contains("f64") && Contains("i64") && Contains("to()"));
  CHECK(reinterpret_cast<uintptr_t>(zeros({5}).raw_data()) % 64 == 0);
  CHECK(ones({3}, DType::boolean).data<bool>()[2]);
}

TEST_CASE("shape, strides, offset and density of views") {
  Tensor x = counting({2, 3, 4});
  CHECK(x.dim() == 3);
  CHECK(x.numel() == 24);
  CHECK(x.size(-1) == 4);
  CHECK_THROWS_AS(x.size(3), IndexError);
  CHECK_THROWS_WITH(x.size(-4), Contains("[2, 3, 4]"));
  CHECK(x.strides() == Strides{12, 4, 1});
  CHECK(x.is_contiguous());
  CHECK_FALSE(x.transpose(0, 1).is_contiguous());
  CHECK(x[1].is_contiguous());
  CHECK(x[1].storage_offset() == 12);
  CHECK(make_view(x, {1, 4}, {99, 1}, 0).is_contiguous());  // a size of 1 may have any stride
  CHECK(zeros({0, 3}).t().is_contiguous());
  CHECK(x[1].shares_storage_with(x));
  CHECK_FALSE(x.clone().shares_storage_with(x));
  CHECK(x.contiguous().shares_storage_with(x));
  Tensor same = x;
  same[0][0][0].fill_(9);
  CHECK(numbers(x)[0] == 9);  // copies are handles
}

TEST_CASE("a view keeps the memory alive") {
  const int64_t before = memory_stats().live_storages;
  Tensor view;
  {
    Tensor x = counting({4, 4});
    view = x.t()[2];
  }
  CHECK(memory_stats().live_storages == before + 1);
  CHECK(numbers(view) == Numbers{2, 6, 10, 14});
  view = {};
  CHECK(memory_stats().live_storages == before);
}

TEST_CASE("indexing with positions and ranges") {
  Tensor x = counting({4, 5});
  CHECK(numbers(x[2]) == Numbers{10, 11, 12, 13, 14});
  CHECK(numbers(x[-1][0]) == Numbers{15});
  CHECK(x[Range(1, 3)].shape() == Shape{2, 5});
  CHECK(numbers(x[Range(1, 4, 2)][Range()].select(1, 0)) == Numbers{5, 15});
  CHECK(numbers(x.index({Range(), 1})) == Numbers{1, 6, 11, 16});
  CHECK(numbers(x.index({1, Range(-2)})) == Numbers{8, 9});
  CHECK(numbers(x.index({Range(0, -2), Range(0, INT64_MAX, 4)})) == Numbers{0, 4, 5, 9});
  CHECK(x.index({3, 4}).shape() == Shape{});
  CHECK(x.index({}).shape() == Shape{4, 5});
  CHECK(x[Range(3, 1)].shape() == Shape{0, 5});
  CHECK(x[Range(-100, 100)].shape() == Shape{4, 5});
  x.index({Range(1, 3), 0}).fill_(-1);
  CHECK(numbers(x.select(1, 0)) == Numbers{0, -1, -1, 15});
  CHECK_THROWS_AS(x[4], IndexError);
  CHECK_THROWS_AS(x[-5], IndexError);
  CHECK_THROWS_WITH(x[4], Contains("index 4") && Contains("[4, 5]"));
  CHECK_THROWS_AS(x.index({0, 0, 0}), IndexError);
  CHECK_THROWS_AS(x[Range(0, 4, 0)], ValueError);
  CHECK_THROWS_AS(x[Range(3, 0, -1)], ValueError);
  CHECK_THROWS_AS(x[0][0][0], IndexError);
  Tensor leaf = counting({2, 3}).set_requires_grad();
  leaf.index({1, Range(1)}).sum().backward();
  CHECK(numbers(leaf.grad()) == Numbers{0, 0, 0, 0, 1, 1});
}

TEST_CASE("a tensor from a vector owns its elements, so that it may outlive the vector") {
  auto make = [] {
    std::vector<float> local = {1, 2, 3};
    Tensor x = from_vector(local);
    local.assign(3, 99.0F);
    return x;
  };
  CHECK(make().to_vector<float>() == std::vector<float>{1, 2, 3});
}

TEST_CASE("from_blob: on the caller's memory, released once when the last user is gone") {
  const int64_t before = memory_stats().live_storages;
  std::vector<float> memory = {1, 2, 3, 4, 5, 6};
  int released = 0;
  {
    Tensor view;
    {
      Tensor x = from_blob(memory.data(), {2, 3}, [&] { ++released; });
      x.add_(10);
      CHECK(memory[5] == 16);
      memory[0] = 0;
      CHECK(x.to_vector<float>() == std::vector<float>{0, 12, 13, 14, 15, 16});
      view = x.t();
    }
    CHECK(released == 0);
    CHECK(view[2].to_vector<float>() == std::vector<float>{13, 16});
  }
  CHECK(released == 1);
  {  // a graph that saved it uses it too
    Tensor loss;
    {
      Tensor x = from_blob(memory.data(), {6}, [&] { ++released; });
      loss = (x * ones({6}).set_requires_grad()).sum();
    }
    CHECK(released == 1);
    loss.backward();
    CHECK(released == 2);
  }
  Tensor columns = from_blob(memory.data(), {3, 2}, {1, 3});
  CHECK(columns.to_vector<float>() == std::vector<float>{0, 14, 12, 15, 13, 16});
  columns = {};
  CHECK(memory_stats().live_storages == before);
  CHECK_THROWS_AS(from_blob(memory.data(), {3, 2}, Strides{1}), ShapeError);
  CHECK_THROWS_AS(from_blob(memory.data(), {3, 2}, Strides{-1, 1}), ShapeError);
  CHECK_THROWS_AS(from_blob(memory.data(), {-3}), ShapeError);
  CHECK_THROWS_AS(from_blob<float>(nullptr, {3}, [&] { ++released; }), ValueError);
  CHECK(released == 2);
  CHECK(from_blob<float>(nullptr, {0, 3}).numel() == 0);
}

TEST_CASE("moving to another dtype or device") {
  Tensor x = ones({2});
  CHECK(x.to(DType::f32).shares_storage_with(x));
  CHECK_FALSE(x.to(DType::f64).shares_storage_with(x));
  CHECK(x.to(Device{}).shares_storage_with(x));
  CHECK_THROWS_AS(x.to(Device{Device::Kind::cuda, 0}), DeviceError);
  CHECK_THROWS_AS(zeros({2}, Device{Device::Kind::cuda, 0}), DeviceError);
  Tensor leaf = ones({2}).set_requires_grad();
  (leaf.to(DType::f64) * 3).sum().backward();
  CHECK(leaf.grad().dtype() == DType::f32);
  CHECK(leaf.grad().to_vector<float>() == std::vector<float>{3, 3});
}

}  // namespace tensor_test
