// The threads, and how work is shared among them.
#if defined(__unix__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <numeric>
#include <regard/autograd/backend/cpu/parallel.hpp>
#include <regard/autograd/error.hpp>
#include <regard/autograd/threads.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace parallel_test {

using regard::cpu_backend::in_parallel_region;
using regard::cpu_backend::parallel_for;
using regard::cpu_backend::parallel_for_short;
using regard::cpu_backend::parallel_regions_started;

namespace {

struct ThreadCount {
  explicit ThreadCount(int count) : before(regard::num_threads()) { regard::set_num_threads(count); }
  ~ThreadCount() { regard::set_num_threads(before); }
  int before;
};

}  // namespace

TEST_CASE("parallel_for visits every index once, in chunks that do not depend on the thread count", "[parallel]") {
  for (const int threads : {1, 2, 3, 4}) {
    const ThreadCount scope(threads);
    for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t grain : {1, 3, 64, 2000}) {
        std::vector<int> visits(static_cast<size_t>(count), 0);
        std::atomic<int> wrong{0}, chunks{0};
        parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          if (begin % grain != 0 || end != std::min(begin + grain, count) || begin >= end) ++wrong;
          ++chunks;
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        });
        CAPTURE(threads, count, grain);
        CHECK(wrong == 0);
        CHECK(chunks == (count + grain - 1) / grain);
        CHECK(visits == std::vector<int>(static_cast<size_t>(count), 1));
      }
    }
  }
}

TEST_CASE("parallel_for uses several threads, and wakes none for one chunk or one thread", "[parallel]") {
  {
    const ThreadCount scope(2);
    const int64_t before = parallel_regions_started();
    // Each of the two chunks waits for the other one to have begun: one thread alone would never end.
    std::atomic<int> begun{0};
    parallel_for(2, 1, [&](int64_t, int64_t) {
      ++begun;
      while (begun < 2) std::this_thread::yield();
    });
    CHECK(parallel_regions_started() == before + 1);
    parallel_for(5, 5, [](int64_t, int64_t) { CHECK_FALSE(in_parallel_region()); });
    CHECK(parallel_regions_started() == before + 1);
  }
  const ThreadCount scope(1);
  const int64_t before = parallel_regions_started();
  const auto self = std::this_thread::get_id();
  parallel_for(5, 1, [&](int64_t, int64_t) { CHECK(std::this_thread::get_id() == self); });
  CHECK(parallel_regions_started() == before);
}

TEST_CASE("short loops visit every index once, also from several user threads", "[parallel]") {
  for (const int threads : {1, 2, 4}) {
    const ThreadCount scope(threads);
    std::vector<std::thread> users;
    std::atomic<int> wrong{0};
    for (int user = 0; user < 3; ++user) {
      users.emplace_back([&wrong] {
        for (int round = 0; round < 300; ++round) {
          const int64_t count = 1 + round % 23, grain = 1 + round % 4;
          std::vector<int> visits(static_cast<size_t>(count), 0);
          parallel_for_short(count, grain, round % 50 == 0, [&](int64_t begin, int64_t end) {
            if (begin % grain != 0 || end != std::min(begin + grain, count)) ++wrong;
            for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
          });
          if (visits != std::vector<int>(static_cast<size_t>(count), 1)) ++wrong;
        }
      });
    }
    for (std::thread& user : users) user.join();
    CAPTURE(threads);
    CHECK(wrong == 0);
  }
}

TEST_CASE("a short loop wakes nobody, and hundreds in a row do", "[parallel]") {
  const ThreadCount scope(2);
  parallel_for(2, 1, [](int64_t, int64_t) {});
  int64_t before = 0;
  bool alone = false;
  for (int tries = 0; tries < 500 && !alone; ++tries) {  // until the worker has fallen asleep
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    before = parallel_regions_started();
    parallel_for_short(4, 1, [](int64_t, int64_t) {});
    alone = parallel_regions_started() == before;
  }
  CHECK(alone);
  for (int i = 0; i < 5000 && parallel_regions_started() == before; ++i)
    parallel_for_short(4, 1, [](int64_t, int64_t) {});
  CHECK(parallel_regions_started() > before);
}

TEST_CASE("a parallel loop inside a parallel loop stays on its thread", "[parallel]") {
  const ThreadCount scope(4);
  const int64_t before = parallel_regions_started();
  std::atomic<int> sum{0}, strayed{0}, outside{0};
  parallel_for(8, 1, [&](int64_t, int64_t) {
    const auto self = std::this_thread::get_id();
    if (!in_parallel_region()) ++outside;
    parallel_for(10, 3, [&](int64_t begin, int64_t end) {
      if (std::this_thread::get_id() != self) ++strayed;
      for (int64_t i = begin; i < end; ++i) sum += static_cast<int>(i);
    });
    if (!in_parallel_region()) ++outside;
  });
  CHECK(sum == 8 * 45);
  CHECK(strayed == 0);
  CHECK(outside == 0);
  CHECK_FALSE(in_parallel_region());
  CHECK(parallel_regions_started() == before + 1);
}

TEST_CASE("an exception inside a parallel loop reaches the caller", "[parallel]") {
  for (const int threads : {1, 2, 4}) {
    const ThreadCount scope(threads);
    std::string message;
    try {
      parallel_for(100, 1, [](int64_t begin, int64_t) {
        if (begin >= 10) throw std::domain_error("chunk failed");
      });
    } catch (const std::domain_error& error) {
      message = error.what();
    }
    CHECK(message == "chunk failed");
    CHECK_FALSE(in_parallel_region());
    std::atomic<int> done{0};
    parallel_for(100, 1, [&](int64_t, int64_t) { ++done; });  // and the next loop is whole again
    CHECK(done == 100);
  }
}

TEST_CASE("parallel loops from several user threads at once", "[parallel]") {
  const ThreadCount scope(2);
  std::vector<int64_t> sums(4, 0);
  std::vector<std::thread> users;
  for (size_t user = 0; user < sums.size(); ++user) {
    users.emplace_back([&sums, user] {
      std::vector<int64_t> parts(50);
      for (int round = 0; round < 20; ++round) {
        parallel_for(50, 1, [&](int64_t begin, int64_t) { parts[static_cast<size_t>(begin)] += begin; });
      }
      sums[user] = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    });
  }
  for (std::thread& user : users) user.join();
  CHECK(sums == std::vector<int64_t>(4, 20 * (49 * 50 / 2)));
}

#if defined(__unix__) && !defined(__SANITIZE_THREAD__)  // whose runtime forbids threads after a fork
TEST_CASE("a child process made by fork has parallel loops of its own", "[parallel]") {
  const ThreadCount scope(2);
  const auto sum = [] {
    std::atomic<int64_t> total{0};
    parallel_for(100, 1, [&](int64_t begin, int64_t) { total += begin; });
    return total.load();
  };
  REQUIRE(sum() == 4950);  // the workers are there when the process is copied
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(20);
    _exit(sum() == 4950 && sum() == 4950 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif

TEST_CASE("set_num_threads is heeded and refuses counts below one", "[parallel][threads]") {
  const ThreadCount scope(3);
  CHECK(regard::num_threads() == 3);
  for (const int count : {0, -1}) CHECK_THROWS_AS(regard::set_num_threads(count), regard::ValueError);
  CHECK_THROWS_WITH(regard::set_num_threads(0), Catch::Contains("set_num_threads") && Catch::Contains("0 threads"));
  CHECK(regard::num_threads() == 3);
}

}  // namespace parallel_test
