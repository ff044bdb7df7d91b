#include <regard/optim/muon.hpp>

#include <algorithm>
#include <cmath>
#include <set>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/cuda_graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/layers/names.hpp>

namespace regard::optim {

namespace {

void check_options(const char* name, const MuonOptions& o) {
  check<ValueError>(o.momentum >= 0 && o.momentum < 1, name, "momentum ", o.momentum, " is outside [0, 1)");
  check<ValueError>(o.weight_decay >= 0 && o.eps >= 0, name, "weight_decay ", o.weight_decay, " and eps ", o.eps,
                    " must not be negative");
  check<ValueError>(o.iterations > 0 && o.iterations < 100, name, "iterations ", o.iterations, " are outside [1, 99]");
}

void check_matrices(const char* name, const Tensors& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    check_defined(name, "parameters", parameters[i]);
    check<ShapeError>(parameters[i].dim() == 2, name, "parameter ", i, " of shape ", parameters[i].shape(),
                      " is no matrix: Muon steps matrices alone; give the rest to AdamW, as MuonWithAdamW(model) does");
  }
}

// Close to the orthogonal matrix nearest to x: its singular values come near 1, its singular vectors stay.
Tensor orthogonalised(const Tensor& x, const MuonOptions& o) {
  const bool tall = x.size(0) > x.size(1);
  Tensor y = tall ? x.t() : x;  // [n, m], n <= m
  // The norm stays where x is: nothing waits for a GPU.
  const Tensor squares = empty({}, TensorOptions(DType::f64, x.device())), dense = x.contiguous();
  kernels(x).norm_squared(squares, {&dense, 1});
  y = y * reciprocal(clamp(sqrt(squares), o.eps)).to(y.dtype());
  const auto [a, b, c] = o.coefficients;
  for (int64_t i = 0; i < o.iterations; ++i) {
    const Tensor gram = matmul(y, y.t());                     // [n, n]
    const Tensor factor = gram * b + matmul(gram, gram) * c;  // [n, n]
    y = y * a + matmul(factor, y);
  }
  return tall ? y.t() : y;
}

double shape_factor(MuonScale scale, const Tensor& x) {
  const auto rows = static_cast<double>(x.size(0)), columns = static_cast<double>(x.size(1));
  switch (scale) {
    case MuonScale::match_rms_adamw:
      return 0.2 * std::sqrt(std::max(rows, columns));
    case MuonScale::spectral_unclamped:
      return std::sqrt(rows / columns);
    default:
      return std::sqrt(std::max(1.0, rows / columns));
  }
}

void muon_update(const MuonOptions& o, const std::function<double()>& lr, const Tensor& parameter, const Tensor& grad,
                 Tensor& momentum) {
  if (!momentum.defined()) momentum = zeros_like(parameter);
  if (parameter.numel() == 0) return;
  momentum.mul_(o.momentum).add_(grad, 1 - o.momentum);
  const Tensor direction = o.nesterov ? grad * (1 - o.momentum) + momentum * o.momentum : momentum;
  const Tensor values = parameter.detach();
  const double factor = shape_factor(o.scale, parameter);
  if (parameter.device() == cpu()) {
    values.mul_(1 - lr() * o.weight_decay);
    values.add_(orthogonalised(direction, o), -lr() * factor);
  } else {  // with numbers that a replay of a captured step finds anew
    const TensorOptions options(parameter.dtype(), parameter.device());
    values.mul_(detail::number_of_step([lr, o] { return 1 - lr() * o.weight_decay; }, options));
    values.sub_(orthogonalised(direction, o) * detail::number_of_step([lr, factor] { return lr() * factor; }, options));
  }
}

}  // namespace

