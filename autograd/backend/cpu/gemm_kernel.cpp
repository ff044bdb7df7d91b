// The table's matrix product: untyped pointers and offset lists to gemm.hpp.
#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/gemm.hpp>

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

}  // namespace regard::cpu_backend
