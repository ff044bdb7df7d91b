// The smallest program that uses Regard's tensors, gradients, layers and optimizers; exit 0 is a pass.
#include <regard/regard.hpp>

int main() {
  regard::manual_seed(1);
  regard::layers::Linear linear(4, 2);
  regard::optim::AdamW optimizer(linear.parameters(), {.lr = 1e-2});
  regard::Tensor x = regard::randn({3, 4});

  regard::Tensor before = regard::mean(linear(x) * linear(x));
  before.backward();
  optimizer.step();
  regard::Tensor after = regard::mean(linear(x) * linear(x));
  return after.item<float>() < before.item<float>() ? 0 : 1;
}
