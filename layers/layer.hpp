// Layer: what a model is made of. A layer is a plain struct that lists its members once, in members().
#pragma once

#include <array>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/state_dict.hpp>
#include <regard/layers/parameter.hpp>

namespace regard {

namespace layers {

struct Layer;

/// What Layer::members() lists its members to: parameters, buffers, layers, and vectors, arrays and optionals of
/// layers. A name holds no dot; members of a vector are numbered.
class Members {
 public:
  void operator()(const std::string& name, Parameter& parameter);
  void operator()(const std::string& name, Buffer& buffer);
  void operator()(const std::string& name, Layer& layer);
  template <class L>
  void operator()(const std::string& name, std::vector<L>& list) {
    each(name, list);
  }
  template <class L, size_t N>
  void operator()(const std::string& name, std::array<L, N>& list) {
    each(name, list);
  }
  template <class M>
  void operator()(const std::string& name, std::optional<M>& member) {
    if (member) (*this)(name, *member);
  }
  /// Anything else is no member: see the message.
  template <class T>
  requires(!std::is_base_of_v<Layer, T> && !std::is_base_of_v<OwnedTensor, T>) void operator()(const std::string&, T&) {
    static_assert(
        sizeof(T) == 0,
        "members() lists Parameters, Buffers, layers, and std::vector, std::array or std::optional of layers; "
        "a plain Tensor is neither trained nor saved: make it a Parameter or a Buffer");
  }

 private:
  friend class Walk;
  explicit Members(class Walk& walk) : walk_(walk) {}
  template <class List>
  void each(const std::string& name, List& list) {
    enter(name);
    for (size_t i = 0; i < list.size(); ++i) (*this)(std::to_string(i), list[i]);
    leave();
  }
  void enter(const std::string& name);
  void leave();

  class Walk& walk_;
};

/// What load_state_dict() found.
struct LoadReport {
  std::vector<std::string> missing;     ///< in the layer, not in the state dict
  std::vector<std::string> unexpected;  ///< in the state dict, not in the layer
  std::vector<std::string> mismatched;  ///< of another shape: `name: [2, 3] given, [3, 2] wanted`
  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};

struct LoadOptions {
  bool strict = true;  ///< throw, with the whole list, unless every name and shape fits; nothing is changed then
};

/// Base of every layer. Derive, hold parameters and layers as plain members, list them in members(), and give the
/// struct an operator(). Layers are values: a copy has parameters of its own (same values, no gradients).
struct Layer {
  Layer() = default;
  Layer(const Layer& other) : training_(other.training_) {}
  Layer(Layer&& other) noexcept : training_(other.training_), path_(std::move(other.path_)) { other.presence_.reset(); }
  /// Copies the mode; members assign values into the memory they have.
  Layer& operator=(const Layer& other) {
    training_ = other.training_;
    return *this;
  }
  Layer& operator=(Layer&& other) noexcept { return *this = other; }
  virtual ~Layer() = default;

  /// Lists every parameter, buffer and layer inside, each with its name.
  virtual void members(Members& m) = 0;
  /// The type and its sizes, `Linear(512, 256)`: for printing and errors.
  virtual std::string describe() const;

  /// Every parameter once, in the order of members(): handles that stay good while the layer lives, even when it
  /// is moved.
  Tensors parameters() const;
  std::vector<std::pair<std::string, Tensor>> named_parameters() const;
  std::vector<std::pair<std::string, Tensor>> named_buffers() const;
  int64_t parameter_count() const;

  /// Parameters and buffers by path. The tensors share the layer's memory: clone() them for a snapshot.
  StateDict state_dict() const;
  /// Copies values in by name, casting between floating dtypes. Strict: a ValueError that lists what is missing,
  /// unexpected and of another shape. Either all is loaded that fits, or, on an error, nothing.
  LoadReport load_state_dict(const StateDict& state, LoadOptions options = {});

  /// Training mode, with dropout, or evaluation, without. New layers train.
  void train(bool training = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }

  /// Casts every floating parameter and buffer to f32 or f64, behind all handles; gradients are dropped.
  void to(DType dtype);
  /// Moves every parameter and buffer, `model.to(cuda())`, behind all handles; gradients are dropped. All of them or,
  /// on an error, such as too little memory there, none. An optimizer that has stepped keeps its state where it was,
  /// and says so at its next step: move the model first.
  void to(Device device);
  /// Where its first parameter or buffer is; the CPU for a layer without any.
  Device device() const;
  /// Leaves every gradient undefined.
  void zero_grad() const;
  /// Whether the parameters are trained: false freezes them.
  void set_requires_grad(bool requires_grad);

  /// The tree of layers with shapes and parameter counts.
  std::string to_string() const;
  /// Where it stands in the model that was last walked, `encoder.blocks.2`; empty for a model itself.
  const std::string& path() const { return path_; }
  /// Expires when the layer is destroyed or moved from: for who keeps a pointer to it.
  std::weak_ptr<const void> presence() const;

 protected:
  /// Called by to(Device), of this layer or one around it: for a layer that keeps tensors which are no members.
  virtual void moved_to(Device) {}

 private:
  friend class Members;
  friend class Walk;
  bool training_ = true;
  std::string path_;                              // moved along, not copied
  mutable std::shared_ptr<const void> presence_;  // neither: made when it is asked for
};

std::ostream& operator<<(std::ostream& out, const Layer& layer);

/// Opened by built-in layers in operator(): errors inside name the layer's path, or before it is known its type.
class LayerScope {
 public:
  explicit LayerScope(const Layer& layer) : scope_(&describe, &layer) {}

 private:
  static std::string describe(const void* layer);
  ErrorScope scope_;
};

/// Calls back for each member of a tree of layers, in order.
class Walk {
 public:
  std::function<void(const std::string& path, Parameter&)> on_parameter;
  std::function<void(const std::string& path, Buffer&)> on_buffer;
  /// false: names are not looked at, and paths are empty. For what is done each step.
  bool names = true;
  /// Before its members, with its name in the layer around it; empty for the root.
  std::function<void(const std::string& name, Layer&)> on_layer;

  void run(const Layer& root);
  /// How many layers are around the member that is called back for.
  int depth() const { return depth_; }
  /// The member's path from the layer around it: `weight`, `blocks.0`.
  std::string local(const std::string& path) const {
    return layer_path_.empty() ? path : path.substr(layer_path_.size() + 1);
  }

 private:
  friend class Members;
  std::string path(const std::string& name) const { return prefix_.empty() ? name : prefix_ + "." + name; }
  void visit(Layer& layer);
  void check_name(const std::string& path, const std::string& name);

  std::string prefix_;      // of names
  std::string layer_path_;  // of the layer whose members are being listed
  std::string root_path_;   // of the root in a larger model
  int depth_ = 0;
  std::vector<std::string> seen_;
  std::vector<std::string> outer_;
};

}  // namespace layers
}  // namespace regard
