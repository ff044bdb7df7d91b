// The table's matrix products: what cuBLASLt takes goes there as it lies, what it does not is copied to where it does.
// Of f32, f64, bf16 and f16; 16-bit elements are multiplied exactly and summed in f32, and a sum is rounded once, after
// the bias or what stood in c is added to it.
#include <algorithm>
#include <optional>

#include <regard/autograd/backend/cuda/cublas.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/gemm_batch.hpp>
#include <regard/autograd/backend/cuda/gemm_copy.hpp>
#include <regard/autograd/backend/cuda/gemm_finish.hpp>
#include <regard/autograd/backend/cuda/runtime.hpp>
#include <regard/autograd/error.hpp>

namespace regard::cuda_backend {

namespace {

/// Where the matrices of a run lie. A batch stride of 0: one for all.
struct Matrices {
  void* data;
  int64_t rows, columns;
  MatrixStrides strides;

  /// Whether each row, or each column, is dense and at least its length from the next. The stride over a dimension of
  /// size 1 says nothing.
  bool by_rows() const { return (strides.column == 1 || columns == 1) && (strides.row >= columns || rows == 1); }
  bool by_columns() const { return (strides.row == 1 || rows == 1) && (strides.column >= rows || columns == 1); }
  /// From one of the dense lines to the next.
  int64_t leading(bool rows_dense) const {
    if (rows_dense) return rows == 1 ? columns : strides.row;
    return columns == 1 ? rows : strides.column;
  }
};

/// Dense copies of matrices whose strides cuBLASLt does not take; for the others, themselves.
class Dense {
 public:
  /// With `filled` the copies are made now.
  Dense(const char* op, cudaStream_t stream, Device device, DType dtype, const Matrices& given, int64_t batch,
        bool filled)
      : matrices_(given) {
    if (given.by_rows() || given.by_columns()) return;
    const int64_t size = given.rows * given.columns;
    sizes_ = {given.strides.batch == 0 ? 1 : batch, given.rows, given.columns};
    memory_.emplace(sizes_.batch * size * element_size(dtype), device);
    matrices_.data = memory_->as<void>();
    // In the order in which the elements lie now, more or less: neighbours are read together.
    if (given.strides.column <= given.strides.row)
      matrices_.strides = {size, given.columns, 1};
    else
      matrices_.strides = {size, 1, given.rows};
    if (sizes_.batch == 1) matrices_.strides.batch = 0;
    if (filled) copy_matrices(op, stream, dtype, sizes_, matrices_.data, matrices_.strides, given.data, given.strides);
  }
  const Matrices& matrices() const { return matrices_; }
  /// The copies into the matrices that they stand for.
  void put_back(const char* op, cudaStream_t stream, DType dtype, const Matrices& given) const {
    if (memory_) copy_matrices(op, stream, dtype, sizes_, given.data, given.strides, matrices_.data, matrices_.strides);
  }

 private:
  Matrices matrices_;
  MatrixSizes sizes_{};
  std::optional<Scratch> memory_;
};

BlasMatrix operand(const Matrices& matrices, bool result_by_rows) {
  const bool by_rows = matrices.by_rows();
  return {matrices.data, matrices.leading(by_rows), matrices.strides.batch, by_rows != result_by_rows};
}

/// c = alpha a b + beta addend [+ bias], all in layouts that cuBLASLt takes. The addend is c or lies as c does.
/// What lies by rows is, by columns, the transpose: there c' = b' a' is computed.
bool multiply(const char* op, cudaStream_t stream, DType dtype, double alpha, const Matrices& a, const Matrices& b,
              double beta, const Matrices& c, int64_t batch, const void* addend, const void* bias) {
  const bool by_rows = c.by_rows();
  BlasProduct product;
  product.dtype = dtype;
  product.rows = by_rows ? c.columns : c.rows;
  product.columns = by_rows ? c.rows : c.columns;
  product.depth = a.columns;
  product.batch = batch;
  product.alpha = alpha;
  product.beta = beta;
  product.a = operand(by_rows ? b : a, by_rows);
  product.b = operand(by_rows ? a : b, by_rows);
  product.c = addend;
  product.d = c.data;
  product.leading = c.leading(by_rows);
  product.batch_stride = c.strides.batch;
  product.bias = bias;
  return blas_multiply(op, stream, product);
}

void need(bool done, const char* op, DType dtype, const Matrices& a, const Matrices& b, int64_t batch) {
  check<DeviceError>(done, op, "cuBLASLt has no way to compute [", a.rows, ", ", a.columns, "] x [", b.rows, ", ",
                     b.columns, "] in ", dtype, ", ", batch, " times");
}

Device current_device(const char* op) {
  int index = 0;
  check_cuda(op, cudaGetDevice(&index));
  return cuda(index);
}

void* moved(const void* data, int64_t elements, DType dtype) {
  return const_cast<char*>(static_cast<const char*>(data)) + elements * element_size(dtype);
}

/// A bias that cuBLASLt can add: dense and aligned.
class Bias {
 public:
  Bias(const char* op, cudaStream_t stream, Device device, DType dtype, int64_t n, const GemmEpilogue& epilogue)
      : data_(epilogue.bias) {
    const bool dense = epilogue.bias_stride == 1 || n == 1;
    if (!data_ || (dense && reinterpret_cast<uintptr_t>(data_) % blas_bias_alignment == 0)) return;
    memory_.emplace(n * element_size(dtype), device);
    copy_matrices(op, stream, dtype, {1, 1, n}, memory_->as<void>(), {0, 0, 1}, data_, {0, 0, epilogue.bias_stride});
    data_ = memory_->as<void>();
  }
  const void* data() const { return data_; }

