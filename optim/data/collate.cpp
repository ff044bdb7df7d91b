#include <regard/optim/data/collate.hpp>

#include <algorithm>

#include <regard/autograd/error.hpp>

namespace regard::data {

Padded pad(const std::vector<std::vector<int64_t>>& sequences, int64_t padding, const PadOptions& options) {
  check<ValueError>(!sequences.empty(), "pad", "there are no sequences");
  check<ValueError>(options.length >= 0 && options.multiple_of > 0, "pad", "length ", options.length,
                    " must not be negative and multiple_of ", options.multiple_of, " must be positive");
  int64_t length = options.length;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto size = static_cast<int64_t>(sequences[i].size());
    check<ShapeError>(options.length == 0 || size <= options.length, "pad", "sequence ", i, " has ", size,
                      " elements, more than the length ", options.length, ": cut it, or give a larger length");
    length = std::max(length, size);
  }
  if (options.length == 0) length = (length + options.multiple_of - 1) / options.multiple_of * options.multiple_of;

  const auto rows = static_cast<int64_t>(sequences.size());
  Padded result{full({rows, length}, padding, DType::i64), zeros({rows, length}, DType::boolean)};
  auto* ids = result.ids.data<int64_t>();
  auto* mask = result.mask.data<bool>();
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<int64_t>& sequence = sequences[static_cast<size_t>(row)];
    const auto size = static_cast<int64_t>(sequence.size());
    const int64_t begin = row * length + (options.left ? length - size : 0);
    std::copy(sequence.begin(), sequence.end(), ids + begin);
    std::fill_n(mask + begin, size, true);
  }
  return result;
}

}  // namespace regard::data
