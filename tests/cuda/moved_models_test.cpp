// Models that are moved to a GPU, and what goes along: what is no parameter, adapters, averages, an optimizer's state,
// a cache, and searches.
#include <catch2/catch.hpp>

#include <regard/layers/models/beam_search.hpp>
#include <regard/layers/models/generate.hpp>
#include <regard/regard.hpp>

namespace moved_models_test {

using namespace regard;
using Catch::Contains;

namespace {

layers::GPT small_gpt(layers::PositionKind positions) {
  manual_seed(3);
  layers::GPTOptions options;
  options.vocabulary = 11;
  options.context = 8;
  options.width = 8;
  options.heads = 2;
  options.layers = 2;
  options.positions = positions;
  layers::GPT model(options);
  model.eval();
  return model;
}

void check_close(const Tensor& there, const Tensor& here) { CHECK(allclose(there.to(cpu()), here, 1e-5, 1e-6)); }

Tensor some_ids() { return from_vector<int64_t>({1, 5, 2, 9, 0, 3}, {2, 3}); }

}  // namespace

TEST_CASE("a layer says on which device it is") {
  layers::GPT model = small_gpt(layers::PositionKind::learned);
  CHECK(model.device() == cpu());
  model.to(cuda());
  CHECK(model.device() == cuda());
  CHECK(model.blocks[1].attention.device() == cuda());
  CHECK(layers::Dropout(0.5).device() == cpu());  // it has nothing
}

TEST_CASE("slopes of ALiBi move with their layer, and follow one that is assigned across devices") {
  layers::GPT model = small_gpt(layers::PositionKind::alibi);
  const Tensor right = model(some_ids());
  layers::GPT other = small_gpt(layers::PositionKind::alibi);
  model.to(cuda());
  CHECK(model.blocks[0].attention.alibi.device() == cuda());
  check_close(model(some_ids().to(cuda())), right);

  other = model;  // values are written where the memory of `other` is
  CHECK(other.device() == cpu());
  check_close(other(some_ids()), right);
  model.to(cpu());
  CHECK(equal(model(some_ids()), right));
}

TEST_CASE("a model on a GPU writes the text and finds the translations that it does on the CPU") {
  for (auto positions : {layers::PositionKind::learned, layers::PositionKind::rotary, layers::PositionKind::alibi}) {
    layers::GPT model = small_gpt(positions);
    const auto written = [&](bool cache) {
      Generator generator(7);
      layers::GenerateOptions options;
      options.length = 12;
      options.generator = &generator;
      options.cache = cache;
      return layers::generate(model, {1, 2, 3}, options);
    };
    const std::vector<int64_t> right = written(true);
    model.to(cuda());
    CHECK(written(true) == right);
    CHECK(written(false) == right);
  }

  manual_seed(5);
  layers::EncoderDecoder model({.source_vocabulary = 9,
                                .target_vocabulary = 7,
                                .max_source = 6,
                                .max_target = 6,
                                .width = 8,
                                .heads = 2,
                                .encoder_layers = 1,
                                .decoder_layers = 2});
  model.eval();
  const Tensor source = from_vector<int64_t>({1, 4, 2, 8, 3, 3}, {2, 3});
  const Tensor mask = from_vector<bool>({true, true, true, true, true, false}, {2, 3});
  const layers::SearchOptions options = {.start = 1, .end = 2, .max_length = 6, .beam = 3, .n_best = 2};
  const auto found = [&](Device device) {
    return layers::beam_search(model.search_step(source.to(device), mask.to(device)), 2, options);
  };
  const auto right = found(cpu());
  model.to(cuda());
  const auto there = found(cuda());
  REQUIRE(there.size() == 2);
  for (size_t i = 0; i < 2; ++i)
    for (size_t j = 0; j < 2; ++j) {
      CHECK(there[i][j].tokens == right[i][j].tokens);
      CHECK(there[i][j].score == Approx(right[i][j].score).margin(1e-5));
    }
}

TEST_CASE("a cache is reordered by rows on either device, and refuses keys of another") {
  const Tensor keys = arange(24, DType::f32).view({2, 1, 3, 4}), values = keys * 2;
  const Tensor rows = from_vector<int64_t>({1, 1, 0});
  layers::KeyValueCache here;
  here.length = here.write(keys, values).first.size(2);
  here.reorder(rows);
  for (const Device device : {cpu(), cuda()}) {
    layers::KeyValueCache there;
    there.length = there.write(keys.to(cuda()), values.to(cuda())).first.size(2);
    there.reorder(rows.to(device));
    CHECK(there.key.narrow(2, 0, 3).to_vector<float>() == here.key.narrow(2, 0, 3).to_vector<float>());
    CHECK(there.value.narrow(2, 0, 3).to_vector<float>() == here.value.narrow(2, 0, 3).to_vector<float>());
    there.reorder(from_vector<int64_t>({0, 1, 2}).to(device));  // nothing moves
    CHECK(there.key.narrow(2, 0, 3).to_vector<float>() == here.key.narrow(2, 0, 3).to_vector<float>());
    const Tensor three = ones({3, 1, 1, 4});
    CHECK_THROWS_WITH(there.write(three, three), Contains("cuda:0") && Contains("cpu") && Contains("clear()"));
    CHECK(there.length == 3);
  }
}

TEST_CASE("adapters are made, loaded and merged where their model is") {
  const Tensor x = from_vector<float>({1, -2, 0.5F, 3, 0, -1}, {2, 3});
  StateDict adapters;
  Tensor right;
  for (const Device device : {cpu(), cuda()}) {
    manual_seed(2);
    layers::Sequential model(layers::Linear(3, 4), layers::Linear(4, 2));
    model.to(device);
    layers::add_lora(model, {.rank = 2, .alpha = 3, .names = {"*"}});
    CHECK(layers::lora_parameters(model).front().second.device() == device);
    if (device == cpu()) {
      for (auto& [name, tensor] : layers::lora_state_dict(model))
        adapters.emplace(name, tensor.numel() > 1 ? ones(tensor.shape()) * 0.25 : tensor.clone());
    }
    layers::load_lora(model, adapters);
    const Tensor y = model(x.to(device));
    layers::merge_lora(model);
    check_close(model(x.to(device)), y.to(cpu()).detach());
    if (device == cpu()) right = y.detach();
    check_close(y, right);
  }
}

TEST_CASE("averages and an optimizer's state are loaded where the parameters are, and say where they are not") {
  const auto trained = [](layers::Linear& linear, optim::AdamW& adam, optim::ExponentialMovingAverage& average) {
    const Device device = linear.device();
    linear(ones({1, 3}, device)).sum().backward();
    adam.step();
    adam.zero_grad();
    average.update();
  };
  manual_seed(4);
  layers::Linear first(3, 2);
  optim::AdamW adam(first.parameters(), {.lr = 0.1});
  optim::ExponentialMovingAverage average(first, {.decay = 0.5});
  trained(first, adam, average);

  layers::Linear second(first);
  second.to(cuda());
  optim::AdamW other(second.parameters(), {.lr = 0.1});
  optim::ExponentialMovingAverage other_average(second, {.decay = 0.5});
  other.load_state_dict(adam.state_dict());
  other_average.load_state_dict(average.state_dict());
  for (const auto& [name, tensor] : other.state_dict())
    if (name.ends_with("exp_avg") || name.ends_with("exp_avg_sq")) CHECK(tensor.device() == cuda());
  trained(first, adam, average);
  trained(second, other, other_average);
  check_close(second.weight, first.weight.tensor().detach());
  for (const auto& [name, tensor] : average.averages()) check_close(other_average.averages().at(name), tensor);

  // Moved on: each says so, and the optimizer's state can follow.
  second.to(cpu());
  CHECK_THROWS_WITH(trained(second, other, other_average),
                    Contains("AdamW") && Contains("cuda:0") && Contains("load_state_dict"));
  CHECK_THROWS_WITH(other_average.update(), Contains("its average on cuda:0"));
  other.load_state_dict(other.state_dict());
  trained(first, adam, average);
  CHECK_THROWS_AS(trained(second, other, other_average), DeviceError);  // the average's
  second.zero_grad();
}

TEST_CASE("averages that are applied while their model moves give it its own values back") {
  layers::Linear model(3, 2);
  const Tensor own = model.weight.detach().clone();
  optim::ExponentialMovingAverage ema(model, {.decay = 0.5});
  model.weight = own + 1;
  ema.update();
  {
    auto applied = ema.apply();
    model.to(cuda());
  }
  CHECK(model.weight.device() == cuda());
  CHECK(equal(model.weight.tensor().to(cpu()), own + 1));
}

TEST_CASE("initialisers that draw on the CPU fill tensors of a GPU") {
  Generator one(1), other(1);
  const Tensor here = empty({50}), there = empty({50}, cuda());
  layers::init::trunc_normal_(here, 0, 1, -1, 2, one);
  layers::init::trunc_normal_(there, 0, 1, -1, 2, other);
  CHECK(there.to_vector<float>() == here.to_vector<float>());
}

}  // namespace moved_models_test
