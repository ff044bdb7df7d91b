// Datasets, the order of batches, padding, and a producer that works ahead.
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <regard/autograd/ops.hpp>
#include <regard/autograd/random.hpp>
#include <regard/optim/data/batches.hpp>
#include <regard/optim/data/collate.hpp>
#include <regard/optim/data/dataset.hpp>
#include <regard/optim/data/prefetch.hpp>

#include "test_folder.hpp"

namespace batches_test {

using namespace regard;
using namespace regard::data;
using Catch::Contains;
using test::error_of;

namespace {

using Indices = std::vector<int64_t>;

std::vector<Indices> next_batches(BatchOrder& order, int64_t count) {
  std::vector<Indices> batches;
  for (int64_t i = 0; i < count; ++i) batches.push_back(order.next());
  return batches;
}

struct Squares {  // a dataset that is no vector
  int64_t size() const { return 10; }
  double operator[](size_t index) const { return static_cast<double>(index * index); }
};
static_assert(Dataset<Squares> && Dataset<std::vector<std::string>>);
static_assert(!Dataset<int>);

}  // namespace

TEST_CASE("a random order holds every index once") {
  for (int64_t count : {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 4097}) {
    INFO(count);
    for (int64_t epoch : {0, 1, 5}) {
      const RandomOrder order(count, 3, epoch);
      std::set<int64_t> seen;
      for (int64_t i = 0; i < count; ++i) seen.insert(order.at(i));
      CHECK(seen.size() == static_cast<size_t>(count));
      CHECK(*seen.begin() == 0);
      CHECK(*seen.rbegin() == count - 1);
    }
  }
  // Numbers as large as one likes, without any memory.
  const RandomOrder large(int64_t{1} << 61, 1, 0);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) seen.insert(large.at(i));
  CHECK(seen.size() == 1000);
  CHECK(*seen.rbegin() > int64_t{1} << 60);
  CHECK_THROWS_AS(RandomOrder(0, 1, 0), ValueError);
  CHECK_THROWS_AS(RandomOrder(3, 1, 0).at(3), IndexError);
}

TEST_CASE("a random order is as good as any: places, neighbours, epochs and seeds") {
  // Every index at every place about equally often.
  for (int64_t count : {2, 3, 5, 8, 13}) {
    INFO(count);
    constexpr int epochs = 4000;
    std::vector<int> hits(static_cast<size_t>(count * count));
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      const RandomOrder order(count, 9, epoch);
      for (int64_t i = 0; i < count; ++i) ++hits[static_cast<size_t>(i * count + order.at(i))];
    }
    const double expected = double(epochs) / static_cast<double>(count);
    double chi_square = 0;
    for (int hit : hits) chi_square += (hit - expected) * (hit - expected) / expected;
    const double freedom = static_cast<double>((count - 1) * (count - 1));
    CHECK(chi_square < freedom + 5 * std::sqrt(2 * freedom) + 10);
  }
  // All orders of three.
  std::map<Indices, int> orders;
  for (int64_t epoch = 0; epoch < 600; ++epoch) {
    const RandomOrder order(3, 1, epoch);
    ++orders[{order.at(0), order.at(1), order.at(2)}];
  }
  CHECK(orders.size() == 6);
  for (const auto& [order, count] : orders) CHECK(count > 50);
  // Neighbours are strangers: their mean distance in a random order is a third of the count.
  const RandomOrder order(10000, 5, 0);
  double distance = 0;
  for (int64_t i = 0; i + 1 < 10000; ++i) distance += std::abs(static_cast<double>(order.at(i + 1) - order.at(i)));
  CHECK(distance / 9999 == Approx(10000.0 / 3).epsilon(0.03));
  int same = 0;
  const RandomOrder next(10000, 5, 1), other(10000, 6, 0);
  for (int64_t i = 0; i < 10000; ++i) same += (order.at(i) == next.at(i)) + (order.at(i) == other.at(i));
  CHECK(same < 20);
}

