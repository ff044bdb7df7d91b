// Memory for large tensors: freed blocks are joined with free neighbours and cut to any size again.
#pragma once

#include <cstdint>

namespace regard {

/// Blocks of at least this many bytes come from here. A step's tensors are of many sizes, and live and die in another
/// order in each part of it: a list of free blocks for each size would keep every size's most at once, where joined and
/// cut blocks keep about as much as is alive together.
constexpr int64_t least_large_bytes = int64_t{1} << 18;

/// At least `bytes` bytes on a page's boundary, or null where there are none. From the smallest free block that is
/// large enough; pages that were never given out take no memory.
void* take_large_block(int64_t bytes);
/// `bytes` as given to take_large_block. Any thread may give a block back.
void give_large_block(void* data, int64_t bytes);
/// Gives the memory of free blocks back to the system.
void trim_large_blocks();
/// At most about how many bytes of free blocks keep their memory for the next tensors; what is freed beyond that goes
/// back to the system at once. 1 GiB unless set. With less, the most that is resident comes near to what is alive, and
/// a step takes longer, for the system clears pages that are had again.
void set_kept_large_bytes(int64_t bytes);

}  // namespace regard
