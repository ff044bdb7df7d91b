// Recomputation: part of a graph keeps its inputs only, and is computed again when its gradient is wanted.
#pragma once

#include <functional>
#include <vector>

#include <regard/autograd/random.hpp>
#include <regard/autograd/tensor.hpp>

namespace regard {

struct CheckpointOptions {
  /// Generators of your own that the function draws from: each is set back for the second run. They must live as long
  /// as the graph. The default generator needs no mention.
  std::vector<Generator*> generators = {};
  const char* name = "checkpoint";  ///< shows in errors
};

/// function(inputs), without keeping what its gradient needs: backward() runs the function once more, so that the
/// activations of one such block at a time are in memory, for one more forward pass. Chen, Xu, Zhang, Guestrin,
/// "Training deep nets with sublinear memory cost", 2016.
///
///     Tensor y = checkpoint([&](const Tensors& in) { return block(in[0]); }, {x}, block.parameters());
///
/// For a layer there is a shorter form: checkpoint(layer, x) in layers/checkpoint.hpp.
///
/// Gradients flow to the inputs and to `parameters`: leaves that the function uses, each counted once (frozen ones may
/// be among them). A tensor that needs a gradient and is neither is a GraphError in backward(), never a gradient
/// lost. Values and gradients have the bits they have without; where an input or a parameter is used outside of the
/// block too, its gradient's parts are added in another order, which may change the last bit. Hooks of leaves and
/// inputs, second derivatives, checkpoints within checkpoints, and several outputs work as ever; undefined inputs and
/// outputs are passed on.
///
/// Dropout inside draws the same numbers both times: the default generator is set back for the second run, and then to
/// where it was. A block that drew from it must not run backward while another thread draws.
///
/// The function is kept until the graph is freed, and with it all that it holds by value. What it holds by reference, a
/// layer as in the example, must still be there then, in the same place and mode. It must compute the same again: no
/// state of its own but random numbers. Inputs and parameters that were changed in place before backward() are a
/// GraphError. Inside it, NoGrad holds the first time: a hook on an intermediate tensor cannot be registered there.
Tensors checkpoint(std::function<Tensors(const Tensors& inputs)> function, const Tensors& inputs,
                   const Tensors& parameters = {}, const CheckpointOptions& options = {});
/// The same of a function with one output.
Tensor checkpoint(std::function<Tensor(const Tensors& inputs)> function, const Tensors& inputs,
                  const Tensors& parameters = {}, const CheckpointOptions& options = {});

}  // namespace regard