TEST_CASE("each example comes once an epoch, whatever the batch") {
  for (int64_t count : {1, 2, 7, 12, 100})
    for (int64_t batch : {1, 2, 3, 5, 12, 13, 200})
      for (bool drop_last : {false, true})
        for (bool shuffle : {false, true}) {
          if (drop_last && batch > count) continue;
          INFO(count << " examples in batches of " << batch << (drop_last ? ", last dropped" : ""));
          BatchOrder order({.count = count, .batch = batch, .seed = 4, .shuffle = shuffle, .drop_last = drop_last});
          const int64_t batches = order.batches_per_epoch();
          REQUIRE(batches == (drop_last ? count / batch : (count + batch - 1) / batch));
          std::vector<Indices> epochs;
          for (int epoch = 0; epoch < 3; ++epoch) {
            Indices all;
            for (int64_t b = 0; b < batches; ++b) {
              REQUIRE(order.epoch() == epoch);
              REQUIRE(order.batch() == b);
              const Indices indices = order.next();
              const int64_t expected = b + 1 < batches || drop_last ? batch : count - b * batch;
              REQUIRE(static_cast<int64_t>(indices.size()) == expected);
              all.insert(all.end(), indices.begin(), indices.end());
            }
            epochs.push_back(all);
            const std::set<int64_t> seen(all.begin(), all.end());
            REQUIRE(seen.size() == all.size());
            if (!drop_last) REQUIRE(static_cast<int64_t>(seen.size()) == count);
            if (!shuffle) REQUIRE(std::is_sorted(all.begin(), all.end()));
          }
          if (shuffle && count >= 100) REQUIRE(epochs[0] != epochs[1]);
        }
}

TEST_CASE("an order goes on anywhere as if it had not been interrupted") {
  const BatchOrderOptions options{.count = 10, .batch = 3, .seed = 8};
  BatchOrder whole(options);
  const std::vector<Indices> batches = next_batches(whole, 12);
  for (int64_t done = 0; done < 12; ++done) {
    BatchOrder first(options);
    next_batches(first, done);
    BatchOrder second(options);
    second.restore(first.to_json());
    CHECK(next_batches(second, 12 - done) == std::vector<Indices>(batches.begin() + done, batches.end()));
    BatchOrder skipped(options);
    for (int64_t i = 0; i < done; ++i) skipped.skip();
    CHECK(skipped.next() == batches[static_cast<size_t>(done)]);
    CHECK(whole.at(done / 4, done % 4) == batches[static_cast<size_t>(done)]);
  }
  BatchOrder order(options);
  order.seek(2, 1);
  CHECK(order.next() == batches[9]);

  const std::string position = order.to_json();
  const auto refused = [&](BatchOrderOptions other) {
    BatchOrder changed(other);
    const std::string message = error_of<ValueError>([&] { changed.restore(position); });
    CHECK((changed.epoch() == 0 && changed.batch() == 0));
    return message;
  };
  CHECK_THAT(refused({.count = 11, .batch = 3, .seed = 8}), Contains("count 10, this one has 11"));
  CHECK_THAT(refused({.count = 10, .batch = 4, .seed = 8}), Contains("batch_size 3, this one has 4"));
  CHECK_THAT(refused({.count = 10, .batch = 3, .seed = 9}), Contains("seed 8"));
  CHECK_THAT(refused({.count = 10, .batch = 3, .seed = 8, .shuffle = false}), Contains("shuffle"));
  CHECK_THAT(refused({.count = 10, .batch = 3, .seed = 8, .drop_last = true}), Contains("drop_last"));
  CHECK_THAT(error_of<ValueError>([&] { order.restore("{}"); }), Contains("no position"));
  CHECK_THAT(error_of<ValueError>([&] { order.restore("nonsense"); }), Contains("no position"));
  CHECK_THROWS_AS(order.seek(0, 4), ValueError);
  CHECK_THROWS_AS(order.seek(-1, 0), ValueError);
  CHECK_THROWS_AS(order.at(0, 4), IndexError);
  CHECK_THAT(error_of<ValueError>([] { BatchOrder none({.count = 0}); }), Contains("no examples"));
  CHECK_THAT(error_of<ValueError>([] { BatchOrder none({.count = 3, .batch = 0}); }), Contains("batch 0"));
  CHECK_THAT(error_of<ValueError>([] { BatchOrder none({.count = 3, .batch = 4, .drop_last = true}); }),
             Contains("nothing would be left"));
}

