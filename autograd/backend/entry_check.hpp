// What the entries of a tensor must be, checked without waiting for the device they are on.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include <regard/autograd/tensor.hpp>

namespace regard {

/// Every entry x must have low <= x <= high, or be `ignored`: NaN never has. Bounds of floating tensors are compared
/// in f64.
struct EntryCheck {
  Scalar low = 0, high = 0;
  std::optional<int64_t> ignored = {};  ///< of an i64 tensor

  /// What is thrown, or warned of, where one does not: `before`, then what is asked for of the first such entry, then
  /// `after`.
  enum class Raises : uint8_t { index_error, value_error, warning };
  enum class Names : uint8_t { nothing, entry, entry_and_position };  ///< `12`; `12 at position (0, 3)`
  Raises raises = Raises::index_error;
  Names names = Names::entry_and_position;
  std::string before = {}, after = {};
  std::atomic<bool>* given = nullptr;  ///< of a warning that is given once: set when it is, and none comes where it is
};

/// Checks an i64 or floating tensor on a GPU behind what is queued, and returns before that is done. What is found is
/// thrown as cuda.hpp says; the message ends in the layer around the op that asked.
void check_entries_later(const Tensor& x, const EntryCheck& check);

/// Raises what `check` says of an entry at a position; `suffix` names the layer.
void raise_entry_error(const EntryCheck& check, const std::string& suffix, const Shape& shape, int64_t position,
                       Scalar value);

}  // namespace regard
