// Every op against PyTorch: values and gradients, in double and single precision, dense and strided.
#include <regard/tests/reference/op_table.hpp>

#include <set>

#include <regard/autograd/graph.hpp>

namespace reference_ops_test {

using namespace regard;  // NOLINT(google-build-using-namespace)
using reference::Json;
using reference::op_table;

namespace {

// The same elements, laid out with gaps or transposed.
Tensor strided(const Tensor& x) {
  NoGrad no_grad;
  Tensor copy = x.dim() >= 2 ? x.transpose(0, -1).contiguous().transpose(0, -1) : stack({x, x}, -1).select(-1, 0);
  return copy.detach().set_requires_grad(x.requires_grad());
}

void run_case(const Json& json, DType floating, bool with_strides) {
  auto row = op_table().find(json.at("op").get<std::string>());
  if (row == op_table().end()) throw std::runtime_error("the table has no row for this op");
  Tensors inputs;
  for (const Json& input : json.at("inputs")) {
    Tensor x = reference::tensor(input, floating);
    inputs.push_back(with_strides ? strided(x) : x);
  }
  Tensors outputs = row->second(inputs, json.at("args"), floating);
  const Json& expected = json.at("outputs");
  REQUIRE(outputs.size() == expected.size());
  for (size_t i = 0; i < outputs.size(); ++i)
    reference::check("output " + std::to_string(i), outputs[i], expected[i], floating);

  if (!json.contains("grads")) {
    for (const Tensor& output : outputs) CHECK_FALSE(output.requires_grad());
    return;
  }
  Tensors differentiable, upstream;
  for (size_t i = 0; i < outputs.size(); ++i) {
    Tensor g = reference::tensor(json.at("grad_outputs").at(i), floating);
    CHECK(outputs[i].requires_grad() == g.defined());
    if (!g.defined()) continue;
    differentiable.push_back(outputs[i]);
    upstream.push_back(g);
  }
  GradOptions options;
  options.grad_outputs = upstream;
  backward(differentiable, options);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Json& want = json.at("grads").at(i);
    if (want.is_null())
      CHECK_FALSE(inputs[i].grad().defined());
    else
      reference::check("gradient of input " + std::to_string(i), reference::gradient(inputs[i]), want, floating);
  }
}

void run_file(const std::string& name) {
  Json cases = reference::load(name);
  for (const Json& json : cases) {
    std::string title = json.at("op").get<std::string>() + ": " + json.at("name").get<std::string>();
    for (DType floating : {DType::f64, DType::f32}) {
      if (floating == DType::f32 && !json.value("f32", true)) continue;
      for (bool with_strides : {false, true}) {
        if (with_strides && json["op"] == "view") continue;  // strides may forbid a view
        INFO(title << (floating == DType::f64 ? ", f64" : ", f32") << (with_strides ? ", strided" : ""));
        try {
          run_case(json, floating, with_strides);
        } catch (const std::exception& error) {
          FAIL_CHECK("threw: " << error.what());
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("PyTorch's values: elementwise ops") { run_file("ops_elementwise"); }
TEST_CASE("PyTorch's values: reductions") { run_file("ops_reductions"); }
TEST_CASE("PyTorch's values: shapes and creation") { run_file("ops_shape"); }
TEST_CASE("PyTorch's values: indexing") { run_file("ops_index"); }
TEST_CASE("PyTorch's values: matrix products") { run_file("ops_matmul"); }
TEST_CASE("PyTorch's values: softmax, normalisation, losses, attention") { run_file("ops_nn"); }

TEST_CASE("PyTorch's values: every row of the table has a case") {
  std::set<std::string> seen;
  for (const char* name : {"ops_elementwise", "ops_reductions", "ops_shape", "ops_index", "ops_matmul", "ops_nn"})
    for (const Json& json : reference::load(name)) seen.insert(json.at("op").get<std::string>());
  for (const auto& [op, run] : op_table()) {
    INFO(op);
    CHECK(seen.count(op) == 1);
  }
}

}  // namespace reference_ops_test
