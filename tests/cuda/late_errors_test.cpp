// What is wrong with a tensor's entries is found by the GPU while the program goes on, and thrown when it next waits.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <regard/autograd/backend/entry_check.hpp>
#include <regard/regard.hpp>

namespace late_errors_test {

using namespace regard;
using Catch::Matchers::Contains;

struct Case {
  const char* name;
  std::function<Tensor(Device)> run;
};

Tensor list(Device device, const std::vector<int64_t>& values) {
  return from_vector<int64_t>(values, {static_cast<int64_t>(values.size())}).to(device);
}
Tensor numbers(Device device, const std::vector<float>& values) {
  return from_vector<float>(values, {static_cast<int64_t>(values.size())}).to(device);
}
Tensor grid(Device device) { return arange(12, DType::f32).view({4, 3}).to(device); }

// Ops with entries that are not what they must be.
std::vector<Case> index_cases() {
  return {{"embedding",
           [](Device d) {
             return embedding(list(d, {0, 3, 4, -1}).view({2, 2}), grid(d));
           }},
          {"negative", [](Device d) { return embedding(list(d, {-1}), grid(d)); }},
          {"far", [](Device d) { return embedding(list(d, {INT64_MAX}), grid(d)); }},
          {"gather",
           [](Device d) {
             return gather(grid(d), 1, list(d, {0, 1, 2, 3}).view({2, 2}));
           }},
          {"index_select",
           [](Device d) {
             return index_select(grid(d).t(), 1, list(d, {INT64_MIN, 1}));
           }},
          {"index_add",
           [](Device d) {
             return index_add(grid(d), 0, list(d, {3, 4}), ones({2, 3}, d));
           }},
          {"scatter_add",
           [](Device d) {
             return scatter_add(grid(d), 0, list(d, {0, 1, 9}).view({1, 3}), ones({1, 3}, d));
           }},
          {"one_hot",
           [](Device d) {
             return one_hot(list(d, {2, 5}), 5);
           }},
          {"cross_entropy",
           [](Device d) {
             return cross_entropy(grid(d), list(d, {-100, 0, 3, 1}), {.ignore_index = -100});
           }},
          {"cross_entropy of none",
           [](Device d) {
             return cross_entropy(grid(d), list(d, {0, 0, 0, -1}));
           }},
          {"nll_loss",
           [](Device d) {
             return nll_loss(grid(d), list(d, {0, 1, 2, 77}), {.ignore_index = 1});
           }},
          {"many", [](Device d) {
             Tensor ids = zeros({3000}, {DType::i64, d});
             ids.select(0, 2999).fill_(7);
             ids.select(0, 1234).fill_(-5);
             return embedding(ids.view({30, 100}), grid(d)).sum();
           }}};
}
std::vector<Case> value_cases() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  return {{"bernoulli",
           [](Device d) {
             return bernoulli(numbers(d, {0, 1, 1.5F}));
           }},
          {"bernoulli of NaN",
           [nan](Device d) {
             return bernoulli(numbers(d, {0, nan}));
           }},
          {"pow",
           [](Device d) {
             return pow(list(d, {1, 2}), list(d, {3, -2}));
           }},
          {"alibi", [](Device d) {
             const Tensor x = ones({1, 2, 3, 4}, d);
             return scaled_dot_product_attention(x, x, x, {.alibi = numbers(d, {1, INFINITY})});
           }}};
}

template <class E>
std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

template <class E>
void check_late(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    INFO(one.name);
    const std::string here = message_of<E>([&] { one.run(cpu()); });
    CHECK(here != "nothing was thrown");
    Tensor there;
    REQUIRE_NOTHROW(there = one.run(cuda()));
    CHECK(message_of<E>([&] { there.sum().to_vector<double>(); }) == here);
    CHECK_NOTHROW(synchronize(cuda()));  // once
    one.run(cuda());
    CHECK(message_of<E>([&] { synchronize(cuda()); }) == here);
    set_cuda_synchronous(true);
    CHECK(message_of<E>([&] { one.run(cuda()); }) == here);
    set_cuda_synchronous(false);
    CHECK(embedding(list(cuda(), {1}), grid(cuda())).to_vector<float>() == std::vector<float>{3, 4, 5});
  }
}

TEST_CASE("late errors: those of the CPU, word for word, when the GPU is waited for") {
  check_late<IndexError>(index_cases());
  check_late<ValueError>(value_cases());
}

TEST_CASE("late errors: the first of several is thrown, and the layer is named") {
  layers::Embedding first(4, 2), second(9, 2);
  layers::Sequential model(first);
  model.to(cuda());
  second.to(cuda());
  const Tensor good = list(cuda(), {0, 3}), bad = list(cuda(), {0, 20});
  model(good);
  model(bad);
  second(bad);
  CHECK_THROWS_WITH(synchronize(cuda()), Contains("embedding: id 20 at position [1] is outside [0, 4)") &&
                                             Contains("weight has 4 rows") && Contains("(in "));
  CHECK_NOTHROW(synchronize(cuda()));
  second(bad);
  CHECK_THROWS_WITH(second(good).to(cpu()), Contains("outside [0, 9)"));
}

