// Memory for storages: blocks of rounded sizes that are kept when freed and given out again.
#pragma once

#include <cstdint>

#include <regard/autograd/device.hpp>

namespace regard {

/// At least `bytes` bytes, aligned to 64. Throws ValueError naming the size when there are none.
void* allocate_memory(int64_t bytes, Device device);
/// `bytes` as given to allocate_memory.
void free_memory(void* data, int64_t bytes, Device device);
/// Gives the blocks kept by this thread back to the system.
void empty_cache();

}  // namespace regard