TEST_CASE("the order of batches is pinned: it is the same in every version and on every machine") {
  BatchOrder order({.count = 10, .batch = 10, .seed = 1});
  CHECK(order.next() == Indices{4, 7, 5, 9, 6, 0, 2, 3, 1, 8});
  CHECK(order.next() == Indices{2, 6, 4, 7, 5, 0, 3, 8, 9, 1});
}

TEST_CASE("datasets: taking examples, parts, two sides") {
  const Squares squares;
  CHECK(take(squares, {3, 0, 3}) == std::vector<double>{9, 0, 9});
  CHECK_THAT(error_of<IndexError>([&] { take(squares, {10}); }), Contains("no example 10 among 10"));
  const Subset part(squares, 2, 5);
  CHECK(part.size() == 3);
  CHECK(take(part, {0, 2}) == std::vector<double>{4, 16});
  CHECK_THROWS_AS(Subset(squares, 2, 11), IndexError);
  const std::vector<std::string> words{"a", "b", "c"};
  CHECK(take(words, {2, 1}) == std::vector<std::string>{"c", "b"});

  for (int64_t count : {2, 3, 10, 1000}) {
    const Split sides = split(count, 0.1, 5);
    CHECK(static_cast<int64_t>(sides.held_out.size()) == std::max<int64_t>(1, std::llround(0.1 * double(count))));
    Indices all = sides.training;
    all.insert(all.end(), sides.held_out.begin(), sides.held_out.end());
    std::sort(all.begin(), all.end());
    for (int64_t i = 0; i < count; ++i) REQUIRE(all[static_cast<size_t>(i)] == i);
    CHECK(static_cast<int64_t>(all.size()) == count);
  }
  CHECK(split(1000, 0.1, 5).held_out == split(1000, 0.1, 5).held_out);
  CHECK(split(1000, 0.1, 5).held_out != split(1000, 0.1, 6).held_out);
  CHECK_THROWS_AS(split(1, 0.5, 1), ValueError);
  CHECK_THROWS_AS(split(5, 1.0, 1), ValueError);
}

TEST_CASE("padding fills rows on either side, with a mask") {
  const std::vector<Indices> sequences{{1, 2, 3}, {}, {4}};
  Padded right = pad(sequences, 9);
  CHECK(right.ids.shape() == Shape{3, 3});
  CHECK(right.ids.to_vector<int64_t>() == Indices{1, 2, 3, 9, 9, 9, 4, 9, 9});
  CHECK(right.mask.dtype() == DType::boolean);
  CHECK(right.mask.to_vector<int64_t>() == Indices{1, 1, 1, 0, 0, 0, 1, 0, 0});
  Padded left = pad(sequences, 9, {.left = true});
  CHECK(left.ids.to_vector<int64_t>() == Indices{1, 2, 3, 9, 9, 9, 9, 9, 4});
  CHECK(left.mask.to_vector<int64_t>() == Indices{1, 1, 1, 0, 0, 0, 0, 0, 1});
  CHECK(pad(sequences, 0, {.length = 5}).ids.shape() == Shape{3, 5});
  CHECK(pad(sequences, 0, {.multiple_of = 4}).ids.shape() == Shape{3, 4});
  CHECK(pad({{}}, 0).ids.shape() == Shape{1, 0});
  CHECK_THAT(error_of<ShapeError>([&] { pad(sequences, 0, {.length = 2}); }), Contains("sequence 0 has 3 elements"));
  CHECK_THAT(error_of<ValueError>([] { pad({}, 0); }), Contains("no sequences"));
  CHECK_THROWS_AS(pad(sequences, 0, {.multiple_of = 0}), ValueError);
}

