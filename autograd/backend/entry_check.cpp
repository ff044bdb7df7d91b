#include <regard/autograd/backend/entry_check.hpp>

#include <sstream>

#include <regard/autograd/backend/cuda_backend.hpp>
#include <regard/autograd/error.hpp>

namespace regard {

void check_entries_later(const Tensor& x, const EntryCheck& check) {
  if (x.numel() > 0) need_cuda("check", x.device()).check_entries(x, check);
}

void raise_entry_error(const EntryCheck& check, const std::string& suffix, const Shape& shape, int64_t position,
                       Scalar value) {
  std::ostringstream message;
  message << check.before;
  if (check.names != EntryCheck::Names::nothing) {
    if (value.is_floating())
      message << value.to_double();
    else
      message << value.to_int();
  }
  if (check.names == EntryCheck::Names::entry_and_position) message << " at position " << position_of(position, shape);
  message << check.after << suffix;
  switch (check.raises) {
    case EntryCheck::Raises::index_error:
      throw IndexError(message.str());
    case EntryCheck::Raises::value_error:
      throw ValueError(message.str());
    case EntryCheck::Raises::warning:
      warn(message.str());
  }
}

}  // namespace regard
