// Matrix products on BLIS: any strides, any number of threads, the same bits for every number of threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace regard::cpu_backend {

/// A matrix in memory that somebody else keeps. Element (i, j) is data[i * row_stride + j * column_stride]. Strides
/// are counted in elements and never negative; an operand's may be 0 (expanded) or overlap, a result's may not.
template <class T>
struct Matrix {
  T* data;
  int64_t row_stride, column_stride;

  Matrix transposed() const { return {data, column_stride, row_stride}; }
  Matrix offset_by(int64_t elements) const { return {data + elements, row_stride, column_stride}; }
};

/// C = alpha * A B + beta * C with A [m, k], B [k, n], C [m, n]; T is float or double. C shares no memory with A or B.
/// With beta == 0 C is only written (a NaN in it does not survive); with k == 0 or alpha == 0 C becomes beta * C and
/// A and B are not read. Bits depend on sizes, strides and the processor alone, never on the number of threads.
template <class T>
void gemm(int64_t m, int64_t n, int64_t k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta, Matrix<T> c);

/// `batch` products of equal sizes and strides: product i works on a, b and c moved on by a_offsets[i], b_offsets[i]
/// and c_offsets[i] elements. a_offsets or b_offsets may be null, which means 0 throughout; the matrices that
/// c_offsets gives never overlap. Bits may differ from those of the same product in a batch of another size.
template <class T>
void gemm_batched(int64_t batch, const int64_t* a_offsets, const int64_t* b_offsets, const int64_t* c_offsets,
                  int64_t m, int64_t n, int64_t k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta, Matrix<T> c);

struct GemmFinish;
/// C = A B + addend, of one product, and what `finish` says is done to it meanwhile (both may be null). The addend [m,
/// n] has any strides: a bias is one whose rows are all the same.
template <class T>
void gemm_finished(int64_t m, int64_t n, int64_t k, Matrix<const T> a, Matrix<const T> b, Matrix<const T> addend,
                   Matrix<T> c, const GemmFinish* finish);

/// What BLIS chose for this processor.
struct BlisKernels {
  std::string version;    ///< "0.9.0"
  std::string family;     ///< "zen3", "skx", "generic" ...
  bool generic;           ///< plain C kernels, several times slower than the processor allows
  bool chosen_by_regard;  ///< BLIS does not know this processor and would have taken its generic kernels
};
const BlisKernels& blis_kernels();

/// The number that BLIS_ARCH_TYPE takes for a kernel family by name; -1 for a name this BLIS does not know.
int blis_architecture_number(std::string_view family);

}  // namespace regard::cpu_backend
