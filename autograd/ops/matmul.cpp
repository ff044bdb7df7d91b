// Matrix products: matmul with PyTorch's rules, and linear. Operands are read through their strides, never copied.
#include <algorithm>
#include <boost/container/small_vector.hpp>
#include <utility>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/error.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>
#include <regard/autograd/ops/linear_common.hpp>

namespace regard {

namespace {

using Offsets = boost::container::small_vector<int64_t, 64>;

/// The strides of x over `batch` (0 where x is broadcast); x's last two dimensions are its matrix.
Strides batch_strides(const Tensor& x, const Shape& batch) {
  Strides strides = Shape::filled(batch.dim(), 0);
  int64_t own = x.dim() - 2;
  for (int64_t i = 1; i <= own; ++i)
    if (x.shape()[own - i] != 1) strides[batch.dim() - i] = x.strides()[own - i];
  return strides;
}

/// For each entry of `batch` in row-major order, where it starts.
Offsets batch_offsets(const Shape& batch, const Strides& strides) {
  Offsets offsets(1, 0);
  for (int64_t d = 0; d < batch.dim(); ++d) {
    Offsets next;
    next.reserve(offsets.size() * static_cast<size_t>(batch[d]));
    for (int64_t offset : offsets)
      for (int64_t i = 0; i < batch[d]; ++i) next.push_back(offset + i * strides[d]);
    offsets = std::move(next);
  }
  return offsets;
}

/// y = a b + bias, which is [n] or undefined. a [..., m, k] and b [..., k, n] have at least two dimensions,
/// y [batch, m, n] is dense.
void multiply(const Tensor& y, const Tensor& a, const Tensor& b, const Tensor& bias) {
  int64_t k = a.shape().back(), n = b.shape().back();
  int64_t m = a.size(-2), a_row = a.strides()[a.dim() - 2];
  Shape batch = y.shape();
  batch.erase(batch.dim() - 1);
  batch.erase(batch.dim() - 1);
  if (y.numel() == 0) return;

  // Innermost batch dimensions that all use the same b, and whose rows of a lie evenly, are more rows of one product.
  Strides a_batch = batch_strides(a, batch), b_batch = batch_strides(b, batch);
  while (!batch.empty()) {
    int64_t last = batch.dim() - 1;
    if (batch[last] != 1) {
      if (b_batch[last] != 0) break;
      if (m == 1)
        a_row = a_batch[last];
      else if (a_batch[last] != a_row * m)
        break;
      m *= batch[last];
    }
    batch.erase(last);
    a_batch.erase(last);
    b_batch.erase(last);
  }

  if (bias.defined() && batch.empty()) {
    GemmEpilogue epilogue{.bias = bias.raw_data(), .bias_stride = bias.strides()[0]};
    kernels(y).gemm_epilogue(y.dtype(), m, n, k, a.raw_data(), a_row, a.strides().back(), b.raw_data(),
                             b.strides()[b.dim() - 2], b.strides().back(), y.raw_data(), epilogue);
    return;
  }
  if (bias.defined()) {
    Strides repeated = Shape::filled(y.dim(), 0);
    repeated[y.dim() - 1] = bias.strides()[0];
    kernels(y).copy(y, make_view(bias, y.shape(), repeated, bias.storage_offset()));
  }
  Strides c_batch = contiguous_strides(batch);
  for (int64_t& stride : c_batch) stride *= m * n;
  Offsets a_offsets = batch_offsets(batch, a_batch);
  Offsets b_offsets = batch_offsets(batch, b_batch);
  Offsets c_offsets = batch_offsets(batch, c_batch);
  GemmBatch list{batch.numel(), a_offsets.data(), b_offsets.data(), c_offsets.data()};
  kernels(y).gemm(y.dtype(), m, n, k, 1, a.raw_data(), a_row, a.strides().back(), b.raw_data(),
                  b.strides()[b.dim() - 2], b.strides().back(), bias.defined() ? 1 : 0, y.raw_data(), n, 1, list);
}

void check_operands(const char* op, const char* a_name, const Tensor& a, const char* b_name, const Tensor& b) {
  check_defined(op, a_name, a);
  check_defined(op, b_name, b);
  check_floating(op, a_name, a);
  check_floating(op, b_name, b);
  check<DTypeError>(a.dtype() == b.dtype(), op, a_name, " is ", a.dtype(), " and ", b_name, " is ", b.dtype(),
                    "; convert one with to(DType::", a.dtype(), ")");
  check_same_device(op, a, b);
}

Shape without_matrix(Shape shape) {
  shape.erase(shape.dim() - 1);
  shape.erase(shape.dim() - 1);
  return shape;
}

}  // namespace

Tensor as_rows(const Tensor& x) {
  if (x.dim() == 2) return x;
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) rows *= x.shape()[d];
  return reshape(x, {rows, x.shape().back()});
}

