// Tensors and layers on a GPU: moving there and back, what may not be mixed, memory, printing, files.
#include <catch2/catch.hpp>

#include <filesystem>
#include <sstream>

#include <regard/autograd/backend/cuda_backend.hpp>
#include <regard/autograd/cuda.hpp>
#include <regard/regard.hpp>

#include "../test_folder.hpp"

namespace device_test {

using namespace regard;
using Catch::Matchers::Contains;

TEST_CASE("device: there is one, and its names are read") {
  CHECK(cuda_is_available());
  CHECK(cuda_device_count() >= 1);
  CHECK(why_no_cuda().empty());
  CHECK(parse_device("cpu") == cpu());
  CHECK(parse_device("cuda") == cuda());
  CHECK(parse_device("cuda:0") == cuda(0));
  CHECK(to_string(cuda(0)) == "cuda:0");
  const int beyond = cuda_device_count();
  CHECK_THROWS_WITH(parse_device("cuda:" + std::to_string(beyond)),
                    Contains("there is no device cuda:" + std::to_string(beyond)) && Contains("cuda:0"));
  for (const char* text : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:100", "", "CUDA"})
    CHECK_THROWS_AS(parse_device(text), DeviceError);
  CHECK_THROWS_AS(zeros({2}, cuda(beyond)), DeviceError);
  CHECK_THROWS_WITH(zeros({2}, cuda(256)), Contains("there is no device cuda:256"));
  CHECK_THROWS_AS(ones({2}).to(cuda(beyond)), DeviceError);
}

TEST_CASE("device: to() copies there and back, with any strides and dtype") {
  const Tensor x = arange(24).view({2, 3, 4});
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64, DType::boolean}) {
    const Tensor here = x.to(dtype);
    for (const Tensor& view : {here, here.permute({2, 0, 1}), here.slice(1, 1, 3), here.slice(2, 0, 4, 2),
                               here.select(1, 1).unsqueeze(0).expand({5, 2, 4})}) {
      const Tensor there = view.to(cuda());
      CHECK(there.device() == cuda());
      CHECK(there.dtype() == dtype);
      CHECK(there.shape() == view.shape());
      CHECK(there.to(cpu()).to_vector<double>() == view.to_vector<double>());
      CHECK(there.to_vector<double>() == view.to_vector<double>());
    }
  }
  CHECK(x.to(cpu()).shares_storage_with(x));
  const Tensor there = x.to(cuda());
  CHECK(there.to(cuda()).shares_storage_with(there));
  CHECK(zeros({0, 3}, cuda()).to(cpu()).shape() == Shape{0, 3});
  CHECK(ones({3}).to(cuda()).sum().item<float>() == 3);
}

TEST_CASE("device: the gradient goes back to where the tensor is") {
  const Tensor x = from_vector<float>({1, 2, 3}).set_requires_grad();
  (x.to(cuda()) * 3).sum().backward();
  CHECK(x.grad().device() == cpu());
  CHECK(x.grad().to_vector<float>() == std::vector<float>{3, 3, 3});
  const Tensor y = from_vector<float>({1, 2, 3}).to(cuda()).set_requires_grad();
  (y.to(cpu()) * 2).sum().backward();
  CHECK(y.grad().device() == cuda());
  CHECK(y.grad().to_vector<float>() == std::vector<float>{2, 2, 2});
}

TEST_CASE("device: mixing devices names both") {
  const Tensor here = ones({2, 2}), there = ones({2, 2}, cuda());
  // Matchers of Catch2 that are put together refer to their parts: made anew in each place.
  CHECK_THROWS_WITH(here + there, Contains("cpu") && Contains("cuda:0") && Contains("to()"));
  CHECK_THROWS_WITH(matmul(there, here), Contains("cpu") && Contains("cuda:0") && Contains("to()"));
  CHECK(ones({2, 2}, cuda()).copy_(here * 3).to_vector<float>() == std::vector<float>(4, 3));  // but copies go across
  CHECK_THROWS_WITH(cat({here, there}, 0), Contains("cpu") && Contains("cuda:0") && Contains("to()"));
  CHECK_THROWS_WITH(where(here > 0, there, there), Contains("cpu") && Contains("cuda:0") && Contains("to()"));
  CHECK_THROWS_WITH(there.masked_fill(here > 0, 1), Contains("cpu") && Contains("cuda:0") && Contains("to()"));
  CHECK_THROWS_WITH(gather(there, 0, zeros({1, 2}, DType::i64)),
                    Contains("cpu") && Contains("cuda:0") && Contains("to()"));
  CHECK_THROWS_WITH(embedding(zeros({2}, DType::i64), there),
                    Contains("cpu") && Contains("cuda:0") && Contains("to()"));
  CHECK_THROWS_WITH(layer_norm(here, {2}, there.select(0, 0)),
                    Contains("cpu") && Contains("cuda:0") && Contains("to()"));
  CHECK_THROWS_WITH(cross_entropy(there, zeros({2}, DType::i64)),
                    Contains("cpu") && Contains("cuda:0") && Contains("to()"));
  CHECK_THROWS_AS(there.data<float>(), DeviceError);
  layers::Linear linear(2, 2);
  CHECK_THROWS_WITH(linear(there), Contains("cpu") && Contains("cuda:0") && Contains("to()"));
  linear.to(cuda());
  CHECK_THROWS_WITH(linear(here), Contains("cpu") && Contains("cuda:0") && Contains("to()"));
}

TEST_CASE("device: a tensor there prints as one here, with its device") {
  std::ostringstream text;
  text << from_vector<float>({1, 2.5}).to(cuda());
  CHECK(text.str() == "[1.0000, 2.5000]  Tensor([2], f32, cuda:0)");
}

