// Layer norm and RMS norm: fused kernels forward and backward, and the composed gradient of the fused gradient.
#include <algorithm>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>

namespace regard {

namespace {

// How a row is normalised: x^ = (x - mean) r with r = 1 / sqrt(mean((x - mean)^2) + eps). RMS norm is the same
// without the mean.
struct NormForm {
  bool centered;
  Shape dims;  // the normalised dimensions
  double eps;
};

Tensor row_mean(const Tensor& x, const NormForm& form) { return mean(x, Dims(form.dims), true); }

// The composed forms of x^ and r, differentiable in x.
struct Normalized {
  Tensor x, r;
};
Normalized normalized(const Tensor& x, const NormForm& form) {
  const Tensor d = form.centered ? x - row_mean(x, form) : x;
  const Tensor r = rsqrt(row_mean(square(d), form) + form.eps);
  return {d * r, r};
}

// v without its share along the row's mean and along x^. The Jacobian of x^ in x is r times this, and symmetric.
Tensor project(const Tensor& v, const Tensor& x, const NormForm& form) {
  const Tensor rest = v - x * row_mean(v * x, form);
  return form.centered ? rest - row_mean(v, form) : rest;
}

// Sums over the dimensions before the normalised ones.
Tensor sum_rows(const Tensor& x, const NormForm& form) {
  const int64_t lead = x.dim() - form.dims.dim();
  if (lead == 0) return x;
  Shape dims;
  for (int64_t d = 0; d < lead; ++d) dims.push_back(d);
  return sum(x, Dims(dims));
}

// Records dx = r P(a), a = dy weight, as a function of dy, x and weight. With h the gradient of dx, and m the mean of
// a row, the gradient in a is r P(h); in x it is -r^2 (P(h m(a x^) + a m(h x^)) + x^ m(h P(a))): the first part
// through x^, the second through r.
Tensor record_input_grad(const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& weight,
                         const NormForm& form) {
  return record("norm_grad", dx, inputs(dy, x, weight), saved(dy, x, weight), [form](const Saved& s, const Tensor& h) {
    const Tensor dy = s[0], weight = s[2];
    const Normalized n = normalized(s[1], form);
    const Tensor a = weight.defined() ? dy * weight : dy;
    Grads grads(3);
    if (s.needs(0) || s.needs(2)) {
      const Tensor da = n.r * project(h, n.x, form);
      if (s.needs(0)) grads[0] = weight.defined() ? da * weight : da;
      if (s.needs(2)) grads[2] = sum_rows(da * dy, form);
    }
    if (s.needs(1)) {
      const Tensor through_x = h * row_mean(a * n.x, form) + a * row_mean(h * n.x, form);
      const Tensor through_r = n.x * row_mean(h * project(a, n.x, form), form);
      grads[1] = -(square(n.r) * (project(through_x, n.x, form) + through_r));
    }
    return grads;
  });
}

// Records dweight = sum over rows of dy x^.
Tensor record_weight_grad(const Tensor& dweight, const Tensor& dy, const Tensor& x, const NormForm& form) {
  return record("norm_weight_grad", dweight, inputs(dy, x), saved(dy, x), [form](const Saved& s, const Tensor& h) {
    const Normalized n = normalized(s[1], form);
    Grads grads(2);
    if (s.needs(0)) grads[0] = n.x * h;
    if (s.needs(1)) grads[1] = n.r * project(s[0] * h, n.x, form);
    return grads;
  });
}

Tensor record_bias_grad(const Tensor& dbias, const Tensor& dy) {
  return record("norm_bias_grad", dbias, inputs(dy), saved(),
                [shape = dy.shape()](const Saved&, const Tensor& h) { return Grads{expand(h, shape)}; });
}

// Checks the arguments, and says which dimensions are normalised and the shape of one statistic a row.
NormForm check_norm(const char* op, const Tensor& x, const Shape& normalized_shape, const Tensor& weight,
                    const Tensor& bias, double eps, Shape& rows) {
  check_floating(op, "x", x);
  const int64_t lead = x.dim() - normalized_shape.dim();
  bool fits = lead >= 0 && normalized_shape.dim() > 0;
  for (int64_t d = 0; fits && d < normalized_shape.dim(); ++d) fits = x.shape()[lead + d] == normalized_shape[d];
  check<ShapeError>(fits, op, "normalized_shape ", normalized_shape, " is not how the shape of x, ", x.shape(),
                    ", ends");
  const std::pair<const char*, const Tensor*> parameters[] = {{"weight", &weight}, {"bias", &bias}};
  for (const auto& [name, parameter] : parameters) {
    if (!parameter->defined()) continue;
    check<ShapeError>(parameter->shape() == normalized_shape, op, name, " ", parameter->shape(),
                      " does not have the shape normalized_shape, ", normalized_shape);
    check<DTypeError>(parameter->dtype() == x.dtype(), op, "x is ", x.dtype(), " and ", name, " is ",
                      parameter->dtype(), "; convert one with to()");
    check_same_device(op, x, *parameter);
  }
  check<ValueError>(eps >= 0, op, "eps is ", eps, "; it must not be negative");
  NormForm form{false, {}, eps};
  for (int64_t d = 0; d < lead; ++d) rows.push_back(x.shape()[d]);
  for (int64_t d = lead; d < x.dim(); ++d) form.dims.push_back(d);
  return form;
}

// Of a row's mean and rstd: f32 for 16-bit rows, whose values would lose digits there.
TensorOptions statistics_of(const Tensor& x) {
  return {element_size(x.dtype()) == 2 ? DType::f32 : x.dtype(), x.device()};
}

Tensor dense(const Tensor& x) { return x.defined() ? contiguous(x) : x; }

}  // namespace

Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight, const Tensor& bias,
                  double eps) {
  using autocast::wide;
  if (autocast::widens("layer_norm", x, weight, bias)) [[unlikely]]
    return layer_norm(wide(x), normalized_shape, wide(weight), wide(bias), eps);
  Shape rows;
  NormForm form = check_norm("layer_norm", x, normalized_shape, weight, bias, eps, rows);
  form.centered = true;
  const Tensor a = contiguous(x), w = dense(weight), b = dense(bias);
  Tensor y = empty(x.shape(), {x.dtype(), x.device()});
  Tensor mean = empty(rows, statistics_of(x)), rstd = empty(rows, statistics_of(x));
  kernels(x).layer_norm(y, mean, rstd, a, w, b, eps);
  return record_recomputable(
      "layer_norm", y, inputs(a, w, b), saved(a, mean, rstd, w, b),
      [form, normalized_shape](const Saved& s, const Tensor& g) {
        const Tensor dy = contiguous(g), a = s[0], w = s[3];
        const TensorOptions options{g.dtype(), g.device()};
        Tensor da, dw, db;
        if (s.needs(0)) da = empty(a.shape(), options);
        if (s.needs(1)) dw = empty(normalized_shape, options);
        if (s.needs(2)) db = empty(normalized_shape, options);
        kernels(g).layer_norm_grad(da, dw, db, dy, a, s[1], s[2], w);
        Grads grads(3);
        if (s.needs(0)) grads[0] = record_input_grad(da, dy, a, w, form);
        if (s.needs(1)) grads[1] = record_weight_grad(dw, dy, a, form);
        if (s.needs(2)) grads[2] = record_bias_grad(db, dy);
        return grads;
      },
      [eps](const Saved& s) {
        const Tensor a = s[0];
        const Tensor y = empty_like(a), mean = empty_like(s[1]), rstd = empty_like(s[2]);
        kernels(a).layer_norm(y, mean, rstd, a, s[3], s[4], eps);
        return y;
      });
}

Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight, double eps) {
  if (autocast::widens("rms_norm", x, weight)) [[unlikely]]
    return rms_norm(autocast::wide(x), normalized_shape, autocast::wide(weight), eps);
  Shape rows;
  const NormForm form = check_norm("rms_norm", x, normalized_shape, weight, {}, eps, rows);
  const Tensor a = contiguous(x), w = dense(weight);
  Tensor y = empty(x.shape(), {x.dtype(), x.device()}), rstd = empty(rows, statistics_of(x));
  kernels(x).rms_norm(y, rstd, a, w, eps);
  return record_recomputable(
      "rms_norm", y, inputs(a, w), saved(a, rstd, w),
      [form, normalized_shape](const Saved& s, const Tensor& g) {
        const Tensor dy = contiguous(g), a = s[0], w = s[2];
        const TensorOptions options{g.dtype(), g.device()};
        Tensor da, dw;
        if (s.needs(0)) da = empty(a.shape(), options);
        if (s.needs(1)) dw = empty(normalized_shape, options);
        kernels(g).rms_norm_grad(da, dw, dy, a, s[1], w);
        Grads grads(2);
        if (s.needs(0)) grads[0] = record_input_grad(da, dy, a, w, form);
        if (s.needs(1)) grads[1] = record_weight_grad(dw, dy, a, form);
        return grads;
      },
      [eps](const Saved& s) {
        const Tensor a = s[0];
        const Tensor y = empty_like(a), rstd = empty_like(s[1]);
        kernels(a).rms_norm(y, rstd, a, s[2], eps);
        return y;
      });
}

}  // namespace regard
