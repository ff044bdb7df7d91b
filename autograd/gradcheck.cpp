#include <regard/autograd/gradcheck.hpp>

#include <regard/autograd/gradcheck_checker.hpp>
#include <regard/autograd/graph.hpp>

namespace regard::gradcheck_detail {

namespace {

std::vector<std::string> numbered(const char* what, size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(what + std::to_string(i));
  return names;
}

Tensors with_graph(const Tensors& results) {
  Tensors list;
  for (const Tensor& result : results)
    if (wants_gradient(result)) list.push_back(result);
  return list;
}

}  // namespace

GradcheckReport first_order(const Function& f, const Tensors& inputs, const NamedTensors& parameters,
                            const GradcheckOptions& options) {
  return run_check({"gradcheck", f, inputs, numbered("input ", inputs.size()), parameters, {}}, options);
}

GradcheckReport second_order(const Function& f, const Tensors& inputs, const NamedTensors& parameters,
                             const GradcheckOptions& options) {
  const char* op = "gradgradcheck";
  RestoredGenerator restored;
  GradMode recording(true);
  std::vector<std::string> input_names = numbered("input ", inputs.size());
  std::vector<std::string> gradient_names;
  Tensors copies = inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!wants_gradient(inputs[i])) continue;
    check_input(op, input_names[i], inputs[i]);
    copies[i] = leaf_of(inputs[i]);
    gradient_names.push_back("the gradient of " + input_names[i]);
  }
  for (const auto& [name, parameter] : parameters)
    if (wants_gradient(parameter)) gradient_names.push_back("the gradient of " + name);
  check<ValueError>(!gradient_names.empty(), op, "none of the ", inputs.size(),
                    " inputs requires a gradient, so there is nothing to check: call set_requires_grad()");
  const Tensors outputs = with_graph(f(copies));
  check<ValueError>(!outputs.empty(), op, "no output depends on an input that requires a gradient");

  // The gradients of f as a function of its inputs and of the weights of its outputs.
  Generator generator(options.seed ^ 0x9e3779b97f4a7c15U);
  Tensors arguments = inputs;
  for (size_t k = 0; k < outputs.size(); ++k) {
    arguments.push_back(
        from_vector<double>(random_weights(outputs[k].numel(), generator), outputs[k].shape()).set_requires_grad());
    input_names.push_back("the weight of output " + std::to_string(k));
  }
  const auto count = static_cast<int64_t>(inputs.size());
  const Function gradients = [&](const Tensors& in) {
    const Tensors x(in.begin(), in.begin() + count);
    GradOptions grad_options;
    grad_options.grad_outputs = Tensors(in.begin() + count, in.end());
    grad_options.create_graph = true;
    grad_options.allow_unused = true;
    Tensors targets = with_graph(x);
    for (const auto& [name, parameter] : parameters)
      if (wants_gradient(parameter)) targets.push_back(parameter);
    const Tensors results = with_graph(f(x));
    check<ValueError>(results.size() == outputs.size(), op,
                      "the function's outputs that depend on the inputs are not the same each time it is called");
    Tensors grads = grad(results, targets, grad_options);
    for (size_t i = 0; i < grads.size(); ++i)
      if (!grads[i].defined()) grads[i] = zeros_like(targets[i]);
    return grads;
  };
  return run_check({op, gradients, arguments, input_names, parameters, gradient_names}, options);
}

}  // namespace regard::gradcheck_detail
