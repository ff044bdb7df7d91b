// Every layer and model on a GPU, beside the CPU: outputs, and the gradients of inputs and parameters.
#include <catch2/catch.hpp>

#include <cmath>

#include <regard/regard.hpp>

#include "../layer_cases.hpp"

namespace layers_on_device_test {

using namespace regard;

namespace {

void compare(const std::vector<layer_cases::LayerCase>& rows) {
  for (const layer_cases::LayerCase& row : rows) {
    INFO(row.layer << " (" << row.variant << ")");
    const Tensors here = row.computed(cpu()), there = row.computed(cuda());
    REQUIRE(here.size() == there.size());
    for (size_t i = 0; i < here.size(); ++i) {
      INFO("result " << i);
      REQUIRE(here[i].defined() == there[i].defined());
      if (!here[i].defined()) continue;
      REQUIRE(here[i].shape() == there[i].shape());
      CHECK(allclose(there[i], here[i], 1e-10, 1e-12, true));
    }
  }
}

}  // namespace

TEST_CASE("layers on a device: every layer computes what it computes on the CPU") {
  compare(layer_cases::layer_cases());
}
TEST_CASE("layers on a device: every model computes what it computes on the CPU") {
  compare(layer_cases::model_cases());
}

}  // namespace layers_on_device_test
