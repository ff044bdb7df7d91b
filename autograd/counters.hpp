// What is alive: see memory_stats() in storage.hpp.
#pragma once

#include <atomic>
#include <cstdint>

namespace regard::counters {

extern std::atomic<int64_t> live_storages;
extern std::atomic<int64_t> live_nodes;
extern std::atomic<int64_t> bytes;
extern std::atomic<int64_t> peak_bytes;

}  // namespace regard::counters
