// Memory for packed operands, kept by each thread from call to call.
#pragma once

#include <cstdint>

namespace regard::cpu_backend {

/// Blocks of the two operands.
enum class Scratch { a, b };

/// At least `bytes` bytes on a cache line's boundary; good until this thread asks for the same one again. Their
/// contents are those of the last use. Throws std::bad_alloc.
void* scratch_bytes(Scratch which, int64_t bytes);

template <class T>
T* scratch(Scratch which, int64_t elements) {
  return static_cast<T*>(scratch_bytes(which, elements * static_cast<int64_t>(sizeof(T))));
}

}  // namespace regard::cpu_backend
