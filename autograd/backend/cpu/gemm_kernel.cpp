// The table's matrix products: untyped pointers and offset lists to gemm.hpp.
#include <regard/autograd/backend/cpu/elementwise.hpp>
#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/gemm.hpp>
#include <regard/autograd/backend/cpu/gemm_finish.hpp>

namespace regard::cpu_backend {

void gemm(DType dtype, int64_t m, int64_t n, int64_t k, double alpha, const void* a, int64_t a_row, int64_t a_column,
          const void* b, int64_t b_row, int64_t b_column, double beta, void* c, int64_t c_row, int64_t c_column,
          const GemmBatch& batch) {
  visit_compute(dtype, [&]<class T>(T) {
    Matrix<const T> left{static_cast<const T*>(a), a_row, a_column};
    Matrix<const T> right{static_cast<const T*>(b), b_row, b_column};
    Matrix<T> result{static_cast<T*>(c), c_row, c_column};
    auto first = [](const int64_t* offsets) { return offsets == nullptr ? 0 : offsets[0]; };
    if (batch.count == 1)
      gemm<T>(m, n, k, static_cast<T>(alpha), left.offset_by(first(batch.a)), right.offset_by(first(batch.b)),
              static_cast<T>(beta), result.offset_by(first(batch.c)));
    else
      gemm_batched<T>(batch.count, batch.a, batch.b, batch.c, m, n, k, static_cast<T>(alpha), left, right,
                      static_cast<T>(beta), result);
  });
}

void gemm_epilogue(DType dtype, int64_t m, int64_t n, int64_t k, const void* a, int64_t a_row, int64_t a_column,
                   const void* b, int64_t b_row, int64_t b_column, void* c, const GemmEpilogue& epilogue) {
  const auto unary_loop = [dtype](UnaryOp op) {
    const UnaryLoop loop = simd_unary(op, dtype);
    return loop.run ? loop.run : plain_unary(op, dtype).run;
  };
  const auto binary_loop = [dtype](BinaryOp op) {
    const BinaryLoop loop = simd_binary(op, dtype);
    return loop.run ? loop.run : plain_binary(op, dtype).run;
  };
  GemmFinish finish{static_cast<char*>(c), static_cast<size_t>(element_size(dtype))};
  finish.before = static_cast<char*>(epilogue.before);
  finish.x = static_cast<const char*>(epilogue.x);
  finish.activated = static_cast<char*>(epilogue.activated);
  finish.residual = static_cast<const char*>(epilogue.residual);
  if (epilogue.activation) finish.activation = unary_loop(*epilogue.activation);
  if (epilogue.activation_grad) finish.activation_grad = binary_loop(*epilogue.activation_grad);
  if (epilogue.activation_again) finish.activation_again = unary_loop(*epilogue.activation_again);
  if (epilogue.residual != nullptr) finish.add = binary_loop(BinaryOp::add);
  const bool any = finish.before != nullptr || finish.activation != nullptr || finish.activation_grad != nullptr ||
                   finish.activation_again != nullptr || finish.add != nullptr;
  visit_compute(dtype, [&]<class T>(T) {
    gemm_finished<T>(m, n, k, {static_cast<const T*>(a), a_row, a_column}, {static_cast<const T*>(b), b_row, b_column},
                     {static_cast<const T*>(epilogue.bias), 0, epilogue.bias_stride}, {static_cast<T*>(c), n, 1},
                     any ? &finish : nullptr);
  });
}

}  // namespace regard::cpu_backend
