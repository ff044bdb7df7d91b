#include <regard/regard.hpp>

#include <cstdio>
using namespace regard;

int main() {
  layers::Sequential model(layers::Embedding(10, 32), layers::LearnedPositionalEncoding(8, 32),
                           layers::TransformerEncoderLayer(32, 4), layers::Linear(32, 10));
  optim::AdamW optimizer(model.parameters(), {.lr = 3e-3});
  for (int step = 0; step < 300; ++step) {
    Tensor digits = randint(0, 10, {64, 8});         // 64 sequences of 8 digits ...
    Tensor reversed = digits.flip(1).reshape({-1});  // ... to be said backwards
    Tensor loss = cross_entropy(model(digits).view({-1, 10}), reversed);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 50 == 0) std::printf("step %3d  loss %.4f\n", step, loss.item<double>());
  }
}
