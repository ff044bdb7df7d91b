#include <regard/autograd/backend/cpu/parallel.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <new>
#include <regard/autograd/error.hpp>
#include <regard/autograd/threads.hpp>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__unix__)
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#endif

namespace regard {
namespace {

constexpr int max_threads = 4096;

int affinity_processors() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(getpid(), sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
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

namespace cpu_backend {
namespace {

thread_local bool inside_region = false;
std::atomic<int64_t> regions_started{0};

struct Region {
  Region() { inside_region = true; }
  ~Region() { inside_region = false; }
};

// One call of parallel_for, on its caller's stack.
struct Job {
  detail::ChunkFunction function;
  void* context;
  int64_t count, grain, chunks;
  std::atomic<int64_t> next{0};  // the next chunk to hand out
  std::atomic<bool> failed{false};
  std::exception_ptr failure{};    // written by the thread that set `failed`
  std::atomic<int64_t> inside{0};  // workers at it; each one's last touch of the job is taking itself off
  int64_t places = 0;              // how many more workers may join; guarded by the pool's mutex
  Job* next_job = nullptr;         // the same

  void run_chunk(int64_t chunk) {
    const int64_t begin = chunk * grain;
    function(context, begin, grain < count - begin ? begin + grain : count);
  }

  void run_chunks() {
    try {
      while (!failed.load(std::memory_order_relaxed)) {
        const int64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
        if (chunk >= chunks) break;
        run_chunk(chunk);
      }
    } catch (...) {
      if (!failed.exchange(true, std::memory_order_relaxed)) failure = std::current_exception();
    }
  }
};

void pause_briefly() {
#if defined(__x86_64__)
  for (int i = 0; i < 16; ++i) __builtin_ia32_pause();
#endif
  std::this_thread::yield();  // on a busy machine the thread that is waited for may need this very processor
}

// Waits up to about 100 microseconds: the usual time until the next parallel loop, and more than waking a sleeping
// thread takes. Longer would take the processor from others for nothing.
template <class Condition>
bool becomes_true(const Condition& condition) {
  using clock = std::chrono::steady_clock;
  if (condition()) return true;
  const auto end = clock::now() + std::chrono::microseconds(100);
  do {
    pause_briefly();
    if (condition()) return true;
  } while (clock::now() < end);
  return false;
}

// Workers join the jobs that callers post. A caller never waits for a worker that has not joined yet: on a machine
// busy with other programs it does all the chunks itself. (An OpenMP region ends only when every one of its threads
// has had a turn on a processor, which takes milliseconds there.)
class Pool {
 public:
  static Pool& instance() {
    static Pool& pool = *new Pool;  // never destroyed: workers use it until the process ends
    return pool;
  }

  void run(Job& job, int64_t workers) {
    {
      const std::lock_guard lock(mutex_);
      while (workers_ < workers && start_worker()) {
      }
      job.places = std::min(workers, workers_);
      job.next_job = first_;
      first_ = &job;
      places_.fetch_add(job.places, std::memory_order_relaxed);
      for (int64_t i = 0; i < std::min(job.places, sleeping_); ++i) wake_.notify_one();
    }
    {
      const Region region;
      job.run_chunks();
    }
    {
      const std::lock_guard lock(mutex_);
      Job** link = &first_;
      while (*link != &job) link = &(*link)->next_job;
      *link = job.next_job;
      places_.fetch_sub(job.places, std::memory_order_relaxed);
    }
    const auto done = [&job] { return job.inside.load(std::memory_order_acquire) == 0; };
    if (becomes_true(done)) return;
    std::unique_lock lock(mutex_);
    ++waiting_;
    done_.wait(lock, done);
    --waiting_;
  }

 private:
  Pool() {
#if defined(__unix__)
    // A child process has no workers: it starts its own.
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] {
                     Pool& pool = instance();
                     pool.workers_ = pool.sleeping_ = pool.waiting_ = 0;
                     pool.first_ = nullptr;
                     pool.places_.store(0);
                     new (&pool.wake_) std::condition_variable;
                     new (&pool.done_) std::condition_variable;
                     pool.mutex_.unlock();
                   });
#endif
  }

  // False where the system gives no more threads; there are fewer then, and the results are the same.
  bool start_worker() {
#if defined(__unix__)
    sigset_t all, before;  // signals are for the program's own threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
    bool started = true;
    try {
      std::thread([this] { work(); }).detach();
      ++workers_;
    } catch (const std::system_error&) {
      started = false;
    }
#if defined(__unix__)
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
    return started;
  }

  void work() {
    inside_region = true;
    for (;;) {
      const bool posted = becomes_true([this] { return places_.load(std::memory_order_relaxed) > 0; });
      std::unique_lock lock(mutex_);
      if (!posted) {
        ++sleeping_;
        wake_.wait(lock, [this] { return places_.load(std::memory_order_relaxed) > 0; });
        --sleeping_;
      }
      Job* job = first_;
      while (job != nullptr && job->places == 0) job = job->next_job;
      if (job == nullptr) continue;
      --job->places;
      places_.fetch_sub(1, std::memory_order_relaxed);
      job->inside.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      job->run_chunks();
      job->inside.fetch_sub(1, std::memory_order_release);
      lock.lock();
      if (waiting_ > 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* first_ = nullptr;
  std::atomic<int64_t> places_{0};  // of all jobs
  int64_t workers_ = 0, sleeping_ = 0, waiting_ = 0;
};

}  // namespace

bool in_parallel_region() { return inside_region; }

int64_t parallel_regions_started() { return regions_started.load(std::memory_order_relaxed); }

namespace detail {

void parallel_for(int64_t count, int64_t grain, ChunkFunction function, void* context) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  Job job{function, context, count, grain, count / grain + (count % grain != 0)};
  const int64_t threads = job.chunks == 1 || inside_region ? 1 : std::min<int64_t>(num_threads(), job.chunks);
  if (threads == 1) {
    for (int64_t chunk = 0; chunk < job.chunks; ++chunk) job.run_chunk(chunk);
    return;
  }
  regions_started.fetch_add(1, std::memory_order_relaxed);
  Pool::instance().run(job, threads - 1);
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace detail
}  // namespace cpu_backend
}  // namespace regard
