#include <regard/layers/checkpoint.hpp>

#include <set>

namespace regard::checkpoint_detail {

namespace {

// The mode of each layer inside, in the order of members().
std::vector<bool> modes_of(const layers::Layer& layer) {
  std::vector<bool> modes;
  layers::Walk walk;
  walk.on_layer = [&](const std::string&, layers::Layer& inner) { modes.push_back(inner.is_training()); };
  walk.run(layer);
  return modes;
}

}  // namespace

LayerCall::LayerCall(const layers::Layer& layer)
    : layer_(&layer),
      presence_(layer.presence()),
      place_(layer.path().empty() ? layer.describe() : layer.path()),
      modes_(modes_of(layer)) {
  // Not by layer.parameters(), which would count them as listed for an optimizer.
  std::set<const TensorImpl*> seen;
  layers::Walk walk;
  walk.on_parameter = [&](const std::string&, Parameter& parameter) {
    if (seen.insert(parameter.tensor().impl()).second) parameters_.push_back(parameter.tensor());
  };
  walk.run(layer);
}

void LayerCall::check_unchanged() const {
  const std::string op = name();
  check<GraphError>(!presence_.expired(), op.c_str(),
                    "the layer is gone, or was moved, before backward(): keep it in its place until then (a "
                    "std::vector that grows moves its layers)");
  check<GraphError>(modes_of(*layer_) == modes_, op.c_str(),
                    "the layer was switched between train() and eval() before backward(), so it would not compute the "
                    "same again");
}

}  // namespace regard::checkpoint_detail