TEST_CASE("device: memory is counted, and what is missing is said") {
  reset_cuda_peak_memory();
  const CudaMemoryStats before = cuda_memory_stats();
  {
    const Tensor x = zeros({1000}, cuda());
    CHECK(cuda_memory_stats().allocated - before.allocated >= 4000);
  }
  const CudaMemoryStats after = cuda_memory_stats();
  CHECK(after.allocated == before.allocated);
  CHECK(after.peak - before.allocated >= 4000);
  // 256 TiB: no GPU has them.
  CHECK_THROWS_WITH(zeros({int64_t{1} << 46}, cuda()),
                    Contains("out of memory on cuda:0") && Contains("281474976710656 bytes"));
  CHECK(zeros({1 << 20}, cuda()).numel() == 1 << 20);
}

TEST_CASE("device: a layer moves behind every handle and back, and its state is saved from there") {
  manual_seed(5);
  layers::Linear linear(3, 2);
  const Tensor handle = linear.weight;
  const std::vector<float> weights = linear.weight.to_vector<float>();
  const Tensor x = randn({4, 3});
  const std::vector<float> right = linear(x).to_vector<float>();
  linear.to(cuda());
  CHECK(handle.device() == cuda());
  CHECK(handle.requires_grad());
  CHECK(linear.weight.to_vector<float>() == weights);
  const Tensor y = linear(x.to(cuda()));
  CHECK(y.device() == cuda());
  for (size_t i = 0; i < right.size(); ++i) CHECK(y.to_vector<float>()[i] == Approx(right[i]).margin(1e-6));

  const test::Folder folder;
  save_safetensors(folder.path / "w.safetensors", linear.state_dict());
  layers::Linear other(3, 2);
  other.load_state_dict(load_safetensors(folder.path / "w.safetensors"));
  CHECK(other.weight.to_vector<float>() == weights);
  layers::Linear third(3, 2);
  third.to(cuda());
  third.load_state_dict(load_safetensors(folder.path / "w.safetensors"));
  CHECK(third.weight.device() == cuda());
  CHECK(third.weight.to_vector<float>() == weights);
  linear.to(cpu());
  CHECK(handle.device() == cpu());
  CHECK(linear(x).to_vector<float>() == right);
  CHECK_THROWS_AS(linear.to(cuda(99)), DeviceError);
  CHECK(handle.device() == cpu());
}

TEST_CASE("device: an optimizer whose parameters moved says so") {
  layers::Linear linear(3, 2);
  optim::AdamW adam(linear.parameters(), {.lr = 0.1});
  linear(ones({1, 3})).sum().backward();
  adam.step();
  linear.to(cuda());
  linear(ones({1, 3}, cuda())).sum().backward();
  CHECK_THROWS_WITH(adam.step(), Contains("cpu") && Contains("cuda:0"));
}

TEST_CASE("device: a gradient on another device than its tensor is an error, and nothing is written") {
  const Tensor x = ones({3}).set_requires_grad();
  const auto gone = [&](const Tensor& in) {
    return custom_op(
        "gone", {in}, [](const Tensors& inputs) { return inputs[0] * 2; },
        [](const Tensors&, const Tensor& g) { return Tensors{g.to(cuda())}; });
  };
  const auto message = Contains("gone: its gradient for input 0 is on cuda:0; the input is on cpu");
  CHECK_THROWS_WITH(gone(x).sum().backward(), message);
  CHECK_THROWS_WITH((gone(x) + gone(x)).sum().backward(), message);
  CHECK_THROWS_WITH(gone(x * 2).sum().backward(), message);
  CHECK_THROWS_AS(grad(gone(x).sum(), {x}), DeviceError);
  CHECK_FALSE(x.grad().defined());
  HookHandle hook = x.register_hook([](const Tensor& g) { return g.to(cuda()); });
  CHECK_THROWS_WITH((x * 2).sum().backward(), Contains("hook") && Contains("on cuda:0 in place of one on cpu"));
  hook.remove();

  optim::AdamW adam({x}, {.lr = 0.1});
  x.impl()->leaf_state().grad = ones({3}, cuda());
  CHECK_THROWS_WITH(adam.step(), Contains("on cpu") && Contains("its gradient on cuda:0"));
  CHECK(adam.state_dict().at("0.step").item<int64_t>() == 0);
  CHECK(x.to_vector<float>() == std::vector<float>{1, 1, 1});
}

TEST_CASE("device: what is trained has f32 or f64 elements there too") {
  for (DType dtype : {DType::bf16, DType::f16}) {
    const Tensor half = ones({8}, TensorOptions(dtype, cuda())).set_requires_grad();
    half.set_grad(ones_like(half));
    CHECK_THROWS_AS(layers::Parameter(half), DTypeError);
    CHECK_THROWS_AS(optim::SGD({half}), DTypeError);
    CHECK_THROWS_WITH(optim::AdamW({half}), Contains("f32 or f64") && Contains("to(DType::f32)"));
    CHECK_THROWS_AS(optim::clip_grad_norm({half}, 1), DTypeError);
    CHECK_THROWS_AS(optim::clip_grad_norm_on_device({half}, 1), DTypeError);
    CHECK_THROWS_AS(optim::clip_grad_value({half}, 0.5), DTypeError);
    CHECK(half.grad().to_vector<double>() == std::vector<double>(8, 1));
  }
}

TEST_CASE("device: a graph does not keep what moved") {
  layers::Linear linear(3, 2);
  const Tensor y = (linear(ones({1, 3}).set_requires_grad()) * 2).sum();
  linear.to(cuda());
  CHECK_THROWS_AS(y.backward(), GraphError);
}

}  // namespace device_test
