#include <regard/autograd/ops/projection.hpp>

#include <utility>
#include <vector>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>

namespace regard::detail {

namespace {

// ---- Views, without a graph

/// Dense [N, T, width] seen as heads [N, width / head_width, T, head_width].
Tensor heads_of(const Tensor& x, int64_t head_width) {
  const int64_t length = x.shape()[1], width = x.shape()[2];
  return make_view(x, {x.shape()[0], width / head_width, length, head_width}, {length * width, head_width, width, 1},
                   x.storage_offset());
}

/// Whether x [N, H, T, D] lies as dense [N, T, H, D].
bool lies_merged(const Tensor& x) {
  const Shape& shape = x.shape();
  const Strides& strides = x.strides();
  const int64_t d = shape[3], row = shape[1] * d;
  return (d == 1 || strides[3] == 1) && (shape[1] == 1 || strides[1] == d) && (shape[2] == 1 || strides[2] == row) &&
         (shape[0] == 1 || strides[0] == shape[2] * row);
}

/// Heads [N, H, T, D] as dense rows [N * T, H * D], a copy only where they lie otherwise.
Tensor rows_of_heads(const Tensor& x) {
  const Shape shape{x.shape()[0] * x.shape()[2], x.shape()[1] * x.shape()[3]};
  if (x.numel() > 0 && lies_merged(x)) return make_view(x, shape, contiguous_strides(shape), x.storage_offset());
  Tensor merged = empty({x.shape()[0], x.shape()[2], x.shape()[1], x.shape()[3]}, {x.dtype(), x.device()});
  const Strides& s = x.strides();
  kernels(x).copy(merged, make_view(x, merged.shape(), {s[0], s[2], s[1], s[3]}, x.storage_offset()));
  return make_view(merged, shape, contiguous_strides(shape), 0);
}

/// c [m, n] = a [m, k] b [k, n] + beta c, for dense c.
void multiply(const Tensor& c, const Tensor& a, const Tensor& b, double beta) {
  const int64_t none = 0, m = a.shape()[0], k = a.shape()[1], n = b.shape()[1];
  if (m * n == 0) return;
  const GemmBatch one{1, &none, &none, &none};
  kernels(c).gemm(c.dtype(), m, n, k, 1, a.raw_data(), a.strides()[0], a.strides()[1], b.raw_data(), b.strides()[0],
                  b.strides()[1], beta, c.raw_data(), n, 1, one);
}

Tensor turned(const Tensor& x) {  // a matrix, without a graph
  return make_view(x, {x.shape()[1], x.shape()[0]}, {x.strides()[1], x.strides()[0]}, x.storage_offset());
}

// ---- The gradients of the gradients, composed

/// The same rows [N * T, H * D], differentiable.
Tensor composed_rows(const Tensor& x) {
  return reshape(transpose(x, 1, 2), {x.size(0) * x.size(2), x.size(1) * x.size(3)});
}

// The first gradients are dx = sum of g_i w_i, dw_i = g_i^T x and db_i = sum of g_i over rows; these are the gradients
// of x, w_i and g_i in them, for gradients h = (of dx, of each dw_i, of each db_i).
template <size_t count>
Grads second_gradients(const Saved& s, std::span<const Tensor> h) {
  const Tensor x = s[0], x_rows = x.view({x.size(0) * x.size(1), x.size(2)});
  const Tensor hx = h[0].defined() ? h[0].reshape(x_rows.shape()) : Tensor();
  Grads grads(1 + 2 * count);
  const auto add_to = [](Tensor& sum, const Tensor& term) { sum = sum.defined() ? sum + term : term; };
  Tensor of_x;
  for (size_t i = 0; i < count; ++i) {
    const Tensor w = s[1 + i], g = s[1 + count + i];
    if (!g.defined()) continue;
    const Tensor& hw = h[1 + i];
    const Tensor& hb = h[1 + count + i];
    const Tensor rows = composed_rows(g);
    if (s.needs(0) && hw.defined()) add_to(of_x, matmul(rows, hw));
    if (s.needs(1 + i) && hx.defined()) grads[1 + i] = matmul(transpose(rows, 0, 1), hx);
    if (!s.needs(1 + count + i)) continue;
    Tensor of_g;
    if (hx.defined()) add_to(of_g, matmul(hx, transpose(w, 0, 1)));
    if (hw.defined()) add_to(of_g, matmul(x_rows, transpose(hw, 0, 1)));
    if (hb.defined()) add_to(of_g, expand(hb, rows.shape()));
    if (of_g.defined()) grads[1 + count + i] = transpose(of_g.view({g.size(0), g.size(2), g.size(1), g.size(3)}), 1, 2);
  }
  if (of_x.defined()) grads[0] = of_x.view(x.shape());
  return grads;
}

// ---- The first gradients

/// Those of x, the weights and the biases, where `wanted`; recorded where the mode says so, and then all.
template <size_t count>
Grads gradients(const Tensor& x, const std::array<Tensor, count>& weights, std::span<const Tensor> g,
                std::array<bool, 1 + 2 * count> wanted) {
  if (grad_enabled()) wanted.fill(true);
  const int64_t width = x.shape()[2], rows = x.shape()[0] * x.shape()[1];
  const TensorOptions options(x.dtype(), x.device());
  const Tensor x_rows = make_view(x, {rows, width}, {width, 1}, x.storage_offset());
  Grads grads(1 + 2 * count);
  if (wanted[0]) grads[0] = empty(x.shape(), options);
  const Tensor dx = wanted[0] ? make_view(grads[0], {rows, width}, {width, 1}, 0) : Tensor();
  bool started = false;
  for (size_t i = 0; i < count; ++i) {
    if (!g[i].defined()) continue;
    const Tensor g_rows = rows_of_heads(g[i]);
    const int64_t out = g_rows.shape()[1];
    if (wanted[0]) multiply(dx, g_rows, weights[i], std::exchange(started, true) ? 1 : 0);
    if (wanted[1 + i]) {
      grads[1 + i] = empty({out, width}, options);
      multiply(grads[1 + i], turned(g_rows), x_rows, 0);
    }
    if (wanted[1 + count + i]) {
      grads[1 + count + i] = empty({out}, options);
      kernels(x).reduce(ReduceOp::sum, make_view(grads[1 + count + i], {1, out}, {out, 1}, 0), g_rows);
    }
  }
  if (wanted[0] && !started) grads[0] = Tensor();
  if (!grad_enabled()) return grads;

  std::vector<const Tensor*> in{&x};
  for (const Tensor& weight : weights) in.push_back(&weight);
  for (const Tensor& of : g) in.push_back(&of);
  std::vector<Tensor*> out;
  Tensors unused(grads.size());
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) unused[i] = empty({0}, options);
    out.push_back(grads[i].defined() ? &grads[i] : &unused[i]);
  }
  record_general("project_heads_grad", out, in, in,
                 [](const Saved& s, std::span<const Tensor> h) { return second_gradients<count>(s, h); });
  return grads;
}

}  // namespace

