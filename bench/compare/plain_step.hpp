// The same training step as Gpt with AdamW, written by hand in plain C++: no autograd, no layers, nothing allocated
// after the constructor, all parameters in one block of memory; on the same kernels. It shows what the engine costs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <regard/autograd/backend/cpu/gemm.hpp>
#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/state_dict.hpp>
#include <regard/bench/compare/gpt.hpp>
#include <regard/optim/adam.hpp>

namespace bench {

class PlainGpt {
 public:
  /// Takes a Gpt's weights from its state dict; the head is not tied and there are biases.
  PlainGpt(const GptSizes& sizes, const regard::StateDict& weights) : s_(sizes) {
    table_.tokens = place("tokens.weight", s_.vocabulary * s_.width);
    table_.positions = place("positions.weight", s_.length * s_.width);
    blocks_.resize(static_cast<size_t>(s_.depth));
    for (size_t i = 0; i < blocks_.size(); ++i) place_block(blocks_[i], "blocks." + std::to_string(i) + ".");
    norm_ = place_norm("norm");
    head_ = place("head.weight", s_.vocabulary * s_.width);
    allocate(weights);
  }

  /// Forward, backward and AdamW; returns the mean loss. ids and targets: [B * T].
  float step(const int64_t* ids, const int64_t* targets) {
    const float loss = forward(ids, targets);
    backward(ids);
    ++steps_;
    const regard::AdamTensors all{values_, grads_, exp_avg_, exp_avg_sq_};
    k_.adam_step({&all, 1}, {options_.lr, options_.betas[0], options_.betas[1], options_.eps, options_.weight_decay,
                             true, steps_});
    return loss;
  }
  void set_lr(double lr) { options_.lr = lr; }

 private:
  using Matrix = regard::cpu_backend::Matrix<float>;
  using ConstMatrix = regard::cpu_backend::Matrix<const float>;
  using Tensor = regard::Tensor;

  struct Norm {
    int64_t weight, bias;  // places in the block of parameters
    Tensor w, b, dw, db;   // and tensors over them, which the kernels take
    Tensor y, mean, rstd;
  };
  struct Block {
    int64_t qkv, qkv_bias, output, output_bias, up, up_bias, down, down_bias;
    Norm norm1, norm2;
    Tensor qkv_out, weights, context, middle, up_out, activated, out;
  };

  // ---- Memory

  int64_t place(const std::string& name, int64_t count) {
    const int64_t at = size_;
    places_[name] = at;
    size_ += count;
    return at;
  }
  Norm place_norm(const std::string& name) {
    Norm norm;
    norm.weight = place(name + ".weight", s_.width);
    norm.bias = place(name + ".bias", s_.width);
    return norm;
  }
  void place_block(Block& b, const std::string& name) {
    const int64_t e = s_.width, hidden = 4 * e;
    b.norm1 = place_norm(name + "norm1");
    b.qkv = place(name + "attention.query.weight", e * e);  // the three one after the other: one product for all
    place(name + "attention.key.weight", e * e);
    place(name + "attention.value.weight", e * e);
    b.qkv_bias = place(name + "attention.query.bias", e);
    place(name + "attention.key.bias", e);
    place(name + "attention.value.bias", e);
    b.output = place(name + "attention.output.weight", e * e);
    b.output_bias = place(name + "attention.output.bias", e);
    b.norm2 = place_norm(name + "norm2");
    b.up = place(name + "feed_forward.up.weight", hidden * e);
    b.up_bias = place(name + "feed_forward.up.bias", hidden);
    b.down = place(name + "feed_forward.down.weight", e * hidden);
    b.down_bias = place(name + "feed_forward.down.bias", e);
  }

