// Optimizers against PyTorch's over twenty steps, and schedules against their closed forms and PyTorch's.
#include <regard/tests/reference/reference.hpp>

#include <memory>

#include <regard/autograd/graph.hpp>
#include <regard/optim/adafactor.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/lion.hpp>
#include <regard/optim/muon.hpp>
#include <regard/optim/schedule.hpp>
#include <regard/optim/sgd.hpp>

namespace reference_optim_test {

using namespace regard;  // NOLINT(google-build-using-namespace)
using reference::Json;

namespace {

template <class Options>
void read_adam(const Json& json, Options& options) {
  if (json.contains("betas")) options.betas = {json["betas"][0].get<double>(), json["betas"][1].get<double>()};
  options.eps = json.value("eps", options.eps);
}
void read(const Json& json, optim::AdamOptions& options) { read_adam(json, options); }
void read(const Json& json, optim::AdamWOptions& options) { read_adam(json, options); }
void read(const Json& json, optim::SGDOptions& options) {
  options.momentum = json.value("momentum", options.momentum);
  options.dampening = json.value("dampening", options.dampening);
  options.nesterov = json.value("nesterov", options.nesterov);
}

void read(const Json& json, optim::LionOptions& options) {
  if (json.contains("betas")) options.betas = {json["betas"][0].get<double>(), json["betas"][1].get<double>()};
}
void read(const Json& json, optim::AdafactorOptions& options) {
  options.beta2_decay = json.value("beta2_decay", options.beta2_decay);
  options.d = json.value("d", options.d);
  if (!json.contains("eps")) return;
  options.eps1 = json["eps"][0].get<double>();
  options.eps2 = json["eps"][1].get<double>();
}
void read(const Json& json, optim::MuonOptions& options) {
  options.momentum = json.value("momentum", options.momentum);
  options.nesterov = json.value("nesterov", options.nesterov);
  options.iterations = json.value("ns_steps", options.iterations);
  if (json.contains("ns_coefficients"))
    for (size_t i = 0; i < 3; ++i) options.coefficients[i] = json["ns_coefficients"][i].get<double>();
  const std::string scale = json.value("adjust_lr_fn", std::string("original"));
  if (scale == "match_rms_adamw") options.scale = optim::MuonScale::match_rms_adamw;
  if (scale == "spectral_unclamped") options.scale = optim::MuonScale::spectral_unclamped;
}

// The case's options with the group's own over them.
template <class Options>
Options options_of(const Json& json, const Json& group) {
  Json merged = json.at("options");
  merged.update(group);
  Options options;
  options.lr = merged.at("lr").get<double>();
  options.weight_decay = merged.value("weight_decay", options.weight_decay);
  read(merged, options);
  return options;
}

template <class Optimizer, class Options>
std::unique_ptr<optim::Optimizer> make(const Json& json, const std::vector<Tensors>& parameters) {
  const Json& groups = json.at("groups");
  if (groups.size() == 1) return std::make_unique<Optimizer>(parameters.at(0), options_of<Options>(json, groups[0]));
  std::vector<optim::ParameterGroup<Options>> list;
  for (size_t i = 0; i < groups.size(); ++i) list.push_back({parameters.at(i), options_of<Options>(json, groups[i])});
  return std::make_unique<Optimizer>(list);
}

std::unique_ptr<optim::Optimizer> make(const Json& json, const std::vector<Tensors>& parameters) {
  std::string kind = json.at("optimizer").get<std::string>();
  if (kind == "SGD") return make<optim::SGD, optim::SGDOptions>(json, parameters);
  if (kind == "Adam") return make<optim::Adam, optim::AdamOptions>(json, parameters);
  if (kind == "AdamW") return make<optim::AdamW, optim::AdamWOptions>(json, parameters);
  if (kind == "Lion") return make<optim::Lion, optim::LionOptions>(json, parameters);
  if (kind == "Adafactor") return make<optim::Adafactor, optim::AdafactorOptions>(json, parameters);
  if (kind == "Muon") return make<optim::Muon, optim::MuonOptions>(json, parameters);
  throw std::runtime_error("no optimizer " + kind);
}

void run_optimizer(const Json& json, DType floating) {
  std::vector<Tensors> groups;
  Tensors flat;
  for (const Json& group : json.at("parameters")) {
    groups.emplace_back();
    for (const Json& parameter : group) {
      flat.push_back(reference::tensor(parameter, floating).set_requires_grad());
      groups.back().push_back(flat.back());
    }
  }
  auto optimizer = make(json, groups);
  const Json& gradients = json.at("gradients");
  const Json& values = json.at("values");
  REQUIRE(gradients.size() == 20);
  for (size_t step = 0; step < gradients.size(); ++step) {
    INFO("step " << step);
    optimizer->zero_grad();
    for (size_t i = 0; i < flat.size(); ++i) {
      // The gradient of sum(p * g) is g.
      Tensor g = from_vector<double>(reference::numbers(gradients[step].at(i)), flat[i].shape()).to(floating);
      sum(flat[i] * g).backward();
    }
    optimizer->step();
    for (size_t i = 0; i < flat.size(); ++i) {
      Json want = {{"shape", flat[i].shape().to_vector()}, {"dtype", "f64"}, {"data", values[step].at(i)}};
      std::string wrong = reference::difference(flat[i], want, floating, {floating == DType::f64 ? 1e-12 : 1e-5});
      INFO("parameter " << i << " " << wrong);
      CHECK(wrong.empty());
    }
  }
}

std::unique_ptr<optim::Schedule> make_schedule(const Json& json, optim::Optimizer& optimizer) {
  std::string kind = json.at("schedule").get<std::string>();
  const Json& o = json.at("options");
  auto steps = [&](const char* name) { return o.at(name).get<int64_t>(); };
  if (kind == "constant") return std::make_unique<optim::Constant>(optimizer);
  if (kind == "linear_warmup")
    return std::make_unique<optim::LinearWarmup>(optimizer,
                                                 optim::LinearWarmupOptions{.warmup_steps = steps("warmup_steps")});
  if (kind == "cosine")
    return std::make_unique<optim::Cosine>(
        optimizer, optim::CosineOptions{.total_steps = steps("total_steps"), .min_lr = o.at("min_lr").get<double>()});
  if (kind == "step")
    return std::make_unique<optim::Step>(
        optimizer, optim::StepOptions{.step_size = steps("step_size"), .gamma = o.at("gamma").get<double>()});
  if (kind == "warmup_cosine")
    return std::make_unique<optim::WarmupCosine>(optimizer,
                                                 optim::WarmupCosineOptions{.warmup_steps = steps("warmup_steps"),
                                                                            .total_steps = steps("total_steps"),
                                                                            .min_lr = o.at("min_lr").get<double>()});
  throw std::runtime_error("no schedule " + kind);
}

}  // namespace

TEST_CASE("PyTorch's values: optimizers over twenty steps") {
  for (const Json& json : reference::load("optimizers")) {
    for (DType floating : {DType::f64, DType::f32}) {
      INFO(json.at("optimizer") << ", " << json.at("name") << (floating == DType::f64 ? ", f64" : ", f32"));
      try {
        run_optimizer(json, floating);
      } catch (const std::exception& error) {
        FAIL_CHECK("threw: " << error.what());
      }
    }
  }
}

TEST_CASE("PyTorch's values: learning-rate schedules") {
  for (const Json& json : reference::load("schedules")) {
    INFO(json.at("schedule") << ", " << json.at("name"));
    double lr = json.at("lr").get<double>();
    Tensor parameter = zeros({1}, DType::f64).set_requires_grad();
    Tensor other = zeros({1}, DType::f64).set_requires_grad();
    optim::SGDOptions options;
    options.lr = lr;
    optim::SGDOptions doubled;
    doubled.lr = 2 * lr;
    optim::SGD optimizer({{{parameter}, options}, {{other}, doubled}});
    auto schedule = make_schedule(json, optimizer);
    std::vector<double> rates = reference::numbers(json.at("rates"));
    double minimum = json.at("options").value("min_lr", 0.0);
    for (size_t step = 0; step < rates.size(); ++step) {
      INFO("step " << step);
      CHECK(optimizer.lr(0) == Approx(rates[step]).epsilon(1e-12).margin(1e-15));
      // Each group follows its own first rate: all but the minimum scales with it.
      if (minimum == 0) CHECK(optimizer.lr(1) == Approx(2 * rates[step]).epsilon(1e-12).margin(1e-15));
      CHECK(schedule->current_step() == static_cast<int64_t>(step));
      CHECK(schedule->lr_at(static_cast<int64_t>(step), lr) == Approx(rates[step]).epsilon(1e-12).margin(1e-15));
      optimizer.step();
      schedule->step();
    }
  }
}

}  // namespace reference_optim_test
