#include <regard/autograd/backend/cpu/parallel.hpp>

#include <algorithm>
#include <array>
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

using Clock = std::chrono::steady_clock;

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
  // Chunks handed out from the front, to the caller, and from the back, to workers: what one loop leaves in a thread's
  // cache lies there again for the next one.
  std::atomic<int64_t> front{0}, back{0}, taken{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure{};  // written by the thread that set `failed`

  void run_chunk(int64_t chunk) {
    const int64_t begin = chunk * grain;
    function(context, begin, grain < count - begin ? begin + grain : count);
  }

  void run_chunks(bool from_front) {
    try {
      while (!failed.load(std::memory_order_relaxed) && taken.fetch_add(1, std::memory_order_relaxed) < chunks) {
        if (from_front)
          run_chunk(front.fetch_add(1, std::memory_order_relaxed));
        else
          run_chunk(chunks - 1 - back.fetch_add(1, std::memory_order_relaxed));
      }
    } catch (...) {
      if (!failed.exchange(true, std::memory_order_relaxed)) failure = std::current_exception();
    }
  }
};

void pause_briefly(int times) {
#if defined(__x86_64__)
  for (int i = 0; i < times; ++i) __builtin_ia32_pause();
#else
  (void)times;
#endif
}

// Waits up to about 100 microseconds: the usual time until the next parallel loop, and more than waking a sleeping
// thread takes. Longer would take the processor from others for nothing.
template <class Condition>
bool becomes_true(const Condition& condition) {
  for (int i = 0; i < 64; ++i) {
    if (condition()) return true;
    pause_briefly(2);
  }
  const auto end = Clock::now() + std::chrono::microseconds(100);
  do {
    pause_briefly(16);
    if (condition()) return true;
    std::this_thread::yield();  // on a busy machine the thread that is waited for may need this very processor
    if (condition()) return true;
  } while (Clock::now() < end);
  return false;
}

// Workers join the jobs that callers post. A caller never waits for a worker that has not joined yet: on a machine
// busy with other programs it does all the chunks itself. (An OpenMP region ends only when every one of its threads
// has had a turn on a processor, which takes milliseconds there.)
//
// Posting, joining and leaving take no lock, so that a loop of a few microseconds can be shared with a worker that is
// awake. The lock is for falling asleep and waking.
class Pool {
 public:
  static Pool& instance() {
    static Pool& pool = *new Pool;  // never destroyed: workers use it until the process ends
    return pool;
  }

  void run(Job& job, int64_t workers, bool wake) {
    if (wake && workers_.load(std::memory_order_relaxed) < workers) start_workers(workers);
    const int64_t all = workers_.load(), sleeping = sleeping_.load();
    if (!wake && all <= sleeping && worth_waking(job.chunks)) {
      wake = true;
      if (all == 0) start_workers(workers);
    }
    const int64_t places = std::min(workers, wake ? workers_.load() : all - sleeping);
    Slot* slot = places > 0 ? free_slot() : nullptr;
    if (slot == nullptr) {
      const Region region;
      job.run_chunks(true);
      return;
    }
    regions_started.fetch_add(1, std::memory_order_relaxed);
    slot->job = &job;
    open_.fetch_add(1);  // first: a worker that has taken the last place lowers it
    slot->state.store(static_cast<uint64_t>(places) * one_place);  // who joins reads the job after this
    posts_.fetch_add(1, std::memory_order_relaxed);
    if (wake && sleeping_.load() > 0) {
      const std::lock_guard lock(mutex_);
      for (int64_t i = 0; i < std::min(places, sleeping_.load()); ++i) wake_.notify_one();
    }
    {
      const Region region;
      job.run_chunks(true);
    }
    // Nobody joins from here on.
    if (slot->state.fetch_and(one_place - 1) >= one_place) open_.fetch_sub(1);
    const auto done = [slot] { return slot->state.load() == 0; };
    if (!becomes_true(done)) {
      std::unique_lock lock(mutex_);
      waiting_.fetch_add(1);
      done_.wait(lock, done);
      waiting_.fetch_sub(1);
    }
    slot->taken.store(false, std::memory_order_release);
  }

 private:
  static constexpr uint64_t one_place = uint64_t{1} << 32;
  // A job that is shared out: how many more workers may join in the upper half of `state`, and in the lower how many
  // are at it. One that joined takes itself off with its last touch of the job.
  struct alignas(64) Slot {
    std::atomic<bool> taken{false};
    std::atomic<uint64_t> state{0};
    Job* job = nullptr;
  };

