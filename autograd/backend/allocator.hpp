// Memory for storages: small blocks of rounded sizes are kept by the thread that freed them and given out again; large
// ones are joined and cut (large_blocks.hpp).
#pragma once

#include <cstdint>

#include <regard/autograd/device.hpp>

namespace regard {

/// At least `bytes` bytes, aligned to 64. Throws ValueError naming the size when there are none.
void* allocate_memory(int64_t bytes, Device device);
/// `bytes` as given to allocate_memory.
void free_memory(void* data, int64_t bytes, Device device);
/// Gives the small blocks kept by this thread, and all free large ones, back to the system.
void empty_cache();

}  // namespace regard
