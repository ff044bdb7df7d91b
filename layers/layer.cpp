#include <regard/layers/layer.hpp>

#include <cxxabi.h>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <set>
#include <typeinfo>

#include <regard/autograd/backend/cuda_backend.hpp>

namespace regard::layers {

// ---- Walking

void Walk::run(const Layer& root) {
  root_path_ = root.path_;
  if (on_layer) on_layer("", const_cast<Layer&>(root));
  // members() lists and changes nothing, but hands out references that can be written to.
  visit(const_cast<Layer&>(root));
}

void Walk::visit(Layer& layer) {
  Members members(*this);
  ++depth_;
  layer.members(members);
  --depth_;
}

void Walk::check_name(const std::string& path, const std::string& name) {
  check<ValueError>(!name.empty() && name.find('.') == std::string::npos, "members", "the name '", name,
                    "' of a member of '", prefix_, "': it must not be empty and must hold no dot");
  check<ValueError>(std::find(seen_.begin(), seen_.end(), path) == seen_.end(), "members", "two members are named '",
                    path, "'");
  seen_.push_back(path);
}

void Members::operator()(const std::string& name, Parameter& parameter) {
  if (!walk_.names) {
    if (walk_.on_parameter && parameter.defined()) walk_.on_parameter({}, parameter);
    return;
  }
  std::string path = walk_.path(name);
  walk_.check_name(path, name);
  if (walk_.on_parameter && parameter.defined()) walk_.on_parameter(path, parameter);
}

void Members::operator()(const std::string& name, Buffer& buffer) {
  if (!walk_.names) {
    if (walk_.on_buffer && buffer.defined()) walk_.on_buffer({}, buffer);
    return;
  }
  std::string path = walk_.path(name);
  walk_.check_name(path, name);
  if (walk_.on_buffer && buffer.defined()) walk_.on_buffer(path, buffer);
}

void Members::operator()(const std::string& name, Layer& layer) {
  if (!walk_.names) {
    if (walk_.on_layer) walk_.on_layer({}, layer);
    walk_.visit(layer);
    return;
  }
  std::string path = walk_.path(name);
  walk_.check_name(path, name);
  const std::string whole = walk_.root_path_.empty() ? path : walk_.root_path_ + "." + path;
  // Written where it changes only: threads that share a model then walk it at the same time.
  if (layer.path_ != whole) layer.path_ = whole;
  if (walk_.on_layer) walk_.on_layer(walk_.local(path), layer);
  std::string outer = std::exchange(walk_.layer_path_, path);
  enter(name);
  walk_.visit(layer);
  leave();
  walk_.layer_path_ = outer;
}

void Members::enter(const std::string& name) {
  if (!walk_.names) return;
  walk_.outer_.push_back(walk_.prefix_);
  walk_.prefix_ = walk_.path(name);
}
void Members::leave() {
  if (!walk_.names) return;
  walk_.prefix_ = walk_.outer_.back();
  walk_.outer_.pop_back();
}

namespace {

// Each parameter once, even where a layer lists one in two places.
template <class F>
void each_parameter(const Layer& layer, const F& f) {
  std::set<const TensorImpl*> seen;
  Walk walk;
  walk.on_parameter = [&](const std::string& path, Parameter& parameter) {
    if (seen.insert(parameter.tensor().impl()).second) f(path, parameter);
  };
  walk.run(layer);
}

template <class F>
void each_buffer(const Layer& layer, const F& f) {
  Walk walk;
  walk.on_buffer = f;
  walk.run(layer);
}

}  // namespace

// ---- Parameters

std::vector<std::pair<std::string, Tensor>> Layer::named_parameters() const {
  std::vector<std::pair<std::string, Tensor>> list;
  each_parameter(*this, [&](const std::string& path, Parameter& parameter) {
    parameter.tensor().impl()->leaf_state().listing = LeafState::Listing::listed_parameter;
    list.emplace_back(path, parameter.tensor());
  });
  return list;
}

Tensors Layer::parameters() const {
  Tensors list;
  for (auto& [path, tensor] : named_parameters()) list.push_back(std::move(tensor));
  return list;
}

std::vector<std::pair<std::string, Tensor>> Layer::named_buffers() const {
  std::vector<std::pair<std::string, Tensor>> list;
  each_buffer(*this, [&](const std::string& path, Buffer& buffer) { list.emplace_back(path, buffer.tensor()); });
  return list;
}

int64_t Layer::parameter_count() const {
  int64_t count = 0;
  each_parameter(*this, [&](const std::string&, Parameter& parameter) { count += parameter.numel(); });
  return count;
}

void Layer::zero_grad() const {
  Walk walk;
  walk.names = false;
  walk.on_parameter = [](const std::string&, Parameter& parameter) { parameter.zero_grad(); };
  walk.run(*this);
}

void Layer::set_requires_grad(bool requires_grad) {
  each_parameter(*this, [&](const std::string&, Parameter& p) { p.set_requires_grad(requires_grad); });
}

void Layer::to(DType dtype) {
  check<DTypeError>(dtype == DType::f32 || dtype == DType::f64, "to", "a layer computes in f32 or f64, not ", dtype,
                    ": cast the tensors of its state_dict() to store them smaller");
  each_parameter(*this, [&](const std::string&, Parameter& parameter) { parameter.cast(dtype); });
  each_buffer(*this, [&](const std::string&, Buffer& buffer) { buffer.cast(dtype); });
}

void Layer::to(Device device) {
  if (device.kind == Device::Kind::cuda) need_cuda("to", device);  // before anything is moved
  // All is copied before anything is put in place: where memory runs out, the layer stays as it was.
  std::vector<std::pair<OwnedTensor*, Tensor>> moved;
  const auto copy = [&](const std::string&, OwnedTensor& tensor) {
    if (!(tensor.device() == device)) moved.emplace_back(&tensor, tensor.detach().to(device));
  };
  each_parameter(*this, copy);
  each_buffer(*this, copy);
  for (auto& [tensor, elements] : moved) tensor->replace(elements);
  Walk walk;
  walk.on_layer = [&](const std::string&, Layer& layer) { layer.moved_to(device); };
  walk.run(*this);
}

Device Layer::device() const {
  std::optional<Device> found;
  const auto note = [&](const std::string&, const OwnedTensor& tensor) {
    if (!found) found = tensor.device();
  };
  Walk walk;
  walk.names = false;
  walk.on_parameter = note;
  walk.on_buffer = note;
  walk.run(*this);
  return found.value_or(cpu());
}

void Layer::train(bool training) {
  Walk walk;
  walk.on_layer = [&](const std::string&, Layer& layer) { layer.training_ = training; };
  walk.run(*this);
}

std::weak_ptr<const void> Layer::presence() const {
  static std::mutex mutex;  // threads may share a model
  std::lock_guard lock(mutex);
  if (!presence_) presence_ = std::make_shared<char>();
  return presence_;
}

// ---- State

StateDict Layer::state_dict() const {
  StateDict state;
  each_parameter(*this, [&](const std::string& path, Parameter& p) { state.emplace(path, p.tensor().detach()); });
  for (auto& [path, tensor] : named_buffers()) state.emplace(path, tensor.detach());
  return state;
}

LoadReport Layer::load_state_dict(const StateDict& state, LoadOptions options) {
  LoadReport report;
  StateDict own = state_dict();
  std::vector<std::pair<Tensor, Tensor>> copies;  // (to, from)
  for (const auto& [path, tensor] : own) {
    auto given = state.find(path);
    if (given == state.end() || !given->second.defined()) {
      report.missing.push_back(path);
    } else if (given->second.shape() != tensor.shape()) {
      report.mismatched.push_back(path + ": " + regard::to_string(given->second.shape()) + " given, " +
                                  regard::to_string(tensor.shape()) + " wanted");
    } else if (is_floating(given->second.dtype()) != is_floating(tensor.dtype())) {
      report.mismatched.push_back(path + ": " + regard::to_string(given->second.dtype()) + " given, " +
                                  regard::to_string(tensor.dtype()) + " wanted");
    } else {
      copies.emplace_back(tensor, given->second);
    }
  }
  for (const auto& [path, tensor] : state)
    if (!own.contains(path)) report.unexpected.push_back(path);

  if (options.strict && !report.complete()) {
    std::string text = "the state dict does not fit " + describe();
    auto list = [&](const char* title, const std::vector<std::string>& names) {
      if (names.empty()) return;
      text += std::string("; ") + title + ": ";
      for (size_t i = 0; i < names.size(); ++i) text += (i ? ", " : "") + names[i];
    };
    list("missing", report.missing);
    list("unexpected", report.unexpected);
    list("of another shape", report.mismatched);
    for (const std::string& name : report.unexpected)
      if (name.ends_with("in_proj_weight") || name.find("self_attn.") != std::string::npos) {
        text += "; these are PyTorch's names, which from_torch(model, state) gives the model's";
        break;
      }
    fail<ValueError>("load_state_dict", text, "; nothing was loaded (pass {.strict = false} to load what fits)");
  }
  NoGrad no_grad;
  for (auto& [to, from] : copies) to.copy_(from.detach().to(to.device()));
  return report;
}

// ---- Printing

std::string Layer::describe() const {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(typeid(*this).name(), nullptr, nullptr, &status),
                                              std::free);
  std::string text = status == 0 ? name.get() : typeid(*this).name();
  std::string plain = text.substr(0, text.find('<'));
  size_t colons = plain.rfind("::");
  return colons == std::string::npos ? text : text.substr(colons + 2);
}

