// Shapes that the rows of elementwise ops share.
#pragma once

#include "arrays.hpp"
#include "op_case.hpp"

namespace regard::op_cases {

/// Empty, zero-dimensional, with sizes of 1, in eight dimensions, and longer than any vector register.
inline std::vector<Inputs> elementwise_sets(const Input& like) {
  std::vector<Inputs> sets;
  for (const Shape& shape :
       {Shape{0}, Shape{2, 0, 3}, Shape{}, Shape{1, 3, 1}, Shape{1, 2, 1, 2, 1, 2, 1, 2}, Shape{67}, Shape{9, 37}}) {
    Input input = like;
    input.shape = shape;
    sets.push_back({input});
  }
  return sets;
}

/// The same for two operands, with broadcasting both ways.
inline std::vector<Inputs> pair_sets(const Input& a, const Input& b) {
  const std::pair<Shape, Shape> shapes[] = {
      {{0}, {0}},   {{2, 0, 3}, {3}},    {{}, {}},        {{}, {2, 3}},
      {{2, 3}, {}}, {{2, 1, 3}, {4, 1}}, {{4, 1}, {0}},   {{1, 2, 1, 2, 1, 2, 1, 2}, {2, 1, 2, 1, 2}},
      {{67}, {67}}, {{9, 37}, {9, 1}},   {{37}, {9, 37}}, {{1, 1}, {1}},
  };
  std::vector<Inputs> sets;
  for (const auto& [first, second] : shapes) {
    Input x = a, y = b;
    x.shape = first;
    y.shape = second;
    sets.push_back({x, y});
  }
  return sets;
}

}  // namespace regard::op_cases
