// In which order a training sees its examples.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <regard/optim/data/prefetch.hpp>

namespace regard::data {

/// A random order of 0 ... count - 1 that needs no memory: at(i) is computed from the seed and `epoch`. A Feistel
/// network with Philox for its rounds permutes the smallest 2^b that holds count, and is applied again where it leads
/// beyond count (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
class RandomOrder {
 public:
  RandomOrder(int64_t count, uint64_t seed, int64_t epoch);
  int64_t size() const { return count_; }
  int64_t at(int64_t index) const;  ///< 0 <= index < count

 private:
  int64_t count_;
  uint64_t key_;
  int left_bits_, right_bits_;
};

struct BatchOrderOptions {
  int64_t count = 0;       ///< examples there are
  int64_t batch = 1;       ///< examples in a batch
  uint64_t seed = 0;       ///< with the epoch's number, decides the order
  bool shuffle = true;     ///< false: every epoch goes from the first to the last
  bool drop_last = false;  ///< leave out the last batch of an epoch where it is short
};

/// Batches of indices, epoch after epoch without end: every example once an epoch, each epoch in an order of its own.
/// The order follows from the options and the position alone, so that a training resumed in the middle of an epoch
/// sees what an uninterrupted one would have seen. Nothing is drawn from any generator, and nothing is kept in memory,
/// however many examples there are.
///
///     data::BatchOrder order({.count = dataset.size(), .batch = 32, .seed = 1});
///     for (int step = 0; step < 1000; ++step) {
///       auto examples = data::take(dataset, order.next());
class BatchOrder {
 public:
  /// ValueError unless count and batch are positive, and at least one batch comes of an epoch.
  explicit BatchOrder(const BatchOrderOptions& options);

  /// The indices of the next batch; after the last of an epoch, the first of the next one.
  std::vector<int64_t> next();
  /// Goes over the next batch without computing it.
  void skip();
  /// Any batch of any epoch: what next() gives at that position.
  std::vector<int64_t> at(int64_t epoch, int64_t batch) const;

  int64_t batches_per_epoch() const;
  int64_t epoch() const { return epoch_; }  ///< from 0, of the next batch
  int64_t batch() const { return batch_; }  ///< from 0 within the epoch, of the next batch
  /// Moves to a position. ValueError for one that does not exist.
  void seek(int64_t epoch, int64_t batch);
  const BatchOrderOptions& options() const { return options_; }

  /// The position and the options it belongs to, as JSON text.
  std::string to_json() const;
  /// Moves to a position that to_json() gave. A ValueError names an option that is not the same here: the orders would
  /// differ.
  void restore(std::string_view json);

 private:
  BatchOrderOptions options_;
  int64_t epoch_ = 0, batch_ = 0;
};

/// Batches made on a thread of its own while the last one is computed with. order() is the position after the batches
/// that next() has given out, however many are made already: that is what a checkpoint keeps.
///
///     data::BatchLoader<data::Padded> loader(order, [&](const std::vector<int64_t>& indices) {
///       return data::pad(data::take(sequences, indices), 0);
///     });
template <class T>
class BatchLoader {
 public:
  using Make = std::function<T(const std::vector<int64_t>& indices)>;
  /// `make` runs on another thread, one batch at a time and in order, and must not draw from the default generator:
  /// let it compute what is random from the indices. It may move what it makes to a GPU: to(cuda()) does not wait. With
  /// a `depth` of 0 there is no thread: next() makes the batch.
  BatchLoader(const BatchOrder& order, Make make, size_t depth = 2)
      : order_(order),
        prefetch_([ahead = order, make = std::move(make)]() mutable -> std::optional<T> { return make(ahead.next()); },
                  depth) {}

  /// The next batch. An exception from making it is thrown here.
  T next() {
    T value = std::move(*prefetch_.next());
    order_.skip();
    return value;
  }
  const BatchOrder& order() const { return order_; }

 private:
  BatchOrder order_;
  Prefetch<T> prefetch_;
};

}  // namespace regard::data
