// Datasets: ranges of examples.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <regard/autograd/error.hpp>

namespace regard::data {

/// A dataset is anything with a size and an example at each index from 0: a std::vector of examples, a file, a struct
/// of your own.
template <class D>
concept Dataset = requires(const D& dataset, size_t index) {
  { dataset.size() } -> std::convertible_to<int64_t>;
  dataset[index];
};

/// What dataset[i] gives, as a value.
template <Dataset D>
using ExampleOf = std::remove_cvref_t<decltype(std::declval<const D&>()[size_t{}])>;

/// The examples at `indices`, in that order. IndexError for an index outside.
template <Dataset D>
std::vector<ExampleOf<D>> take(const D& dataset, const std::vector<int64_t>& indices) {
  std::vector<ExampleOf<D>> examples;
  examples.reserve(indices.size());
  const auto size = static_cast<int64_t>(dataset.size());
  for (int64_t index : indices) {
    check<IndexError>(index >= 0 && index < size, "take", "there is no example ", index, " among ", size);
    examples.push_back(dataset[static_cast<size_t>(index)]);
  }
  return examples;
}

/// The examples [begin, end) of a dataset, which must outlive it.
template <Dataset D>
class Subset {
 public:
  Subset(const D& dataset, int64_t begin, int64_t end) : dataset_(&dataset), begin_(begin), end_(end) {
    check<IndexError>(begin >= 0 && begin <= end && end <= static_cast<int64_t>(dataset.size()), "Subset", "[", begin,
                      ", ", end, ") is outside of the ", dataset.size(), " examples");
  }
  int64_t size() const { return end_ - begin_; }
  decltype(auto) operator[](size_t index) const { return (*dataset_)[static_cast<size_t>(begin_) + index]; }

 private:
  const D* dataset_;
  int64_t begin_, end_;
};

/// Indices 0 ... count - 1 on two sides, each in ascending order.
struct Split {
  std::vector<int64_t> training, held_out;
};
/// Holds out `share` of the examples, above 0 and below 1, chosen by the seed alone; at least one is on either side,
/// so count must be 2 or more.
Split split(int64_t count, double share, uint64_t seed);

}  // namespace regard::data
