// Attention by matrix instructions, bf16 and f16, against the CPU in f64 on the same numbers: odd sizes, layouts,
// masks, dropout, heads that share keys, long keys for few queries, gradients written over what they are of, bits.
#include <catch2/catch.hpp>

#include "attention_problems.hpp"

namespace tensor_attention_test {

using namespace attention_problems;

TEST_CASE("cuda attention in 16 bits: odd sizes and every layout") {
  Generator generator(3);
  const std::vector<Sizes> all{{1, 1, 1, 1, 1, 1, 1},     {2, 3, 3, 7, 16, 8, 8},      {1, 2, 1, 17, 16, 16, 16},
                               {2, 2, 1, 16, 63, 17, 31}, {1, 2, 2, 65, 130, 32, 32},  {1, 2, 1, 129, 1, 5, 2},
                               {1, 1, 1, 63, 65, 40, 64}, {1, 1, 1, 130, 67, 64, 128}, {1, 1, 1, 65, 70, 128, 96},
                               {2, 1, 1, 9, 40, 72, 104}, {1, 1, 1, 20, 97, 65, 1}};
  int turn = 0;
  for (DType dtype : {DType::bf16, DType::f16})
    for (const Sizes& s : all)
      for (Layout layout : {Layout::dense, Layout::split_heads, Layout::columns_apart, Layout::odd_offset}) {
        if (++turn % 2 && s.queries * s.keys > 1000) continue;
        Problem p(s, dtype, layout, generator);
        p.settings.causal = turn % 3 == 0;
        INFO(s.text() << " " << dtype << " layout " << static_cast<int>(layout) << " causal " << p.settings.causal);
        check(p, {.from_delta = turn % 4 < 2 && layout != Layout::columns_apart,
                  .split_heads = layout == Layout::split_heads});
      }
}

}  // namespace tensor_attention_test
