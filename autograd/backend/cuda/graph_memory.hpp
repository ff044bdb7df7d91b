// The memory of a captured graph.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

namespace regard::cuda_backend {

/// Blocks that only the work of one capture uses, and that keep their place until give_back(). While it is used on a
/// thread, allocate() takes from it there, and what is freed stays with it: the work that was captured goes on reading
/// it. Of its blocks only those are taken again that were allocated from it.
struct GraphMemory {
  int index = 0;
  std::multimap<int64_t, void*> free;         // to be taken again, by size
  std::unordered_map<void*, int64_t> blocks;  // all, with their sizes
  std::unordered_map<void*, int64_t> held;    // the program's, freed in the capture, or later where they are kept
};

/// This thread allocates from `memory` from now on; null: from what all share.
void use_graph_memory(GraphMemory* memory);
/// A block of the program that the work reads: nobody else gets it before give_back(), even when it is freed.
void keep_block(GraphMemory& memory, void* data);
/// Its blocks go back to what all share, those of living tensors when these are freed.
void give_back(GraphMemory& memory);
/// From what all share, even in a capture.
void* allocate_shared(int64_t bytes, int index);

}  // namespace regard::cuda_backend