TEST_CASE("prefetching gives what the producer made, in its order") {
  for (size_t depth : {0, 1, 2, 7}) {
    INFO("depth " << depth);
    int made = 0;
    Prefetch<int> items([&]() -> std::optional<int> { return made < 100 ? std::optional(made++) : std::nullopt; },
                        depth);
    for (int i = 0; i < 100; ++i) {
      if (i % 30 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      REQUIRE(items.next() == i);
    }
    CHECK_FALSE(items.next());
    CHECK_FALSE(items.next());
  }
}

TEST_CASE("a producer is ahead by the depth and no more") {
  std::atomic<int> made{0};
  Prefetch<int> items([&]() -> std::optional<int> { return made++; }, 3);
  for (int wait = 0; wait < 2000 && made < 3; ++wait) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(made == 3);
  CHECK(items.next() == 0);
  for (int wait = 0; wait < 2000 && made < 4; ++wait) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(made == 4);
}

TEST_CASE("a producer's exception arrives in its place, and again") {
  for (size_t depth : {0, 1, 3}) {
    int made = 0;
    Prefetch<std::string> items(
        [&]() -> std::optional<std::string> {
          if (made == 2) throw std::runtime_error("the file is gone");
          return std::to_string(made++);
        },
        depth);
    CHECK(items.next() == "0");
    CHECK(items.next() == "1");
    for (int i = 0; i < 2; ++i) CHECK_THROWS_WITH(items.next(), "the file is gone");
  }
}

TEST_CASE("prefetching stops when it is no longer wanted") {
  for (int round = 0; round < 20; ++round) {
    auto token = std::make_shared<int>(0);
    {
      Prefetch<std::shared_ptr<int>> items([token]() -> std::optional<std::shared_ptr<int>> { return token; }, 2);
      if (round % 2 == 0) items.next();
    }
    CHECK(token.use_count() == 1);
  }
  // Also while the producer is in the middle, and while an exception waits.
  {
    Prefetch<int> slow([]() -> std::optional<int> {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return 1;
    });
  }
  {
    Prefetch<int> failing([]() -> std::optional<int> { throw std::runtime_error("unseen"); });
  }
}

TEST_CASE("a loader's batches and position are the order's, however far ahead it is") {
  const std::vector<Indices> sequences{{1}, {2, 2}, {3, 3, 3}, {4}, {5, 5}};
  const BatchOrder order({.count = 5, .batch = 2, .seed = 3});
  const auto make = [&](const Indices& indices) { return pad(take(sequences, indices), 0); };
  const uint64_t seed = default_generator().seed(), offset = default_generator().offset();
  for (size_t depth : {0, 2}) {
    BatchLoader<Padded> loader(order, make, depth);
    BatchOrder plain = order;
    for (int i = 0; i < 8; ++i) {
      REQUIRE(equal(loader.next().ids, make(plain.next()).ids));
      REQUIRE(loader.order().to_json() == plain.to_json());
    }
    BatchOrder resumed(order.options());
    resumed.restore(loader.order().to_json());
    BatchLoader<Padded> second(resumed, make, depth);
    CHECK(equal(second.next().ids, make(plain.next()).ids));
  }
  CHECK((default_generator().seed() == seed && default_generator().offset() == offset));
  BatchLoader<int> failing(order, [](const Indices&) -> int { throw ValueError("no such example"); });
  CHECK_THROWS_AS(failing.next(), ValueError);
  CHECK(failing.order().batch() == 0);
}

}  // namespace batches_test
