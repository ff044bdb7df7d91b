// The table of layers' gradient checks, in layers_test.cpp; coverage_test.cpp looks for every layer in it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <regard/autograd/gradcheck.hpp>

namespace regard::layer_cases {

struct LayerCase {
  std::string layer;  ///< the struct's name
  std::string variant;
  std::function<GradcheckReport(const GradcheckOptions&)> first;   ///< gradcheck of inputs and parameters
  std::function<GradcheckReport(const GradcheckOptions&)> second;  ///< gradgradcheck
};

std::vector<LayerCase> layer_cases();

}  // namespace regard::layer_cases
