#include <regard/layers/embedding.hpp>

#include <regard/autograd/ops.hpp>
#include <regard/layers/init.hpp>

namespace regard::layers {

Embedding::Embedding(int64_t count, int64_t width, int64_t padding) : padding_idx(padding) {
  check<ValueError>(count > 0 && width > 0, "Embedding", "count ", count, " and width ", width, " must be positive");
  check<ValueError>(padding >= -1 && padding < count, "Embedding", "padding_idx ", padding, " is outside [0, ", count,
                    ")");
  weight = Parameter(empty({count, width}));
  init::normal_(weight);
  if (padding >= 0) init::zeros_(weight[padding].detach());
}

Tensor Embedding::operator()(const Tensor& ids) const {
  LayerScope scope(*this);
  return embedding(ids, weight, padding_idx);
}

std::string Embedding::describe() const {
  return "Embedding(" + std::to_string(weight.size(0)) + ", " + std::to_string(weight.size(1)) +
         (padding_idx >= 0 ? ", padding_idx " + std::to_string(padding_idx) + ")" : ")");
}

}  // namespace regard::layers
