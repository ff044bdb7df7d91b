#include <regard/optim/data/dataset.hpp>

#include <algorithm>
#include <cmath>

#include <regard/optim/data/batches.hpp>

namespace regard::data {

Split split(int64_t count, double share, uint64_t seed) {
  check<ValueError>(count >= 2, "split", count, " examples cannot be on two sides; at least 2 are needed");
  check<ValueError>(share > 0 && share < 1, "split", "share ", share, " must be above 0 and below 1");
  const auto held_out = std::clamp<int64_t>(std::llround(share * static_cast<double>(count)), 1, count - 1);
  const RandomOrder order(count, seed, -1);  // no epoch's order
  Split result;
  result.held_out.reserve(static_cast<size_t>(held_out));
  for (int64_t i = 0; i < held_out; ++i) result.held_out.push_back(order.at(i));
  std::sort(result.held_out.begin(), result.held_out.end());
  result.training.reserve(static_cast<size_t>(count - held_out));
  auto next = result.held_out.begin();
  for (int64_t i = 0; i < count; ++i) {
    if (next != result.held_out.end() && *next == i)
      ++next;
    else
      result.training.push_back(i);
  }
  return result;
}

}  // namespace regard::data
