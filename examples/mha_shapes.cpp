// Multi-head attention, and the shapes that go in and come out: four sequences of ten vectors of width 512 through a
// layer of eight heads, and two sequences of three vectors of width 6 through one of two heads, with query, key and
// value given apart. Prints what the well-known PyTorch samples of the two print, in their own words: 輸入形狀 is
// "input shape", 輸出形狀 "output shape".
#include <iostream>
#include <optional>
#include <string>

#include <regard/autograd/random.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/layers/attention.hpp>

using namespace regard;

namespace {

int run(int argc, char** argv) {
  std::optional<std::string> name;
  examples::Options line("mha_shapes", "Sends tensors through multi-head attention and prints their shapes.");
  line.device(name);
  if (!line.parse(argc, argv)) return 0;
  const Device device = examples::device_named(name.value_or("cpu"));
  manual_seed(0);

  const int64_t embed_dim = 512, num_heads = 8, seq_len = 10, batch_size = 4;
  layers::MultiHeadAttention mha(embed_dim, num_heads);
  mha.to(device);
  Tensor input = randn({batch_size, seq_len, embed_dim}, device);
  Tensor output = mha(input);
  std::cout << "輸入形狀: " << input.shape() << "\n";
  std::cout << "輸出形狀: " << output.shape() << "\n";

  const int64_t d_model = 6;
  layers::MultiHeadAttention attention(d_model, 2);
  attention.to(device);
  Tensor query = rand({2, 3, d_model}, device), key = rand({2, 3, d_model}, device);
  Tensor value = rand({2, 3, d_model}, device);
  std::cout << attention(query, key, value).shape() << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return examples::run_main("mha_shapes", argc, argv, run); }
