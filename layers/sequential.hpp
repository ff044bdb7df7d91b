// Sequential: layers one after the other.
#pragma once

#include <memory>
#include <vector>

#include <regard/layers/layer.hpp>

namespace regard::layers {

/// `Sequential(Linear(8, 16), GELU(), Linear(16, 4))`: each layer's output is the next one's input. Members are named
/// 0, 1, ... as in PyTorch. Takes any layer that maps one Tensor to one Tensor.
struct Sequential : Layer {
  Sequential() = default;
  template <class... Layers>
  requires(sizeof...(Layers) > 0 && (std::is_base_of_v<Layer, Layers> && ...) &&
           !(sizeof...(Layers) == 1 &&
             (std::is_same_v<Layers, Sequential> && ...))) explicit Sequential(Layers... layers) {
    (add(std::move(layers)), ...);
  }
  Sequential(const Sequential& other) : Layer(other) {
    for (const auto& step : other.steps_) steps_.push_back(step->copy());
  }
  Sequential(Sequential&&) noexcept = default;
  /// Like every layer's assignment: values are written into the memory there is, and modes and sizes are copied. Both
  /// must hold layers of the same types and shapes: else a ValueError, and nothing is changed.
  Sequential& operator=(const Sequential& other) {
    check<ValueError>(steps_.size() == other.steps_.size(), "Sequential", other.steps_.size(),
                      " layers are assigned to ", steps_.size());
    for (size_t i = 0; i < steps_.size(); ++i)
      check<ValueError>(steps_[i]->same_type(*other.steps_[i]), "Sequential", "at ", i, " a ",
                        other.steps_[i]->layer().describe(), " is assigned to a ", steps_[i]->layer().describe());
    load_state_dict(other.state_dict());  // checks all shapes first
    for (size_t i = 0; i < steps_.size(); ++i) steps_[i]->assign(*other.steps_[i]);
    Layer::operator=(other);
    return *this;
  }

  /// Appends a layer; returns this Sequential.
  template <class L>
  requires std::is_base_of_v<Layer, L> Sequential& add(L layer) {
    steps_.push_back(std::make_unique<StepOf<L>>(std::move(layer)));
    return *this;
  }
  size_t size() const { return steps_.size(); }
  /// The i-th layer.
  Layer& operator[](size_t i) { return steps_.at(i)->layer(); }

  Tensor operator()(const Tensor& x) const {
    Tensor result = x;
    for (const auto& step : steps_) result = step->apply(result);
    return result;
  }
  void members(Members& m) override {
    for (size_t i = 0; i < steps_.size(); ++i) m(std::to_string(i), steps_[i]->layer());
  }

 private:
  struct Step {
    virtual ~Step() = default;
    virtual Tensor apply(const Tensor& x) = 0;
    virtual Layer& layer() = 0;
    virtual std::unique_ptr<Step> copy() const = 0;
    virtual bool same_type(const Step& other) const = 0;
    virtual void assign(const Step& other) = 0;  // of the same type
  };
  template <class L>
  struct StepOf final : Step {
    explicit StepOf(L held) : layer_(std::move(held)) {}
    Tensor apply(const Tensor& x) override { return layer_(x); }
    Layer& layer() override { return layer_; }
    std::unique_ptr<Step> copy() const override { return std::make_unique<StepOf>(layer_); }
    bool same_type(const Step& other) const override { return dynamic_cast<const StepOf*>(&other) != nullptr; }
    void assign(const Step& other) override { layer_ = static_cast<const StepOf&>(other).layer_; }
    L layer_;
  };
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace regard::layers