bool can_project(const Tensor& x, const Projection& projection, int64_t head_width) {
  const Tensor& weight = projection.weight;
  if (!x.defined() || !weight.defined() || x.dim() != 3 || weight.dim() != 2 || head_width <= 0) return false;
  // Under autocast they are brought to one dtype.
  const bool fits = autocast::narrows("project_heads", x, weight, projection.bias);
  if (!computes(x.dtype(), x.device()) || (weight.dtype() != x.dtype() && !fits)) return false;
  if (!(weight.device() == x.device()) || x.shape()[2] != weight.shape()[1]) return false;
  if (weight.shape()[0] % head_width != 0 || !x.is_contiguous() || !weight.is_contiguous()) return false;
  const Tensor& bias = projection.bias;
  return !bias.defined() || ((bias.dtype() == x.dtype() || fits) && bias.device() == x.device() &&
                             bias.is_contiguous() && bias.shape() == Shape{weight.shape()[0]});
}

namespace {

template <size_t count>
bool narrows(const Tensor& x, const std::array<Projection, count>& projections) {
  for (const Projection& one : projections)
    if (autocast::narrows("project_heads", x, one.weight, one.bias)) return true;
  return false;
}

template <size_t count, size_t... i>
std::array<Tensor, count> narrowed(const Tensor& x, const std::array<Projection, count>& projections,
                                   int64_t head_width, std::index_sequence<i...>) {
  const std::array<Tensor, count> weights{autocast::narrow(projections[i].weight)...};
  const std::array<Tensor, count> biases{autocast::narrow(projections[i].bias)...};
  return project_heads<count>(autocast::narrow(x), {Projection{weights[i], biases[i]}...}, head_width);
}

}  // namespace