Muon::Muon(const std::vector<ParameterGroup<MuonOptions>>& groups) : Optimizer("Muon", {"momentum_buffer"}) {
  for (const auto& group : groups) {
    check_options(name(), group.options);
    check_matrices(name(), group.parameters);
    add_group(group.parameters, group.options.lr);
    options_.push_back(group.options);
  }
  check<ValueError>(!options_.empty(), name(), "no parameter groups are given");
}
Muon::Muon(const Tensors& parameters, const MuonOptions& options)
    : Muon(std::vector<ParameterGroup<MuonOptions>>{{parameters, options}}) {}

void Muon::update(size_t group, std::span<const Update> list) {
  for (const auto& [parameter, grad, state] : list)
    muon_update(options_[group], lr_of(group), parameter, grad, state.slots[0]);
}

MuonWithAdamW::MuonWithAdamW(const std::vector<ParameterGroup<MuonOptions>>& muon,
                             const std::vector<ParameterGroup<AdamWOptions>>& adamw)
    : Optimizer("MuonWithAdamW", {"momentum_buffer", "exp_avg", "exp_avg_sq"}) {
  check<ValueError>(!muon.empty() || !adamw.empty(), name(), "no parameter groups are given");
  for (const auto& group : muon) {
    check_options(name(), group.options);
    check_matrices(name(), group.parameters);
    add_group(group.parameters, group.options.lr);
    muon_.push_back(group.options);
  }
  for (const auto& group : adamw) {
    adam_detail::check_options(name(), group.options);
    add_group(group.parameters, group.options.lr);
    adamw_.push_back(group.options);
  }
}

MuonWithAdamW::Parts MuonWithAdamW::parts_of(const layers::Layer& model, const MuonWithAdamWOptions& options) {
  std::set<const TensorImpl*> embeddings;
  for (const auto& [name, table] : embedding_parameters(model)) embeddings.insert(table.impl());
  const NamedParameters parameters = model.named_parameters();
  for (const std::string& pattern : options.adamw_names) {
    const bool fits = std::any_of(parameters.begin(), parameters.end(), [&](const auto& entry) {
      return layers::name_matches(pattern, entry.first) || layers::name_matches(pattern + ".*", entry.first);
    });
    check<ValueError>(fits, "MuonWithAdamW", "the pattern '", pattern, "' of adamw_names fits no parameter");
  }
  Tensors matrices, decayed, rest;
  for (const auto& [full_name, parameter] : parameters) {
    const std::string& name = full_name;
    const bool named =
        std::any_of(options.adamw_names.begin(), options.adamw_names.end(), [&](const std::string& pattern) {
          return layers::name_matches(pattern, name) || layers::name_matches(pattern + ".*", name);
        });
    if (parameter.dim() < 2 || embeddings.contains(parameter.impl()))
      rest.push_back(parameter);
    else if (parameter.dim() > 2 || named)
      decayed.push_back(parameter);
    else
      matrices.push_back(parameter);
  }
  Parts parts;
  if (!matrices.empty()) parts.muon.push_back({std::move(matrices), options.muon});
  if (!decayed.empty()) parts.adamw.push_back({std::move(decayed), options.adamw});
  if (!rest.empty()) {
    parts.adamw.push_back({std::move(rest), options.adamw});
    parts.adamw.back().options.weight_decay = 0;
  }
  return parts;
}

MuonWithAdamW::MuonWithAdamW(const layers::Layer& model, const MuonWithAdamWOptions& options)
    : MuonWithAdamW(parts_of(model, options)) {}

void MuonWithAdamW::update(size_t group, std::span<const Update> list) {
  if (group >= muon_.size()) return adam_detail::adamw_update(adamw_[group - muon_.size()], lr_of(group), list, 1);
  for (const auto& [parameter, grad, state] : list)
    muon_update(muon_[group], lr_of(group), parameter, grad, state.slots[0]);
}

std::optional<Shape> MuonWithAdamW::slot_shape(size_t group, const Tensor& parameter, size_t slot) const {
  if ((group < muon_.size()) != (slot == 0)) return std::nullopt;
  return parameter.shape();
}

}  // namespace regard::optim