TEST_CASE("late errors: what is not there is neither read nor written") {
  // On the host's runtime memory out of bounds would end the program.
  for (int64_t count : {3, 40, 2000}) {
    Tensor ids = randint(0, 4, {count});
    ids.select(0, 1).fill_(int64_t{1} << 40);
    ids.select(0, count - 1).fill_(-(int64_t{1} << 40));
    ids = ids.to(cuda());
    const Tensor table = randn({4, 5}, cuda()).set_requires_grad();
    embedding(ids, table).sum().backward();
    const Tensor rows = randn({count, 4}, cuda()).set_requires_grad();
    cross_entropy(rows, ids).backward();
    gather(table, 1, ids.view({1, count})).sum().backward();
    index_add(table, 0, ids, randn({count, 5}, cuda())).sum().backward();
    scatter_add(table, 1, ids.view({1, count}), randn({1, count}, cuda())).sum().backward();
    CHECK_THROWS_AS(synchronize(cuda()), IndexError);
  }
}

TEST_CASE("late errors: a mask of zeros and ones is warned of when the GPU is waited for, once") {
  std::vector<std::string> warnings;
  bool throws = true;
  const WarningHandler former = set_warning_handler([&](const std::string& text) {
    warnings.push_back(text);
    if (std::exchange(throws, false)) throw std::runtime_error("of the handler");
  });
  const Tensor x = ones({1, 1, 2, 4}, cuda()), mask = eye(2).to(cuda());
  {
    CudaGraph graph;  // is not looked at: each replay would
    graph.capture([&] { scaled_dot_product_attention(x, x, x, {.mask = mask}); });
    graph.replay();
    synchronize(cuda());
    CHECK(warnings.empty());
  }
  embedding(list(cuda(), {9}), grid(cuda()));
  scaled_dot_product_attention(x, x, x, {.mask = mask});
  CHECK_THROWS_AS(synchronize(cuda()), IndexError);  // beside what the handler threw
  CHECK(warnings.size() == 1);
  for (int i = 0; i < 3; ++i) {
    scaled_dot_product_attention(x, x, x, {.mask = mask});
    synchronize(cuda());
  }
  scaled_dot_product_attention(x, x, x, {.mask = mask * 2});
  synchronize(cuda());
  const Tensor here = x.to(cpu());
  scaled_dot_product_attention(here, here, here, {.mask = eye(2)});
  set_warning_handler(former);
  CHECK(warnings.size() == 1);
  for (const std::string& text : warnings) CHECK_THAT(text, Contains("holds only 0 and 1"));
}

TEST_CASE("late errors: what a copy to the CPU has written counts as written, though it throws") {
  const Tensor here = zeros({1, 3});
  const uint32_t before = here.version();
  const Tensor rows = embedding(list(cuda(), {9}), grid(cuda()));
  CHECK_THROWS_AS(here.copy_(rows), IndexError);
  CHECK(here.version() != before);
}

TEST_CASE("late errors: of very many checks the last are known, and those of graphs") {
  const Tensor ids = list(cuda(), {0, 1}), table = grid(cuda());
  Tensor rows;
  CudaGraph graph;
  graph.capture([&] { rows = embedding(ids, table); });
  embedding(list(cuda(), {9}), table);
  for (int i = 0; i < 4200; ++i) check_entries_later(ids, {.low = 0, .high = 3, .before = std::to_string(i)});
  CHECK_THROWS_WITH(synchronize(cuda()), Contains("set_cuda_synchronous(true) tells"));
  ids.copy_(from_vector<int64_t>({0, 8}, {2}));
  graph.replay();
  CHECK_THROWS_WITH(synchronize(cuda()), Contains("embedding: id 8 at position [1] is outside [0, 4)"));
}

TEST_CASE("late errors: the mean of a loss counts what is not ignored, as on the CPU") {
  manual_seed(5);
  const Tensor logits = randn({6, 4}), weight = from_vector<float>({1, 0, 2, 0.5F}, {4});
  for (const std::vector<int64_t>& given :
       {std::vector<int64_t>{0, 1, 2, 3, 0, 1}, {9, 1, 9, 3, 0, 1}, {9, 9, 9, 9, 9, 9}, {1, 1, 1, 1, 1, 1}})
    for (const Tensor& w : {Tensor(), weight})
      for (double smoothing : {0.0, 0.1}) {
        Tensor losses[2], grads[2];
        for (int i = 0; i < 2; ++i) {
          const Device device = i == 0 ? cpu() : cuda();
          const Tensor x = logits.to(device).detach().set_requires_grad();
          const Tensor weights = w.defined() ? w.to(device) : w;
          losses[i] = cross_entropy(x, list(device, given),
                                    {.weight = weights, .ignore_index = 9, .label_smoothing = smoothing});
          losses[i].backward();
          grads[i] = x.grad().to(cpu());
        }
        INFO(given[0] << " " << given[1] << " " << w.defined() << " " << smoothing);
        CHECK(losses[1].item<float>() == Approx(losses[0].item<float>()).margin(1e-6));
        CHECK(allclose(grads[1], grads[0], 1e-5, 1e-7));
      }
}

}  // namespace late_errors_test