namespace {

std::string with_separators(int64_t count) {
  std::string digits = std::to_string(count);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

void print(const Layer& layer, std::string& text) {
  struct Line {
    std::string left;
    int64_t count;  // -1: none to show
  };
  std::vector<Line> lines;
  Walk walk;
  auto indent = [&] { return std::string(static_cast<size_t>(2 * walk.depth()), ' '); };
  walk.on_layer = [&](const std::string& name, Layer& inner) {
    lines.push_back({indent() + (name.empty() ? "" : name + ": ") + inner.describe(), inner.parameter_count()});
  };
  auto member = [&](const std::string& path, const OwnedTensor& tensor, bool trained) {
    lines.push_back(
        {indent() + walk.local(path) + ": " + regard::to_string(tensor.shape()) + (trained ? "" : " (buffer)"),
         trained ? tensor.numel() : -1});
  };
  walk.on_parameter = [&](const std::string& path, Parameter& p) { member(path, p, true); };
  walk.on_buffer = [&](const std::string& path, Buffer& b) { member(path, b, false); };
  walk.run(layer);
  size_t width = 0;
  for (const Line& line : lines) width = std::max(width, line.left.size());
  for (const Line& line : lines) {
    text += line.left;
    if (line.count >= 0) {
      std::string count = with_separators(line.count);
      text += std::string(width + 2 - line.left.size() + (count.size() < 12 ? 12 - count.size() : 0), ' ') + count;
    }
    text += '\n';
  }
  text.pop_back();
}

}  // namespace

std::string Layer::to_string() const {
  std::string text;
  print(*this, text);
  return text;
}

std::ostream& operator<<(std::ostream& out, const Layer& layer) { return out << layer.to_string(); }

std::string LayerScope::describe(const void* object) {
  const auto* layer = static_cast<const Layer*>(object);
  return layer->path().empty() ? layer->describe() : layer->path();
}

}  // namespace regard::layers
