// cuBLASLt's products by BLIS. Everything is checked as the library does, or more strictly: that matrices lie in their
// buffers, that an algorithm is used for what it was chosen for, that types and sizes fit.
#include <cublasLt.h>

#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <regard/autograd/backend/cpu/blis_gemm.hpp>
#include <regard/autograd/dtype.hpp>

#include "fibers.hpp"

struct cublasLtContext {
  int alive = 1;
};

namespace cuda_host {

namespace {

using regard::bfloat16;
using regard::float16;
using regard::cpu_backend::Matrix;

// What stands in the opaque structures.
constexpr uint64_t layout_mark = 0x6c61796f7574, operation_mark = 0x6f7065726174, preference_mark = 0x707265666572,
                   algorithm_mark = 0x616c676f7269;
struct Layout {
  uint64_t mark = layout_mark;
  int32_t type = 0, batch = 1;
  uint64_t rows = 0, columns = 0;
  int64_t leading = 0, batch_stride = 0;
};
struct Operation {
  uint64_t mark = operation_mark;
  int32_t compute = 0, scale = 0, transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT, unused = 0;
  const void* bias = nullptr;
};
struct Preference {
  uint64_t mark = preference_mark;
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK, unused = 0;
  uint32_t alignments[4] = {256, 256, 256, 256};  // a, b, c, d
};
struct Algorithm {
  uint64_t mark = algorithm_mark;
  uint64_t problem = 0;  // what it was chosen for
  uint64_t workspace = 0;
  uint32_t alignments[4] = {}, bias_alignment = 0, unused = 0;
};

template <class To, class Opaque>
To load(const Opaque* from) {
  static_assert(sizeof(To) <= sizeof(Opaque));
  To result;
  std::memcpy(static_cast<void*>(&result), from, sizeof(To));
  return result;
}
template <class From, class Opaque>
void store(Opaque* to, const From& from) {
  std::memset(to, 0, sizeof(Opaque));
  std::memcpy(to, &from, sizeof(From));
}

std::mutex& mutex() {
  static std::mutex one;
  return one;
}
std::string reason;
BlasCounts counts{};
bool bias_is_known = true;

cublasStatus_t invalid(const std::string& why) {
  reason = why;
  return CUBLAS_STATUS_INVALID_VALUE;
}

template <class T>
cublasStatus_t take(T& to, const void* value, size_t bytes) {
  if (!value || bytes != sizeof(T)) return invalid("an attribute of " + std::to_string(bytes) + " bytes");
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

size_t element_bytes(int32_t type) {
  switch (type) {
    case CUDA_R_32F:
      return 4;
    case CUDA_R_64F:
      return 8;
    default:
      return 2;
  }
}

// ---- Checks

uint32_t alignment_of(const void* data) {
  uint32_t alignment = 256;
  while (reinterpret_cast<uintptr_t>(data) % alignment != 0) alignment /= 2;
  return alignment;
}

std::string layout_mistake(const char* name, const Layout& layout) {
  const std::string which = std::string("matrix ") + name + ": ";
  if (layout.mark != layout_mark) return which + "the layout was not initialized";
  if (layout.rows < 1 || layout.columns < 1) return which + "a size is 0";
  if (layout.rows > INT32_MAX || layout.columns > INT32_MAX) return which + "a size beyond 32 bits";
  if (layout.leading < static_cast<int64_t>(layout.rows))
    return which + "the leading dimension " + std::to_string(layout.leading) + " is below the rows, " +
           std::to_string(layout.rows);
  if (layout.batch < 1) return which + "the batch is empty";
  if (layout.batch_stride < 0) return which + "the batch's stride is below 0";
  return "";
}

// The first thing that is wrong; empty where nothing is.
std::string mistake_in(const Operation& op, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  if (op.mark != operation_mark) return "the operation was not initialized";
  const std::pair<const char*, const Layout&> all[] = {{"a", a}, {"b", b}, {"c", c}, {"d", d}};
  for (const auto& [name, layout] : all) {
    if (std::string mistake = layout_mistake(name, layout); !mistake.empty()) return mistake;
    if (layout.type != d.type) return "matrices of several types";
    if (layout.batch != d.batch) return "batches of several sizes";
  }
  const bool half = d.type == CUDA_R_16BF || d.type == CUDA_R_16F;
  const bool fits = d.type == CUDA_R_64F ? op.compute == CUBLAS_COMPUTE_64F && op.scale == CUDA_R_64F
                    : half               ? op.compute == CUBLAS_COMPUTE_32F && op.scale == CUDA_R_32F
                           : d.type == CUDA_R_32F && op.compute != CUBLAS_COMPUTE_64F && op.scale == CUDA_R_32F;
  if (!fits) return "the types of elements, sums and factors do not fit";
  const bool ta = op.transpose_a == CUBLAS_OP_T, tb = op.transpose_b == CUBLAS_OP_T;
  const uint64_t depth = ta ? a.rows : a.columns;
  if ((ta ? a.columns : a.rows) != d.rows || (tb ? b.rows : b.columns) != d.columns ||
      (tb ? b.columns : b.rows) != depth || c.rows != d.rows || c.columns != d.columns)
    return "the matrices' sizes do not fit";
  if (op.epilogue != CUBLASLT_EPILOGUE_DEFAULT && op.epilogue != CUBLASLT_EPILOGUE_BIAS) return "the epilogue";
  if (op.epilogue == CUBLASLT_EPILOGUE_BIAS && !op.bias) return "there is no bias";
  if (d.batch > 1 && d.batch_stride == 0) return "the results of a batch lie on each other";
  return "";
}

// Numbers that tell a problem from others.
uint64_t problem_of(Operation op, std::initializer_list<Layout> layouts) {
  op.bias = nullptr;
  uint64_t hash = 14695981039346656037U;
  const auto add = [&](const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211U;
  };
  add(&op, sizeof op);
  for (const Layout& layout : layouts) add(&layout, sizeof layout);
  return hash;
}

std::string memory_mistake(const char* name, const void* data, const Layout& layout, uint32_t promised) {
  const std::string which = std::string("matrix ") + name + ": ";
  if (!data) return which + "no memory";
  const size_t bytes = element_bytes(layout.type);
  if (alignment_of(data) < bytes || alignment_of(data) < promised)
    return which + "aligned to " + std::to_string(alignment_of(data)) + " bytes, and " + std::to_string(promised) +
           " were promised";
  const int64_t last = (layout.batch - 1) * layout.batch_stride +
                       static_cast<int64_t>(layout.columns - 1) * layout.leading + static_cast<int64_t>(layout.rows);
  if (static_cast<size_t>(last) * bytes > room(data))
    return which + std::to_string(static_cast<size_t>(last) * bytes) + " bytes reach beyond its buffer, which has " +
           std::to_string(room(data)) + " left";
  return "";
}

// ---- The product

float rounded_to_tf32(float x) {  // 10 bits of fraction
  auto word = std::bit_cast<uint32_t>(x);
  if ((word & 0x7f800000U) == 0x7f800000U) return x;
  word = (word + 0xfffU + ((word >> 13) & 1U)) & ~0x1fffU;
  return std::bit_cast<float>(word);
}

template <class T>
float widened(T x, int32_t compute) {
  const auto value = static_cast<float>(x);
  if (compute == CUBLAS_COMPUTE_32F_FAST_16BF) return static_cast<float>(bfloat16(value));
  if (compute == CUBLAS_COMPUTE_32F_FAST_TF32) return rounded_to_tf32(value);
  return value;
}

// op(x) of one matrix, by its strides; rounded in memory where the computation rounds.
template <class Sum, class T>
Matrix<const Sum> operand(const T* data, const Layout& layout, bool transposed, int32_t compute,
                          std::vector<Sum>& memory) {
  Matrix<const Sum> result{nullptr, 1, layout.leading};
  if constexpr (std::is_same_v<Sum, T>) result.data = data;
  const auto rows = static_cast<int64_t>(layout.rows), columns = static_cast<int64_t>(layout.columns);
  if constexpr (std::is_same_v<Sum, float>) {
    if (compute != CUBLAS_COMPUTE_32F || !std::is_same_v<T, float>) {
      memory.clear();
      for (int64_t j = 0; j < columns; ++j)
        for (int64_t i = 0; i < rows; ++i) memory.push_back(widened(data[i + j * layout.leading], compute));
      result = {memory.data(), 1, rows};
    }
  }
  return transposed ? result.transposed() : result;
}

template <class T>
void multiply(const Operation& op, const void* alpha, const void* a, const Layout& a_layout, const void* b,
              const Layout& b_layout, const void* beta, const void* c, const Layout& c_layout, void* d,
              const Layout& d_layout) {
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const Sum alpha_value = *static_cast<const Sum*>(alpha), beta_value = *static_cast<const Sum*>(beta);
  const auto m = static_cast<int64_t>(d_layout.rows), n = static_cast<int64_t>(d_layout.columns);
  const bool ta = op.transpose_a == CUBLAS_OP_T, tb = op.transpose_b == CUBLAS_OP_T;
  const auto k = static_cast<int64_t>(ta ? a_layout.rows : a_layout.columns);
  std::vector<Sum> a_memory, b_memory, sums(static_cast<size_t>(m * n));
  for (int32_t item = 0; item < d_layout.batch; ++item) {
    const T* from = static_cast<const T*>(c) + item * c_layout.batch_stride;
    T* to = static_cast<T*>(d) + item * d_layout.batch_stride;
    const auto left =
        operand(static_cast<const T*>(a) + item * a_layout.batch_stride, a_layout, ta, op.compute, a_memory);
    const auto right =
        operand(static_cast<const T*>(b) + item * b_layout.batch_stride, b_layout, tb, op.compute, b_memory);
    const auto at = [m](int64_t i, int64_t j) { return static_cast<size_t>(i + j * m); };
    if (beta_value != 0)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t i = 0; i < m; ++i) sums[at(i, j)] = static_cast<Sum>(from[i + j * c_layout.leading]);
    regard::cpu_backend::blis_gemm(m, n, k, alpha_value, left, right, beta_value, Matrix<Sum>{sums.data(), 1, m});
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < m; ++i) {
        Sum value = sums[at(i, j)];
        if (op.epilogue == CUBLASLT_EPILOGUE_BIAS) value += static_cast<Sum>(static_cast<const T*>(op.bias)[i]);
        to[i + j * d_layout.leading] = static_cast<T>(value);
      }
  }
}

}  // namespace

