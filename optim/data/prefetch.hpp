// Prefetch: a producer that works ahead on a thread of its own.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace regard::data {

/// Calls a producer on a thread, ahead of the consumer by at most `depth` items that wait. Items arrive in the order in
/// which they were made, so results do not depend on timing. The producer must not draw from the default generator,
/// which belongs to the consumer's thread; gradient mode is the thread's own, so that NoGrad outside does not reach it.
///
///     data::Prefetch<Batch> batches([&]() -> std::optional<Batch> { return reader.read(); });
///     while (auto batch = batches.next()) ...
template <class T>
class Prefetch {
 public:
  /// Gives the next item, or nothing where there are no more.
  using Producer = std::function<std::optional<T>()>;

  /// With a `depth` of 0 there is no thread: next() calls the producer.
  explicit Prefetch(Producer producer, size_t depth = 2) : producer_(std::move(producer)), depth_(depth) {
    if (depth_ > 0) thread_ = std::thread([this] { produce(); });
  }
  /// Waits for the item that is being made, if any, and drops what is left.
  ~Prefetch() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  /// The next item, or nothing after the last. What the producer threw is thrown here, after the items that it made
  /// before, and again in every later call.
  std::optional<T> next() {
    if (depth_ == 0) return next_without_thread();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !items_.empty() || ended_; });
    if (items_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return std::nullopt;
    }
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return item;
  }

 private:
  std::optional<T> next_without_thread() {
    if (error_) std::rethrow_exception(error_);
    if (ended_) return std::nullopt;
    try {
      std::optional<T> item = producer_();
      ended_ = !item;
      return item;
    } catch (...) {
      ended_ = true;
      error_ = std::current_exception();
      throw;
    }
  }

  void produce() {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stopping_ || items_.size() < depth_; });
        if (stopping_) return;
      }
      std::optional<T> item;
      bool failed = false;
      try {
        item = producer_();
      } catch (...) {
        // Kept in the member at once: GCC 12 loses it on the way through a local variable (-O1, -fipa-modref).
        const std::lock_guard lock(mutex_);
        error_ = std::current_exception();
        failed = true;
      }
      const bool ends = failed || !item;
      {
        const std::lock_guard lock(mutex_);
        if (ends)
          ended_ = true;
        else
          items_.push_back(std::move(*item));
      }
      changed_.notify_all();
      if (ends) return;
    }
  }

  Producer producer_;
  const size_t depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> items_;
  bool ended_ = false;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace regard::data