 private:
  const void* data_;
  std::optional<Scratch> memory_;
};

}  // namespace

void gemm(DType dtype, int64_t m, int64_t n, int64_t k, double alpha, const void* a, int64_t a_row, int64_t a_column,
          const void* b, int64_t b_row, int64_t b_column, double beta, void* c, int64_t c_row, int64_t c_column,
          const GemmBatch& batch) {
  constexpr const char* op = "gemm";
  if (m <= 0 || n <= 0 || batch.count <= 0) return;
  cudaStream_t stream = stream_of_memory(c);
  const Device device = current_device(op);
  for (const BatchRun& run : even_runs(batch)) {
    const Matrices given{moved(c, run.start[2], dtype), m, n, {run.step[2], c_row, c_column}};
    if (k <= 0 || alpha == 0) {
      copy_matrices(op, stream, dtype, {run.count, m, n}, given.data, given.strides, given.data, given.strides, beta);
      continue;
    }
    const Matrices left{moved(a, run.start[0], dtype), m, k, {run.step[0], a_row, a_column}};
    const Matrices right{moved(b, run.start[1], dtype), k, n, {run.step[1], b_row, b_column}};
    const Dense dense_left(op, stream, device, dtype, left, run.count, true);
    const Dense dense_right(op, stream, device, dtype, right, run.count, true);
    const Dense result(op, stream, device, dtype, given, run.count, beta != 0);
    need(multiply(op, stream, dtype, alpha, dense_left.matrices(), dense_right.matrices(), beta, result.matrices(),
                  run.count, result.matrices().data, nullptr),
         op, dtype, left, right, run.count);
    result.put_back(op, stream, dtype, given);
  }
}

void gemm_epilogue(DType dtype, int64_t m, int64_t n, int64_t k, const void* a, int64_t a_row, int64_t a_column,
                   const void* b, int64_t b_row, int64_t b_column, void* c, const GemmEpilogue& epilogue) {
  constexpr const char* op = "gemm_epilogue";
  if (m <= 0 || n <= 0) return;
  cudaStream_t stream = stream_of_memory(c);
  const Device device = current_device(op);
  // What comes before the activation is the product itself: c is written once, by the pass behind it.
  const Matrices product{epilogue.before ? epilogue.before : c, m, n, {0, n, 1}};
  // A residual alone is what cuBLASLt adds in the product's own pass. Behind a bias it is not: the sum of the two would
  // be another one, in the last digit.
  const bool only_residual = epilogue.residual && !epilogue.bias && !epilogue.before && !epilogue.activation &&
                             !epilogue.activation_grad && !epilogue.activation_again;
  const auto start_with = [&](const void* addend, MatrixStrides strides, double factor = 1) {
    copy_matrices(op, stream, dtype, {1, m, n}, product.data, product.strides, addend, strides, factor);
  };
  const MatrixStrides bias_rows{0, 0, epilogue.bias_stride};
  if (k <= 0) {
    if (epilogue.bias)
      start_with(epilogue.bias, bias_rows);
    else
      start_with(product.data, product.strides, 0);
  } else {
    const Matrices left{moved(a, 0, dtype), m, k, {0, a_row, a_column}};
    const Matrices right{moved(b, 0, dtype), k, n, {0, b_row, b_column}};
    const Dense dense_left(op, stream, device, dtype, left, 1, true);
    const Dense dense_right(op, stream, device, dtype, right, 1, true);
    const auto run = [&](double beta, const void* addend, const void* bias) {
      return multiply(op, stream, dtype, 1, dense_left.matrices(), dense_right.matrices(), beta, product, 1, addend,
                      bias);
    };
    if (only_residual) {
      need(run(1, epilogue.residual, nullptr), op, dtype, left, right, 1);
      return;
    }
    const Bias bias(op, stream, device, dtype, n, epilogue);
    if (!run(0, product.data, bias.data())) {
      // Not with a bias, then: the product is added to it.
      if (epilogue.bias) start_with(epilogue.bias, bias_rows);
      need(epilogue.bias && run(1, product.data, nullptr), op, dtype, left, right, 1);
    }
  }
  if (needs_finish(epilogue)) finish_gemm(stream, dtype, m * n, c, product.data, epilogue);
}

}  // namespace regard::cuda_backend