  Pool() {
#if defined(__unix__)
    // A child process has no workers: it starts its own.
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] {
                     Pool& pool = instance();
                     pool.workers_ = pool.sleeping_ = pool.waiting_ = pool.open_ = 0;
                     for (Slot& slot : pool.slots_) slot.taken = false, slot.state = 0;
                     new (&pool.wake_) std::condition_variable;
                     new (&pool.done_) std::condition_variable;
                     pool.mutex_.unlock();
                   });
#endif
  }

  Slot* free_slot() {
    for (Slot& slot : slots_)
      if (!slot.taken.load(std::memory_order_relaxed) && !slot.taken.exchange(true, std::memory_order_acquire))
        return &slot;
    return nullptr;  // more callers at once than is sensible: each does its own work
  }

  // A short loop alone is not worth waking anybody; but hundreds of them in a row, as in the step of a small model,
  // are. `chunks` of about 2 microseconds were not shared just now.
  bool worth_waking(int64_t chunks) {
    const int64_t now = Clock::now().time_since_epoch() / std::chrono::microseconds(1);
    int64_t missed = missed_.load(std::memory_order_relaxed);
    if (now - last_missed_.exchange(now, std::memory_order_relaxed) > 200) missed = 0;
    missed += chunks;
    const bool enough = missed >= 100;
    missed_.store(enough ? 0 : missed, std::memory_order_relaxed);
    return enough;
  }

  void start_workers(int64_t wanted) {
    const std::lock_guard lock(mutex_);
    while (workers_.load() < wanted && start_worker()) {
    }
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
      workers_.fetch_add(1);
    } catch (const std::exception&) {  // std::system_error, or no memory
      started = false;
    }
#if defined(__unix__)
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
    return started;
  }

  void work() {
    inside_region = true;
    const auto posted = [this] { return open_.load() > 0; };
    auto useful = Clock::now();
    for (;;) {
      // Awake for a while where callers post and others are faster to take the work, but not for good: of many workers
      // short loops need few.
      const int64_t before = posts_.load(std::memory_order_relaxed);
      const bool busy = becomes_true(posted) || posts_.load(std::memory_order_relaxed) != before;
      if (!busy || Clock::now() - useful > std::chrono::milliseconds(2)) {
        std::unique_lock lock(mutex_);
        sleeping_.fetch_add(1);
        wake_.wait(lock, posted);
        sleeping_.fetch_sub(1);
        useful = Clock::now();
      }
      for (Slot& slot : slots_) {
        if (!join(slot)) continue;
        slot.job->run_chunks(false);
        slot.state.fetch_sub(1);
        if (waiting_.load() > 0) {
          const std::lock_guard lock(mutex_);
          done_.notify_all();
        }
        useful = Clock::now();
      }
    }
  }

  bool join(Slot& slot) {
    uint64_t state = slot.state.load();
    while (state >= one_place) {
      if (!slot.state.compare_exchange_weak(state, state - one_place + 1)) continue;
      if (state < 2 * one_place) open_.fetch_sub(1);  // the last place
      return true;
    }
    return false;
  }

  std::array<Slot, 16> slots_;
  alignas(64) std::atomic<int64_t> open_{0};  // slots that have places left
  std::atomic<int64_t> posts_{0};             // how many there were
  alignas(64) std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<int64_t> workers_{0}, sleeping_{0}, waiting_{0};
  std::atomic<int64_t> missed_{0}, last_missed_{0};
};

}  // namespace

bool in_parallel_region() { return inside_region; }

int64_t parallel_regions_started() { return regions_started.load(std::memory_order_relaxed); }

namespace detail {

void parallel_for(int64_t count, int64_t grain, bool wake, ChunkFunction function, void* context) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t chunks = count / grain + (count % grain != 0);
  const int64_t threads = chunks == 1 || inside_region ? 1 : std::min<int64_t>(num_threads(), chunks);
  if (threads == 1) {
    for (int64_t begin = 0; begin < count; begin += grain)
      function(context, begin, grain < count - begin ? begin + grain : count);
    return;
  }
  Job job{function, context, count, grain, chunks};
  Pool::instance().run(job, threads - 1, wake);
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace detail
}  // namespace cpu_backend
}  // namespace regard