  void allocate(const regard::StateDict& weights) {
    const int64_t n = rows(), e = s_.width, hidden = 4 * e;
    for (Tensor* whole : {&values_, &grads_, &exp_avg_, &exp_avg_sq_}) *whole = regard::zeros({size_});
    for (const auto& [name, at] : places_) {
      const Tensor from = weights.at(name).contiguous();
      std::copy_n(from.data<float>(), from.numel(), value(at));
    }
    allocate_norm(norm_);
    for (Block& b : blocks_) {
      allocate_norm(b.norm1);
      allocate_norm(b.norm2);
      b.qkv_out = regard::empty({n, 3 * e});
      b.weights = regard::empty({s_.batch * s_.heads * s_.length, s_.length});
      b.context = regard::empty({n, e});
      b.middle = regard::empty({n, e});
      b.up_out = regard::empty({n, hidden});
      b.activated = regard::empty({n, hidden});
      b.out = regard::empty({n, e});
    }
    embedded_ = regard::empty({n, e});
    logits_ = regard::empty({n, s_.vocabulary});
    losses_ = regard::empty({n});
    log_sum_exp_ = regard::empty({n});
    dlosses_ = regard::full({n}, 1.0F / static_cast<float>(n));
    targets_ = regard::empty({n}, regard::DType::i64);
    dlogits_ = regard::empty({n, s_.vocabulary});
    dx_ = regard::empty({n, e});
    dbranch_ = regard::empty({n, e});
    dnorm_ = regard::empty({n, e});
    dhidden_ = regard::empty({n, hidden});
    dup_ = regard::empty({n, hidden});
    dqkv_ = regard::empty({n, 3 * e});
    scores_ = regard::empty({s_.batch * s_.heads * s_.length, s_.length});
    dweights_ = regard::empty({s_.batch * s_.heads * s_.length, s_.length});
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t h = 0; h < s_.heads; ++h) {
        in_qkv_.push_back(b * s_.length * 3 * e + h * (e / s_.heads));
        in_context_.push_back(b * s_.length * e + h * (e / s_.heads));
        in_scores_.push_back((b * s_.heads + h) * s_.length * s_.length);
      }
    }
  }
  void allocate_norm(Norm& norm) {
    const regard::Shape width{s_.width};
    norm.w = regard::from_blob(value(norm.weight), width);
    norm.b = regard::from_blob(value(norm.bias), width);
    norm.dw = regard::from_blob(grad(norm.weight), width);
    norm.db = regard::from_blob(grad(norm.bias), width);
    norm.y = regard::empty({rows(), s_.width});
    norm.mean = regard::empty({rows()});
    norm.rstd = regard::empty({rows()});
  }

  int64_t rows() const { return s_.batch * s_.length; }
  float* value(int64_t at) const { return values_.data<float>() + at; }
  float* grad(int64_t at) const { return grads_.data<float>() + at; }

  // ---- Parts of the step

  // out = in weight^T + bias (+ residual), with weight [columns of out, columns of in].
  void linear(const Tensor& out, const Tensor& in, int64_t weight, int64_t bias, const Tensor* residual = nullptr) {
    const int64_t n = rows(), o = out.size(1), i = in.size(1);
    const float* b = value(bias);
    auto* y = out.data<float>();
    const float* r = residual ? residual->data<float>() : nullptr;
    for (int64_t row = 0; row < n; ++row)
      for (int64_t j = 0; j < o; ++j) y[row * o + j] = r ? b[j] + r[row * o + j] : b[j];
    regard::cpu_backend::gemm<float>(n, o, i, 1, ConstMatrix{in.data<float>(), i, 1}, ConstMatrix{value(weight), 1, i},
                                     1, Matrix{y, o, 1});
  }
  // Gradients of the weight and (where there is one) the bias, and din = dout weight.
  void linear_backward(const Tensor& din, const Tensor& dout, const Tensor& in, int64_t weight, int64_t bias) {
    const int64_t n = rows(), o = dout.size(1), i = in.size(1);
    const auto* dy = dout.data<float>();
    regard::cpu_backend::gemm<float>(o, i, n, 1, ConstMatrix{dy, 1, o}, ConstMatrix{in.data<float>(), i, 1}, 0,
                                     Matrix{grad(weight), i, 1});
    if (bias >= 0) {
      float* db = grad(bias);
      std::fill_n(db, o, 0.0F);
      for (int64_t row = 0; row < n; ++row)
        for (int64_t j = 0; j < o; ++j) db[j] += dy[row * o + j];
    }
    regard::cpu_backend::gemm<float>(n, i, o, 1, ConstMatrix{dy, o, 1}, ConstMatrix{value(weight), i, 1}, 0,
                                     Matrix{din.data<float>(), i, 1});
  }
  void normalise(const Norm& norm, const Tensor& x) {
    k_.layer_norm(norm.y, norm.mean, norm.rstd, x, norm.w, norm.b, 1e-5);
  }
  // dx += the norm's gradient with respect to its input x.
  void normalise_backward(const Norm& norm, const Tensor& dy, const Tensor& x) {
    k_.layer_norm_grad(dbranch_, norm.dw, norm.db, dy, x, norm.mean, norm.rstd, norm.w);
    add(dx_, dbranch_);
  }
  static void add(const Tensor& to, const Tensor& from) {
    auto* y = to.data<float>();
    const auto* x = from.data<float>();
    const int64_t count = to.numel();
    for (int64_t i = 0; i < count; ++i) y[i] += x[i];
  }

  // One product a batch entry and head.
  void products(int64_t m, int64_t n, int64_t k, float alpha, const std::vector<int64_t>& a_at, ConstMatrix a,
                const std::vector<int64_t>& b_at, ConstMatrix b, const std::vector<int64_t>& c_at, Matrix c) {
    regard::cpu_backend::gemm_batched<float>(s_.batch * s_.heads, a_at.data(), b_at.data(), c_at.data(), m, n, k, alpha,
                                             a, b, 0, c);
  }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(s_.width / s_.heads)); }

  void attend(const Block& b) {
    const int64_t e = s_.width, t = s_.length, d = e / s_.heads;
    const auto* qkv = b.qkv_out.data<float>();
    auto* scores = scores_.data<float>();
    products(t, t, d, scale(), in_qkv_, {qkv, 3 * e, 1}, in_qkv_, {qkv + e, 1, 3 * e}, in_scores_, {scores, t, 1});
    for (int64_t row = 0; row < scores_.size(0); ++row)
      for (int64_t j = row % t + 1; j < t; ++j) scores[row * t + j] = -INFINITY;
    k_.softmax(b.weights, scores_, 1, true);
    products(t, d, t, 1, in_scores_, {b.weights.data<float>(), t, 1}, in_qkv_, {qkv + 2 * e, 3 * e, 1}, in_context_,
             {b.context.data<float>(), e, 1});
  }
  void attend_backward(const Block& b, const Tensor& dcontext) {
    const int64_t e = s_.width, t = s_.length, d = e / s_.heads;
    const auto* qkv = b.qkv_out.data<float>();
    const auto* dc = dcontext.data<float>();
    auto* dqkv = dqkv_.data<float>();
    products(t, t, d, 1, in_context_, {dc, e, 1}, in_qkv_, {qkv + 2 * e, 1, 3 * e}, in_scores_,
             {dweights_.data<float>(), t, 1});
    k_.softmax_grad(scores_, b.weights, dweights_, 1);
    const auto* ds = scores_.data<float>();
    products(t, d, t, scale(), in_scores_, {ds, t, 1}, in_qkv_, {qkv + e, 3 * e, 1}, in_qkv_, {dqkv, 3 * e, 1});
    products(t, d, t, scale(), in_scores_, {ds, 1, t}, in_qkv_, {qkv, 3 * e, 1}, in_qkv_, {dqkv + e, 3 * e, 1});
    products(t, d, t, 1, in_scores_, {b.weights.data<float>(), 1, t}, in_context_, {dc, e, 1}, in_qkv_,
             {dqkv + 2 * e, 3 * e, 1});
  }

  float forward(const int64_t* ids, const int64_t* targets) {
    const int64_t n = rows(), e = s_.width;
    auto* x0 = embedded_.data<float>();
    for (int64_t row = 0; row < n; ++row) {
      const float* token = value(table_.tokens) + ids[row] * e;
      const float* position = value(table_.positions) + row % s_.length * e;
      for (int64_t j = 0; j < e; ++j) x0[row * e + j] = token[j] + position[j];
    }
    const Tensor* x = &embedded_;
    for (const Block& b : blocks_) {
      normalise(b.norm1, *x);
      linear(b.qkv_out, b.norm1.y, b.qkv, b.qkv_bias);
      attend(b);
      linear(b.middle, b.context, b.output, b.output_bias, x);
      normalise(b.norm2, b.middle);
      linear(b.up_out, b.norm2.y, b.up, b.up_bias);
      k_.unary(regard::UnaryOp::gelu, b.activated, b.up_out);
      linear(b.out, b.activated, b.down, b.down_bias, &b.middle);
      x = &b.out;
    }
    normalise(norm_, *x);
    regard::cpu_backend::gemm<float>(n, s_.vocabulary, e, 1, ConstMatrix{norm_.y.data<float>(), e, 1},
                                     ConstMatrix{value(head_), 1, e}, 0,
                                     Matrix{logits_.data<float>(), s_.vocabulary, 1});
    std::copy_n(targets, n, targets_.data<int64_t>());
    k_.cross_entropy(losses_, log_sum_exp_, logits_, targets_, {}, -100, 0);
    double sum = 0;
    for (int64_t row = 0; row < n; ++row) sum += losses_.data<float>()[row];
    return static_cast<float>(sum / static_cast<double>(n));
  }

  void backward(const int64_t* ids) {
    const int64_t n = rows(), e = s_.width;
    k_.cross_entropy_grad(dlogits_, dlosses_, log_sum_exp_, logits_, targets_, {}, -100, 0);
    linear_backward(dnorm_, dlogits_, norm_.y, head_, -1);
    k_.layer_norm_grad(dx_, norm_.dw, norm_.db, dnorm_, blocks_.back().out, norm_.mean, norm_.rstd, norm_.w);
    for (size_t i = blocks_.size(); i-- > 0;) {
      const Block& b = blocks_[i];
      const Tensor& x = i == 0 ? embedded_ : blocks_[i - 1].out;
      linear_backward(dhidden_, dx_, b.activated, b.down, b.down_bias);
      k_.binary(regard::BinaryOp::gelu_grad_x, dup_, b.up_out, dhidden_);
      linear_backward(dnorm_, dup_, b.norm2.y, b.up, b.up_bias);
      normalise_backward(b.norm2, dnorm_, b.middle);
      linear_backward(dnorm_, dx_, b.context, b.output, b.output_bias);
      attend_backward(b, dnorm_);
      linear_backward(dnorm_, dqkv_, b.norm1.y, b.qkv, b.qkv_bias);
      normalise_backward(b.norm1, dnorm_, x);
    }
    float* dtokens = grad(table_.tokens);
    float* dpositions = grad(table_.positions);
    std::fill_n(dtokens, s_.vocabulary * e, 0.0F);
    std::fill_n(dpositions, s_.length * e, 0.0F);
    const auto* dx = dx_.data<float>();
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t j = 0; j < e; ++j) {
        dtokens[ids[row] * e + j] += dx[row * e + j];
        dpositions[row % s_.length * e + j] += dx[row * e + j];
      }
    }
  }

  GptSizes s_;
  const regard::Kernels& k_ = regard::kernels(regard::Device{});
  regard::optim::AdamWOptions options_;
  int64_t steps_ = 0, size_ = 0;
  std::map<std::string, int64_t> places_;
  Tensor values_, grads_, exp_avg_, exp_avg_sq_;
  struct {
    int64_t tokens, positions;
  } table_{};
  std::vector<Block> blocks_;
  Norm norm_;
  int64_t head_ = 0;
  Tensor embedded_, logits_, losses_, log_sum_exp_, targets_;
  Tensor dlosses_, dlogits_, dx_, dbranch_, dnorm_, dhidden_, dup_, dqkv_, scores_, dweights_;
  std::vector<int64_t> in_qkv_, in_context_, in_scores_;
};

}  // namespace bench
