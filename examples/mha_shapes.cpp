// Multi-head attention, and the shapes that go in and come out: four sequences of ten vectors of width 512 through a
// layer of eight heads, and two sequences of three vectors of width 6 through one of two heads, with query, key and
// value given apart. Prints what the well-known PyTorch samples of the two print, in their own words: 輸入形狀 is
// "input shape", 輸出形狀 "output shape".
#include <iostream>

#include <regard/autograd/random.hpp>
#include <regard/layers/attention.hpp>

using namespace regard;

int main() {
  manual_seed(0);

  const int64_t embed_dim = 512, num_heads = 8, seq_len = 10, batch_size = 4;
  layers::MultiHeadAttention mha(embed_dim, num_heads);
  Tensor input = randn({batch_size, seq_len, embed_dim});
  Tensor output = mha(input);
  std::cout << "輸入形狀: " << input.shape() << "\n";
  std::cout << "輸出形狀: " << output.shape() << "\n";

  const int64_t d_model = 6;
  layers::MultiHeadAttention attention(d_model, 2);
  Tensor query = rand({2, 3, d_model}), key = rand({2, 3, d_model}), value = rand({2, 3, d_model});
  std::cout << attention(query, key, value).shape() << "\n";
}
