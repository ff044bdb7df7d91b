// The one place that makes threads. Work is cut into chunks by its size alone, never by the number of threads, so
// that a result's bits are the same for every number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace regard::cpu_backend {

/// True on a thread that is running a chunk handed out by parallel_for. Work started there stays on that thread.
bool in_parallel_region();

/// How often parallel_for has woken threads since the program began (for tests and profiling).
int64_t parallel_regions_started();

namespace detail {
using ChunkFunction = void (*)(void* context, int64_t begin, int64_t end);
void parallel_for(int64_t count, int64_t grain, bool wake, ChunkFunction function, void* context);

template <class F>
void share(int64_t count, int64_t grain, bool wake, F& f) {
  parallel_for(
      count, grain, wake,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<std::remove_const_t<F>*>(context))(begin, end); },
      const_cast<std::remove_const_t<F>*>(std::addressof(f)));
}
}  // namespace detail

/// Calls f(begin, end) over [0, count) in chunks of exactly `grain` (the last may be shorter; a grain below 1 counts
/// as 1), in any order and on any thread. The calling thread takes part and returns when all chunks are done. No
/// thread is woken for a single chunk, with num_threads() == 1, or inside a parallel region; the chunks are the same
/// then, one after the other. An exception from f stops the handing out of further chunks and is thrown here (the
/// first, if several). Nothing is allocated. Threads of the user's own may call it at the same time.
template <class F>
void parallel_for(int64_t count, int64_t grain, F&& f) {
  detail::share(count, grain, true, f);
}

/// The same for short chunks, of about 2 microseconds or more each. Threads that are awake, because a loop before this
/// one has just ended, take part at little cost; sleeping ones are woken only where `wake`, which is for loops of more
/// than about 20 microseconds, or where many short loops follow one another closely.
template <class F>
void parallel_for_short(int64_t count, int64_t grain, bool wake, F&& f) {
  detail::share(count, grain, wake, f);
}
/// Wakes for at least ten chunks.
template <class F>
void parallel_for_short(int64_t count, int64_t grain, F&& f) {
  detail::share(count, grain, grain > 0 && count / 10 >= grain, f);
}

}  // namespace regard::cpu_backend
