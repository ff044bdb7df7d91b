#include <regard/optim/ema.hpp>

#include <algorithm>
#include <set>

#include <regard/autograd/cuda_graph.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard::optim {

namespace {
const char* const kOp = "ExponentialMovingAverage";
}  // namespace

ExponentialMovingAverage::ExponentialMovingAverage(const layers::Layer& model, const EmaOptions& options)
    : options_(options) {
  check<ValueError>(options.decay >= 0 && options.decay < 1, kOp, "decay ", options.decay, " is outside [0, 1)");
  NoGrad no_grad;
  for (const auto& [name, parameter] : model.named_parameters())
    entries_.push_back({name, parameter, parameter.detach().clone()});
  if (options.buffers)
    for (const auto& [name, buffer] : model.named_buffers())
      if (is_floating(buffer.dtype())) entries_.push_back({name, buffer, buffer.detach().clone()});
  check<ValueError>(!entries_.empty(), kOp, model.describe(), " has no parameters");
}

double ExponentialMovingAverage::decay_at(int64_t n) const {
  if (!options_.warmup) return options_.decay;
  return std::min(options_.decay, (1 + static_cast<double>(n)) / (10 + static_cast<double>(n)));
}

void ExponentialMovingAverage::check_fits(const char* op) const {
  for (const Entry& entry : entries_) {
    check<DeviceError>(entry.source.device() == entry.average.device(), op, "'", entry.name, "' is on ",
                       entry.source.device(), " now, its average on ", entry.average.device(),
                       ": make a new average after to()");
    check<DTypeError>(entry.source.dtype() == entry.average.dtype(), op, "'", entry.name, "' is ", entry.source.dtype(),
                      " now, its average ", entry.average.dtype(), ": make a new average after to()");
  }
}

void ExponentialMovingAverage::update() {
  check<GraphError>(own_.empty(), kOp, "update() while the averages are applied: restore the model's values first");
  check_fits(kOp);
  check<GraphError>(!cuda_is_capturing(), kOp,
                    "update() in a capture (CudaGraph), and replays would not count it: call it after each of them");
  NoGrad no_grad;
  const double share = 1 - decay_at(updates_);
  for (const Entry& entry : entries_) entry.average.add_(entry.source.detach() - entry.average, share);
  ++updates_;
}

ExponentialMovingAverage::Applied ExponentialMovingAverage::apply() {
  check<GraphError>(own_.empty(), kOp, "apply() while the averages are applied already");
  check_fits(kOp);
  NoGrad no_grad;
  std::vector<Tensor> own;  // all memory is taken before anything is written
  own.reserve(entries_.size());
  for (const Entry& entry : entries_) own.push_back(entry.source.detach().clone());
  for (const Entry& entry : entries_) entry.source.copy_(entry.average);
  own_ = std::move(own);
  return Applied(this);
}

void ExponentialMovingAverage::restore() noexcept {
  NoGrad no_grad;
  // The model may have moved since.
  for (size_t i = 0; i < entries_.size(); ++i) entries_[i].source.copy_(own_[i].to(entries_[i].source.device()));
  own_.clear();
}

StateDict ExponentialMovingAverage::averages() const {
  NoGrad no_grad;
  StateDict state;
  for (const Entry& entry : entries_) state.emplace(entry.name, entry.average.clone());
  return state;
}

void ExponentialMovingAverage::copy_to(layers::Layer& model) const {
  StateDict state = averages();
  for (const auto& [name, parameter] : model.named_parameters())
    check<ValueError>(state.contains(name), kOp, "copy_to: the model's '", name, "' has no average");
  StateDict own = model.state_dict();
  for (const auto& [name, average] : state) {
    auto found = own.find(name);
    check<ValueError>(found != own.end(), kOp, "copy_to: the model has no '", name, "'");
    check<ValueError>(found->second.shape() == average.shape(), kOp, "copy_to: '", name, "' has shape ",
                      found->second.shape(), " in the model, its average ", average.shape());
  }
  model.load_state_dict(state, {.strict = false});
}

StateDict ExponentialMovingAverage::state_dict() const {
  NoGrad no_grad;
  StateDict state;
  for (const Entry& entry : entries_) state.emplace("average." + entry.name, entry.average.clone());
  state.emplace("updates", scalar_tensor(updates_));
  return state;
}

void ExponentialMovingAverage::load_state_dict(const StateDict& state) {
  const char* op = "ExponentialMovingAverage.load_state_dict";
  auto updates = state.find("updates");
  check<ValueError>(updates != state.end() && updates->second.defined() && updates->second.numel() == 1, op,
                    "'updates', a single number, is missing");
  const auto count = updates->second.item<int64_t>();
  check<ValueError>(count >= 0, op, "'updates' is ", count, ": it must not be negative");
  for (const Entry& entry : entries_) {
    const std::string name = "average." + entry.name;
    auto found = state.find(name);
    check<ValueError>(found != state.end() && found->second.defined(), op, "'", name,
                      "' is missing: the state is of another model");
    check<ValueError>(found->second.shape() == entry.average.shape() && is_floating(found->second.dtype()), op, "'",
                      name, "' has shape ", found->second.shape(), " and dtype ", found->second.dtype(),
                      "; the model has ", entry.average.shape(), ", ", entry.average.dtype());
  }
  if (state.size() != entries_.size() + 1) {
    std::set<std::string> known{"updates"};
    for (const Entry& entry : entries_) known.insert("average." + entry.name);
    for (const auto& [name, tensor] : state)
      check<ValueError>(known.contains(name), op, "'", name, "' is unexpected: the state is of another model");
  }
  NoGrad no_grad;
  for (const Entry& entry : entries_)
    entry.average.copy_(state.at("average." + entry.name).detach().to(entry.average.device()));
  updates_ = count;
}

}  // namespace regard::optim
