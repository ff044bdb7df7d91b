// Tensor's methods that mirror functions of ops.hpp.
#include <regard/autograd/ops.hpp>

namespace regard {

// ---- Copies and casts
Tensor Tensor::clone() const { return regard::clone(*this); }
Tensor Tensor::to(DType dtype) const { return regard::to(*this, dtype); }
Tensor Tensor::to(Device device) const { return regard::to(*this, device); }
Tensor Tensor::contiguous() const { return regard::contiguous(*this); }

// ---- Views
Tensor Tensor::operator[](int64_t index) const { return regard::select(*this, 0, index); }
Tensor Tensor::operator[](Range range) const { return regard::slice(*this, 0, range.start, range.stop, range.step); }
Tensor Tensor::index(std::initializer_list<Index> indices) const {
  check<IndexError>(static_cast<int64_t>(indices.size()) <= dim(), "index", indices.size(),
                    " indices for a tensor of shape ", shape());
  Tensor result = *this;
  int64_t at = 0;
  for (const Index& index : indices) {
    if (index.is_range)
      result = regard::slice(result, at++, index.range.start, index.range.stop, index.range.step);
    else
      result = regard::select(result, at, index.position);
  }
  return result;
}
Tensor Tensor::view(const Shape& shape) const { return regard::view(*this, shape); }
Tensor Tensor::reshape(const Shape& shape) const { return regard::reshape(*this, shape); }
Tensor Tensor::flatten(int64_t start_dim, int64_t end_dim) const { return regard::flatten(*this, start_dim, end_dim); }
Tensor Tensor::permute(const Shape& dims) const { return regard::permute(*this, dims); }
Tensor Tensor::transpose(int64_t dim0, int64_t dim1) const { return regard::transpose(*this, dim0, dim1); }
Tensor Tensor::t() const {
  check<ShapeError>(dim() <= 2, "t", "a tensor of shape ", shape(),
                    " has more than two dimensions: say which with transpose(dim0, dim1)");
  return dim() < 2 ? *this : regard::transpose(*this, 0, 1);
}
Tensor Tensor::expand(const Shape& shape) const { return regard::expand(*this, shape); }
Tensor Tensor::squeeze() const { return regard::squeeze(*this); }
Tensor Tensor::squeeze(int64_t dim) const { return regard::squeeze(*this, dim); }
Tensor Tensor::unsqueeze(int64_t dim) const { return regard::unsqueeze(*this, dim); }
Tensor Tensor::slice(int64_t dim, int64_t start, int64_t stop, int64_t step) const {
  return regard::slice(*this, dim, start, stop, step);
}
Tensor Tensor::narrow(int64_t dim, int64_t start, int64_t length) const {
  return regard::narrow(*this, dim, start, length);
}
Tensor Tensor::select(int64_t dim, int64_t index) const { return regard::select(*this, dim, index); }
Tensors Tensor::split(int64_t split_size, int64_t dim) const { return regard::split(*this, split_size, dim); }
Tensors Tensor::chunk(int64_t chunks, int64_t dim) const { return regard::chunk(*this, chunks, dim); }
Tensor Tensor::flip(Dims dims) const { return regard::flip(*this, dims); }
Tensor Tensor::triu(int64_t diagonal) const { return regard::triu(*this, diagonal); }
Tensor Tensor::tril(int64_t diagonal) const { return regard::tril(*this, diagonal); }

// ---- Elementwise
Tensor Tensor::neg() const { return regard::neg(*this); }
Tensor Tensor::pow(Scalar exponent) const { return regard::pow(*this, exponent); }
Tensor Tensor::pow(const Tensor& exponent) const { return regard::pow(*this, exponent); }
Tensor Tensor::exp() const { return regard::exp(*this); }
Tensor Tensor::log() const { return regard::log(*this); }
Tensor Tensor::sqrt() const { return regard::sqrt(*this); }
Tensor Tensor::rsqrt() const { return regard::rsqrt(*this); }
Tensor Tensor::abs() const { return regard::abs(*this); }
Tensor Tensor::tanh() const { return regard::tanh(*this); }
Tensor Tensor::sigmoid() const { return regard::sigmoid(*this); }
Tensor Tensor::relu() const { return regard::relu(*this); }
Tensor Tensor::erf() const { return regard::erf(*this); }
Tensor Tensor::sin() const { return regard::sin(*this); }
Tensor Tensor::cos() const { return regard::cos(*this); }
Tensor Tensor::clamp(std::optional<double> min, std::optional<double> max) const {
  return regard::clamp(*this, min, max);
}
Tensor Tensor::masked_fill(const Tensor& mask, Scalar value) const { return regard::masked_fill(*this, mask, value); }
Tensor Tensor::logical_not() const { return regard::logical_not(*this); }

// ---- Reductions
Tensor Tensor::sum() const { return regard::sum(*this); }
Tensor Tensor::sum(Dims dims, Flag keepdim) const { return regard::sum(*this, dims, keepdim); }
Tensor Tensor::mean() const { return regard::mean(*this); }
Tensor Tensor::mean(Dims dims, Flag keepdim) const { return regard::mean(*this, dims, keepdim); }
Tensor Tensor::var() const { return regard::var(*this); }
Tensor Tensor::var(Dims dims, Flag unbiased, Flag keepdim) const { return regard::var(*this, dims, unbiased, keepdim); }
Tensor Tensor::max() const { return regard::max(*this); }
std::pair<Tensor, Tensor> Tensor::max(int64_t dim, Flag keepdim) const { return regard::max(*this, dim, keepdim); }
Tensor Tensor::min() const { return regard::min(*this); }
std::pair<Tensor, Tensor> Tensor::min(int64_t dim, Flag keepdim) const { return regard::min(*this, dim, keepdim); }
Tensor Tensor::amax(Dims dims, Flag keepdim) const { return regard::amax(*this, dims, keepdim); }
Tensor Tensor::amin(Dims dims, Flag keepdim) const { return regard::amin(*this, dims, keepdim); }
Tensor Tensor::argmax() const { return regard::argmax(*this); }
Tensor Tensor::argmax(int64_t dim, Flag keepdim) const { return regard::argmax(*this, dim, keepdim); }
Tensor Tensor::argmin() const { return regard::argmin(*this); }
Tensor Tensor::argmin(int64_t dim, Flag keepdim) const { return regard::argmin(*this, dim, keepdim); }
Tensor Tensor::logsumexp(Dims dims, Flag keepdim) const { return regard::logsumexp(*this, dims, keepdim); }
Tensor Tensor::any() const { return regard::any(*this); }
Tensor Tensor::any(Dims dims, Flag keepdim) const { return regard::any(*this, dims, keepdim); }
Tensor Tensor::all() const { return regard::all(*this); }
Tensor Tensor::all(Dims dims, Flag keepdim) const { return regard::all(*this, dims, keepdim); }
Tensor Tensor::norm() const { return regard::norm(*this); }

// ---- The rest
Tensor Tensor::matmul(const Tensor& other) const { return regard::matmul(*this, other); }
Tensor Tensor::softmax(int64_t dim) const { return regard::softmax(*this, dim); }
Tensor Tensor::log_softmax(int64_t dim) const { return regard::log_softmax(*this, dim); }
Tensor Tensor::gather(int64_t dim, const Tensor& index) const { return regard::gather(*this, dim, index); }
Tensor Tensor::scatter_add(int64_t dim, const Tensor& index, const Tensor& source) const {
  return regard::scatter_add(*this, dim, index, source);
}
Tensor Tensor::index_select(int64_t dim, const Tensor& index) const { return regard::index_select(*this, dim, index); }

}  // namespace regard