BlasCounts blas_counts() {
  std::lock_guard lock(mutex());
  return counts;
}
void set_blas_bias(bool on) {
  std::lock_guard lock(mutex());
  bias_is_known = on;
}

}  // namespace cuda_host

using namespace cuda_host;

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "";
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_INVALID_VALUE ? reason.c_str() : cublasLtGetStatusName(status);
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static cublasLtContext one;
  *handle = &one;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType type, uint64_t rows, uint64_t cols,
                                        int64_t ld) {
  Layout made;
  made.type = type;
  made.rows = rows;
  made.columns = cols;
  made.leading = ld;
  store(layout, made);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  auto made = load<Layout>(layout);
  const cublasStatus_t status = attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? take(made.batch, value, bytes)
                                                                                : take(made.batch_stride, value, bytes);
  store(layout, made);
  return status;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t operation, cublasComputeType_t compute,
                                      cudaDataType_t scale) {
  Operation made;
  made.compute = compute;
  made.scale = scale;
  store(operation, made);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  auto made = load<Operation>(operation);
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      status = take(made.transpose_a, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      status = take(made.transpose_b, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      status = take(made.epilogue, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      status = take(made.bias, value, bytes);
      break;
  }
  store(operation, made);
  return status;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  store(preference, Preference());
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  auto made = load<Preference>(preference);
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    status = take(made.workspace, value, bytes);
  else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    status = take(made.reductions, value, bytes);
  else
    status = take(made.alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
  store(preference, made);
  return status;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  std::lock_guard lock(mutex());
  *count = 0;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const auto op = load<Operation>(operation);
  const auto la = load<Layout>(a), lb = load<Layout>(b), lc = load<Layout>(c), ld = load<Layout>(d);
  const auto asked = load<Preference>(preference);
  if (std::string mistake = mistake_in(op, la, lb, lc, ld); !mistake.empty()) return invalid(mistake);
  if (asked.mark != preference_mark || wanted < 1) return invalid("the preference");
  // Regard wants the same bits every time.
  constexpr uint32_t in_order = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if ((asked.reductions & ~in_order) != 0) return invalid("reductions that are not of one order");
  if (op.bias && !bias_is_known) return CUBLAS_STATUS_NOT_SUPPORTED;
  ++counts.choices;
  Algorithm algorithm;
  algorithm.problem = problem_of(op, {la, lb, lc, ld});
  for (int i = 0; i < 4; ++i) algorithm.alignments[i] = asked.alignments[i];
  algorithm.bias_alignment = op.bias ? alignment_of(op.bias) : 1;
  // Deep products of little else are cut along the depth: they need memory for the parts.
  const uint64_t depth = op.transpose_a == CUBLAS_OP_T ? la.rows : la.columns;
  const uint64_t part = ld.rows * ld.columns * static_cast<uint64_t>(ld.batch) * 8;
  if (depth >= 1024 && ld.rows * ld.columns <= 1024 && 2 * part <= asked.workspace) algorithm.workspace = 2 * part;
  results[0] = {};
  store(&results[0].algo, algorithm);
  results[0].workspaceSize = algorithm.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

namespace {

cublasStatus_t multiply_now(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                            cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                            const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                            cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                            size_t workspace_bytes) {
  std::lock_guard lock(mutex());
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!alpha || !beta || !algorithm) return invalid("a pointer is null");
  const auto op = load<Operation>(operation);
  const auto la = load<Layout>(a_layout), lb = load<Layout>(b_layout), lc = load<Layout>(c_layout),
             ld = load<Layout>(d_layout);
  if (std::string mistake = mistake_in(op, la, lb, lc, ld); !mistake.empty()) return invalid(mistake);
  const auto way = load<Algorithm>(algorithm);
  if (way.mark != algorithm_mark || way.problem != problem_of(op, {la, lb, lc, ld}))
    return invalid("the algorithm was chosen for another product");

  const DeviceAccess access;
  const std::string mistakes[] = {
      memory_mistake("a", a, la, way.alignments[0]), memory_mistake("b", b, lb, way.alignments[1]),
      memory_mistake("c", c, lc, way.alignments[2]), memory_mistake("d", d, ld, way.alignments[3])};
  for (const std::string& mistake : mistakes)
    if (!mistake.empty()) return invalid(mistake);
  if (c == d && c_layout != d_layout && std::memcmp(&lc, &ld, sizeof lc) != 0)
    return invalid("c is d, with another layout");
  if (a == d || b == d) return invalid("d is an operand");
  if (op.epilogue == CUBLASLT_EPILOGUE_BIAS) {
    if (alignment_of(op.bias) < way.bias_alignment || alignment_of(op.bias) < 16)
      return invalid("the bias is not aligned as promised");
    if (ld.rows * element_bytes(ld.type) > room(op.bias)) return invalid("the bias reaches beyond its buffer");
    ++counts.with_bias;
  }
  if (way.workspace > 0) {
    if (!workspace || workspace_bytes < way.workspace || room(workspace) < way.workspace ||
        alignment_of(workspace) < 16)
      return invalid("the workspace is too small");
    std::memset(workspace, 0xff, way.workspace);
    ++counts.with_workspace;
  }
  ++counts.products;
  const auto run = [&]<class T>(T) { multiply<T>(op, alpha, a, la, b, lb, beta, c, lc, d, ld); };
  switch (ld.type) {
    case CUDA_R_32F:
      run(float{});
      break;
    case CUDA_R_64F:
      run(double{});
      break;
    case CUDA_R_16BF:
      run(bfloat16{});
      break;
    default:
      run(float16{});
      break;
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  // What is on the CPU is read now, also where the product is made later.
  struct Numbers {
    double alpha = 0, beta = 0;  // or floats in their place
  } numbers;
  if (alpha && beta && operation) {
    const size_t bytes = load<Operation>(operation).scale == CUDA_R_64F ? sizeof(double) : sizeof(float);
    std::memcpy(&numbers.alpha, alpha, bytes);
    std::memcpy(&numbers.beta, beta, bytes);
  }
  if (!alpha || !beta || !operation || !algorithm || !a_layout || !b_layout || !c_layout || !d_layout)
    return multiply_now(handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm,
                        workspace, workspace_bytes);
  auto run = [=, how = *operation, la = *a_layout, lb = *b_layout, lc = *c_layout, ld = *d_layout,
              way = *algorithm]() mutable {
    return multiply_now(handle, &how, &numbers.alpha, a, &la, b, &lb, &numbers.beta, c, &lc, d, &ld, &way, workspace,
                        workspace_bytes);
  };
  const auto later = [run]() mutable { return run() == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorInvalidValue; };
  return cuda_host::record(stream, later) ? CUBLAS_STATUS_SUCCESS : run();
}