template <size_t count>
std::array<Tensor, count> project_heads(const Tensor& x, const std::array<Projection, count>& projections,
                                        int64_t head_width) {
  if (narrows(x, projections)) [[unlikely]]
    return narrowed(x, projections, head_width, std::make_index_sequence<count>());
  const int64_t batch = x.shape()[0], length = x.shape()[1], width = x.shape()[2];
  const Tensor x_rows = make_view(x, {batch * length, width}, {width, 1}, x.storage_offset());
  std::array<Tensor, count> heads;
  TensorRefs<1 + 2 * count> in{&x};
  TensorRefs<1 + count> kept{&x};
  std::array<Tensor*, count> out;
  for (size_t i = 0; i < count; ++i) {
    const auto& [weight, bias] = projections[i];
    const int64_t outputs = weight.shape()[0];
    const Tensor y = empty({batch, length, outputs}, {x.dtype(), x.device()});
    const Tensor y_rows = make_view(y, {batch * length, outputs}, {outputs, 1}, 0);
    if (bias.defined() && y.numel() > 0)
      kernels(y).gemm_epilogue(y.dtype(), batch * length, outputs, width, x.raw_data(), width, 1, weight.raw_data(), 1,
                               width, y.raw_data(), {.bias = bias.raw_data()});
    else
      multiply(y_rows, x_rows, turned(weight), 0);
    heads[i] = heads_of(y, head_width);
    in[1 + i] = kept[1 + i] = &weight;
    in[1 + count + i] = &bias;
    out[i] = &heads[i];
  }
  record_outputs("project_heads", out, in, kept, [](const Saved& s, std::span<const Tensor> g) {
    std::array<Tensor, count> weights;
    for (size_t i = 0; i < count; ++i) weights[i] = s[1 + i];
    std::array<bool, 1 + 2 * count> wanted;
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = s.needs(i);
    return gradients<count>(s[0], weights, g, wanted);
  });
  return heads;
}

template std::array<Tensor, 1> project_heads(const Tensor&, const std::array<Projection, 1>&, int64_t);
template std::array<Tensor, 2> project_heads(const Tensor&, const std::array<Projection, 2>&, int64_t);
template std::array<Tensor, 3> project_heads(const Tensor&, const std::array<Projection, 3>&, int64_t);

namespace {

/// Dense [N, T, width] -> heads, differentiable: merge_heads backwards.
Tensor split_heads(const Tensor& x, int64_t head_width) {
  const Tensor dense = contiguous(x);
  return record("split_heads", heads_of(dense, head_width), inputs(dense), saved(),
                [](const Saved&, const Tensor& g) { return Grads{merge_heads(g)}; });
}

}  // namespace

Tensor merge_heads(const Tensor& x) {
  const int64_t batch = x.shape()[0], heads = x.shape()[1], length = x.shape()[2], width = x.shape()[3];
  if (x.numel() == 0 || !lies_merged(x)) return reshape(transpose(x, 1, 2), {batch, length, heads * width});
  const Shape shape{batch, length, heads * width};
  return record("merge_heads", make_view(x, shape, contiguous_strides(shape), x.storage_offset()), inputs(x), saved(),
                [width](const Saved&, const Tensor& g) { return Grads{split_heads(g, width)}; });
}

}  // namespace regard::detail
