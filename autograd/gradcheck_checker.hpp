// The gradient check itself, of functions that gradcheck.cpp makes of functions, layers and their gradients.
#pragma once

#include <string>
#include <vector>

#include <regard/autograd/gradcheck.hpp>
#include <regard/autograd/random.hpp>

namespace regard::gradcheck_detail {

/// What is checked, and what it is called in the report. Refers to what its maker keeps.
struct Subject {
  const char* check;  ///< gradcheck or gradgradcheck
  const Function& f;
  const Tensors& inputs;
  std::vector<std::string> input_names;
  const NamedTensors& parameters;
  std::vector<std::string> output_names;  ///< where it ends: output 0, output 1 ...
};

GradcheckReport run_check(const Subject& subject, const GradcheckOptions& options);

/// Puts the default generator back to where it was.
class RestoredGenerator {
 public:
  RestoredGenerator() : seed_(default_generator().seed()), offset_(default_generator().offset()) {}
  ~RestoredGenerator() { default_generator().set_state(seed_, offset_); }
  RestoredGenerator(const RestoredGenerator&) = delete;
  RestoredGenerator& operator=(const RestoredGenerator&) = delete;

 private:
  uint64_t seed_, offset_;
};

/// DTypeError unless f64.
void check_input(const char* op, const std::string& name, const Tensor& x);
bool wants_gradient(const Tensor& x);
/// A copy that requires a gradient.
Tensor leaf_of(const Tensor& x);
/// Magnitudes in [0.5, 1.5], random signs: large enough to show every error, and no two alike to cancel.
std::vector<double> random_weights(int64_t count, Generator& generator);

}  // namespace regard::gradcheck_detail
