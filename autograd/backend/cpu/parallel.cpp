#include <regard/autograd/backend/cpu/parallel.hpp>

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <regard/autograd/error.hpp>
#include <regard/autograd/threads.hpp>
#include <sstream>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace regard {
namespace {

constexpr int max_threads = 4096;

int affinity_processors() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Processors that a quota of `quota` microseconds per `period` pays for, rounded up; 0 for no limit.
int quota_processors(const std::string& quota, const std::string& period) {
  char* end = nullptr;
  const double used = std::strtod(quota.c_str(), &end);
  if (end == quota.c_str() || used <= 0) return 0;  // "max" and -1 mean no limit
  const double of = std::strtod(period.c_str(), nullptr);
  if (!(of > 0) || used / of >= max_threads) return 0;
  return std::max(1, static_cast<int>(used / of + 0.999));
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The smallest processor quota of this process's control group and the groups around it; 0 where there is none.
int control_group_processors() {
  int limit = 0;
  const auto tighten = [&limit](int processors) {
    if (processors > 0) limit = limit == 0 ? processors : std::min(limit, processors);
  };
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // hierarchy:controllers:/path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers(",");
    controllers.append(line, first + 1, second - first - 1).append(",");
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",cpu,") == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    for (;;) {
      if (path == "/") path.clear();
      if (unified) {
        std::istringstream fields(first_line("/sys/fs/cgroup" + path + "/cpu.max"));
        std::string quota, period;
        if (fields >> quota >> period) tighten(quota_processors(quota, period));
      } else {
        const std::string folder = "/sys/fs/cgroup/cpu" + path;
        tighten(quota_processors(first_line(folder + "/cpu.cfs_quota_us"), first_line(folder + "/cpu.cfs_period_us")));
      }
      if (path.empty()) break;
      path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return limit;
}

int default_threads() {
  int processors = affinity_processors();
  if (const int limit = control_group_processors(); limit > 0) processors = std::min(processors, limit);
  if (const char* text = std::getenv("REGARD_NUM_THREADS"); text != nullptr && *text != '\0') {
    char* end = nullptr;
    errno = 0;
    const long value = std::strtol(text, &end, 10);
    if (errno == 0 && *end == '\0' && value >= 1 && value <= max_threads) return static_cast<int>(value);
    warn("REGARD_NUM_THREADS is \"" + std::string(text) + "\", which is not a whole number from 1 to " +
         std::to_string(max_threads) + "; using " + std::to_string(processors) + " threads");
  }
  return processors;
}

// 0 until set_num_threads is called.
std::atomic<int> chosen_threads{0};

}  // namespace

void set_num_threads(int count) {
  if (count < 1 || count > max_threads) {
    fail<ValueError>("set_num_threads", count, " threads asked for; give a number from 1 to ", max_threads);
  }
  chosen_threads.store(count, std::memory_order_relaxed);
}

int num_threads() {
  const int count = chosen_threads.load(std::memory_order_relaxed);
  if (count > 0) return count;
  static const int found = default_threads();  // read once, so that a bad variable is warned of once
  return found;
}

namespace cpu {
namespace {
thread_local bool inside_region = false;
std::atomic<int64_t> regions_started{0};

struct Region {
  Region() { inside_region = true; }
  ~Region() { inside_region = false; }
};
}  // namespace

bool in_parallel_region() { return inside_region; }

int64_t parallel_regions_started() { return regions_started.load(std::memory_order_relaxed); }

namespace detail {

void parallel_for(int64_t count, int64_t grain, ChunkFunction function, void* context) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t chunks = count / grain + (count % grain != 0);
  const auto run_chunk = [&](int64_t chunk) {
    const int64_t begin = chunk * grain;
    function(context, begin, grain < count - begin ? begin + grain : count);
  };

  const int64_t threads = chunks == 1 || inside_region ? 1 : std::min<int64_t>(num_threads(), chunks);
  if (threads == 1) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) run_chunk(chunk);
    return;
  }

  regions_started.fetch_add(1, std::memory_order_relaxed);
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
#pragma omp parallel num_threads(static_cast <int>(threads))
  {
    const Region region;
    try {
      for (;;) {
        if (failed.load(std::memory_order_relaxed)) break;
        const int64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
        if (chunk >= chunks) break;
        run_chunk(chunk);
      }
    } catch (...) {
      // Only the first failure is written; the end of the region makes it visible to the caller.
      if (!failed.exchange(true, std::memory_order_relaxed)) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace detail
}  // namespace cpu
}  // namespace regard