namespace {

/// Both with at least two dimensions, checked.
Tensor matrix_product(const Tensor& a, const Tensor& b) {
  Shape shape = broadcast_shapes("matmul", without_matrix(a.shape()), without_matrix(b.shape()));
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));
  Tensor y = empty(shape, TensorOptions(a.dtype(), a.device()));
  multiply(y, a, b, {});
  return record("matmul", y, inputs(a, b), saved(a, b), [](const Saved& s, const Tensor& g) {
    Grads grads(2);
    const Tensor b = s[1];
    if (s.needs(1)) {  // first: the left operand is free afterwards
      const Tensor left = s.take(0);
      // One b for all of the batch: a single product over all rows, not one a batch entry and their sum.
      if (without_matrix(b.shape()).numel() == 1 && left.dim() >= b.dim())
        grads[1] = reshape(matmul(transpose(as_rows(left), 0, 1), as_rows(g)), b.shape());
      else
        grads[1] = matmul(transpose(left, -2, -1), g);
    }
    if (s.needs(0)) grads[0] = matmul(g, transpose(b, -2, -1));
    return grads;
  });
}

}  // namespace

void check_linear(const char* op, const Tensor& x, const char* weight_name, const Tensor& weight, const char* bias_name,
                  const Tensor& bias) {
  check_operands(op, "input", x, weight_name, weight);
  check<ShapeError>(weight.dim() == 2, op, weight_name, " ", weight.shape(), ": should be [out, in]");
  check<ShapeError>(x.dim() > 0, op, "input ", x.shape(), " and ", weight_name, " ", weight.shape(),
                    ": the input should be [..., ", weight.size(1), "]");
  check<ShapeError>(x.size(-1) == weight.size(1), op, "input ", x.shape(), " and ", weight_name, " ", weight.shape(),
                    ": the input's last dimension ", x.size(-1), " should be ", weight.size(1));
  if (bias.defined()) {
    check_operands(op, "input", x, bias_name, bias);
    check<ShapeError>(bias.shape() == Shape{weight.size(0)}, op, bias_name, " ", bias.shape(), " and ", weight_name,
                      " ", weight.shape(), ": the bias should be [", weight.size(0), "]");
  }
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  if (autocast::narrows("matmul", a, b)) [[unlikely]]
    return matmul(autocast::narrow(a), autocast::narrow(b));
  check_operands("matmul", "a", a, "b", b);
  check<ShapeError>(a.dim() > 0 && b.dim() > 0, "matmul", a.shape(), " x ", b.shape(),
                    ": both need at least one dimension; multiply by a single number with *");
  int64_t a_inner = a.size(-1), b_inner = b.size(b.dim() == 1 ? -1 : -2);
  check<ShapeError>(a_inner == b_inner, "matmul", a.shape(), " x ", b.shape(), ": inner dimensions ", a_inner, " and ",
                    b_inner, " differ");
  if (a.dim() == 1 && b.dim() == 1) return squeeze(squeeze(matmul(unsqueeze(a, 0), unsqueeze(b, 1)), 1), 0);
  if (a.dim() == 1) return squeeze(matmul(unsqueeze(a, 0), b), -2);
  if (b.dim() == 1) return squeeze(matmul(a, unsqueeze(b, 1)), -1);

  Shape a_batch = without_matrix(a.shape()), b_batch = without_matrix(b.shape());
  for (int64_t i = 1; i <= std::min(a_batch.dim(), b_batch.dim()); ++i) {
    int64_t a_size = a_batch[a_batch.dim() - i], b_size = b_batch[b_batch.dim() - i];
    check<ShapeError>(a_size == b_size || a_size == 1 || b_size == 1, "matmul", a.shape(), " x ", b.shape(),
                      ": batch dimensions ", a_batch, " and ", b_batch, " do not broadcast");
  }
  return matrix_product(a, b);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (autocast::narrows("linear", x, weight, bias)) [[unlikely]]
    return linear(autocast::narrow(x), autocast::narrow(weight), autocast::narrow(bias));
  check_linear("linear", x, "weight", weight, "bias", bias);

  Shape shape = x.shape();
  shape[shape.dim() - 1] = weight.size(0);
  Tensor y = empty(shape, TensorOptions(x.dtype(), x.device()));
  // x, weight and y as plain handles: what follows computes, record() below makes the graph.
  Tensor rows = x.dim() > 1 ? x : make_view(x, {1, x.size(0)}, {0, x.strides()[0]}, x.storage_offset());
  Tensor result = x.dim() > 1 ? y : make_view(y, {1, y.size(0)}, {y.size(0), 1}, 0);
  Tensor columns = make_view(weight, {weight.size(1), weight.size(0)}, {weight.strides()[1], weight.strides()[0]},
                             weight.storage_offset());
  multiply(result, rows, columns, bias);

  return record("linear", y, inputs(x, weight, bias), saved(x, weight), [](const Saved& s, const Tensor& g) {
    Grads grads(3);
    const Tensor weight = s.needs(0) ? s[1] : Tensor();
    if (s.needs(1)) {  // first: the input is free afterwards
      const Tensor input = s.take(0);
      grads[1] = input.dim() > 1 ? matmul(transpose(as_rows(g), 0, 1), as_rows(input))
                                 : matmul(unsqueeze(g, 1), unsqueeze(input, 0));
    }
    if (s.needs(2)) grads[2] = sum_to(g, {g.size(-1)});
    if (s.needs(0)) grads[0] = matmul(g, weight);
    return grads;
  });
}

}  // namespace regard
