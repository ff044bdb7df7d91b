// What a GPU finds wrong while the CPU goes on: entries of a tensor that are not what they must be.
#pragma once

#include <regard/autograd/backend/entry_check.hpp>

namespace regard::cuda_backend {

/// Checks behind what is queued. The first entry that does not fit is noted, unless there is a note already; kernels
/// that come after must not read or write out of bounds for it.
void check_entries(const Tensor& x, const EntryCheck& check);

/// Makes what checks of a GPU need, which a capture cannot.
void prepare_checks(int index);

/// To be called when a GPU has been waited for: raises what it noted, and takes the note away.
void raise_noted(int index);

}  // namespace regard::cuda_backend
