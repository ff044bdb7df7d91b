// cuBLASLt: a handle and a workspace for each GPU, and for each kind of product the algorithm that was chosen for
// it.
#include <regard/autograd/backend/cuda/cublas.hpp>

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <regard/autograd/backend/cuda/graph_memory.hpp>
#include <regard/autograd/backend/cuda/runtime.hpp>
#include <regard/autograd/error.hpp>
#include <regard/autograd/matmul_precision.hpp>

namespace regard::cuda_backend {

namespace {

void check_blas(const char* op, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  fail<DeviceError>(op, "cuBLASLt: ", cublasLtGetStatusString(status), " (", cublasLtGetStatusName(status), ")");
}

// ---- Types

struct Types {
  cudaDataType_t elements, scale;  // of the matrices; of alpha and beta
  cublasComputeType_t compute;
};

cublasComputeType_t compute_type_of_f32() {
  switch (matmul_precision()) {
    case MatmulPrecision::f32:
      break;
    case MatmulPrecision::tf32:
      return CUBLAS_COMPUTE_32F_FAST_TF32;
    case MatmulPrecision::bf16:
      return CUBLAS_COMPUTE_32F_FAST_16BF;
  }
  return CUBLAS_COMPUTE_32F;
}

Types types_of(const char* op, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return {CUDA_R_32F, CUDA_R_32F, compute_type_of_f32()};
    case DType::f64:
      return {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F};
    case DType::bf16:
      return {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    case DType::f16:
      return {CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    default:
      fail<DTypeError>(op, "no matrix products in ", dtype, ": convert with to(DType::f32)");
  }
}

/// alpha or beta, in memory of the scale type.
class ScaleValue {
 public:
  ScaleValue(double value, cudaDataType_t type)
      : narrow_(static_cast<float>(value)), wide_(value), is_wide_(type == CUDA_R_64F) {}
  const void* data() const { return is_wide_ ? static_cast<const void*>(&wide_) : &narrow_; }

 private:
  float narrow_;
  double wide_;
  bool is_wide_;
};

// ---- What an algorithm is chosen by

// The power of two by which all of a batch are aligned, as far as it matters.
int64_t alignment_of(const void* data, int64_t stride_bytes = 0) {
  constexpr uintptr_t most = 256;
  const uintptr_t bits = reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(stride_bytes) | most;
  return static_cast<int64_t>(bits & (~bits + 1));
}

struct Alignments {
  int64_t a, b, c, d, bias;
};

Alignments alignments_of(const BlasProduct& p) {
  const int64_t bytes = p.batch > 1 ? element_size(p.dtype) : 0;
  return {alignment_of(p.a.data, p.a.batch_stride * bytes), alignment_of(p.b.data, p.b.batch_stride * bytes),
          alignment_of(p.c, p.batch_stride * bytes), alignment_of(p.d, p.batch_stride * bytes),
          p.bias ? alignment_of(p.bias) : 0};
}

using Key = std::array<int64_t, 19>;
struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0;
    for (int64_t value : key) {
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15U;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

Key key_of(const BlasProduct& p, const Types& types, const Alignments& aligned) {
  const int64_t transposes = (p.a.transposed ? 1 : 0) + (p.b.transposed ? 2 : 0);
  return {types.elements, types.compute, transposes, p.rows,           p.columns,        p.depth,        p.batch,
          p.a.leading,    p.b.leading,   p.leading,  p.a.batch_stride, p.b.batch_stride, p.batch_stride, aligned.a,
          aligned.b,      aligned.c,     aligned.d,  aligned.bias,     p.bias ? 1 : 0};
}

/// How one kind of product is done.
struct Plan {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace = 0;
  bool found = false;
};

template <class T>
void set(const char* op, cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, T value) {
  check_blas(op, cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof(value)));
}
template <class T>
void set(const char* op, cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  check_blas(op, cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
}
template <class T>
void set(const char* op, cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         T value) {
  check_blas(op, cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
}

void describe_matrix(const char* op, cublasLtMatrixLayout_t layout, cudaDataType_t type, int64_t rows, int64_t columns,
                     int64_t leading, int64_t batch, int64_t batch_stride) {
  check_blas(
      op, cublasLtMatrixLayoutInit(layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), leading));
  if (batch == 1) return;
  set(op, layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
  set(op, layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch_stride);
}

void describe_operand(const char* op, cublasLtMatrixLayout_t layout, cudaDataType_t type, const BlasMatrix& matrix,
                      int64_t rows, int64_t columns, int64_t batch) {
  if (matrix.transposed) std::swap(rows, columns);
  describe_matrix(op, layout, type, rows, columns, matrix.leading, batch, matrix.batch_stride);
}

void set_bias(const char* op, Plan& plan, const void* bias) {
  set(op, &plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
}

Plan make_plan(const char* op, cublasLtHandle_t handle, const BlasProduct& p, const Types& types,
               const Alignments& aligned, size_t most_workspace) {
  Plan plan;
  check_blas(op, cublasLtMatmulDescInit(&plan.operation, types.compute, types.scale));
  if (p.a.transposed) set(op, &plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, static_cast<int32_t>(CUBLAS_OP_T));
  if (p.b.transposed) set(op, &plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, static_cast<int32_t>(CUBLAS_OP_T));
  if (p.bias) {
    set(op, &plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(CUBLASLT_EPILOGUE_BIAS));
    set_bias(op, plan, p.bias);  // before the choice, which looks at its alignment
  }
  describe_operand(op, &plan.a, types.elements, p.a, p.rows, p.depth, p.batch);
  describe_operand(op, &plan.b, types.elements, p.b, p.depth, p.columns, p.batch);
  describe_matrix(op, &plan.c, types.elements, p.rows, p.columns, p.leading, p.batch, p.batch_stride);

  cublasLtMatmulPreferenceOpaque_t preference;
  check_blas(op, cublasLtMatmulPreferenceInit(&preference));
  set(op, &preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(most_workspace));
  // A depth that is cut into parts: their sums, kept in the type that is summed in, are added in a step of their own,
  // in one order. (The other schemes round sums to the result's type, or add them where they lie.)
  set(op, &preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(op, &preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(aligned.a));
  set(op, &preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(aligned.b));
  set(op, &preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(aligned.c));
  set(op, &preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(aligned.d));

  cublasLtMatmulHeuristicResult_t result{};
  int results = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, &plan.operation, &plan.a, &plan.b, &plan.c,
                                                               &plan.c, &preference, 1, &result, &results);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_blas(op, status);
  plan.found = status == CUBLAS_STATUS_SUCCESS && results > 0 && result.state == CUBLAS_STATUS_SUCCESS;
  if (plan.found) {
    plan.algorithm = result.algo;
    plan.workspace = result.workspaceSize;
  }
  return plan;
}

// ---- A GPU's library

class Blas {
 public:
  Blas(const char* op, int device) : device_(device) {
    check_blas(op, cublasLtCreate(&handle_));
    int major = 0;
    check_cuda(op, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    workspace_bytes_ = (int64_t{major >= 9 ? 32 : 8}) << 20;  // what NVIDIA recommends for Hopper; and plenty
  }

  bool multiply(const char* op, cudaStream_t stream, const BlasProduct& p) {
    const Types types = types_of(op, p.dtype);
    const Alignments aligned = alignments_of(p);
    const Key key = key_of(p, types, aligned);
    // Held while the product is queued: its kernels use the workspace one after the other, with none between them.
    std::lock_guard lock(mutex_);
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      constexpr size_t most_plans = 8192;  // text that grows by a token a step asks for ever new ones
      if (plans_.size() >= most_plans) plans_.clear();
      found =
          plans_.emplace(key, make_plan(op, handle_, p, types, aligned, static_cast<size_t>(workspace_bytes_))).first;
    }
    Plan& plan = found->second;
    if (!plan.found) return false;
    if (plan.workspace > 0 && !workspace_) workspace_ = allocate_shared(workspace_bytes_, device_);
    if (p.bias) set_bias(op, plan, p.bias);
    const ScaleValue alpha(p.alpha, types.scale), beta(p.beta, types.scale);
    check_blas(op, cublasLtMatmul(handle_, &plan.operation, alpha.data(), p.a.data, &plan.a, p.b.data, &plan.b,
                                  beta.data(), p.c, &plan.c, p.d, &plan.c, &plan.algorithm,
                                  plan.workspace > 0 ? workspace_ : nullptr, plan.workspace, stream));
    return true;
  }

 private:
  std::mutex mutex_;
  int device_;
  cublasLtHandle_t handle_ = nullptr;
  int64_t workspace_bytes_ = 0;
  void* workspace_ = nullptr;
  std::unordered_map<Key, Plan, KeyHash> plans_;
};

// They stay: tensors of static storage duration outlive others. One a GPU: all of its work is in the order of one
// stream, what was captured on another one as well once it runs.
Blas& blas_of(const char* op) {
  static auto* mutex = new std::mutex;
  static auto* all = new std::map<int, std::unique_ptr<Blas>>;
  int device = 0;
  check_cuda(op, cudaGetDevice(&device));
  std::lock_guard lock(*mutex);
  std::unique_ptr<Blas>& one = (*all)[device];
  if (!one) one = std::make_unique<Blas>(op, device);
  return *one;
}

}  // namespace

void prepare_blas(const char* op) { blas_of(op); }

bool blas_multiply(const char* op, cudaStream_t stream, const BlasProduct& product) {
  if (!blas_of(op).multiply(op, stream, product)) return false;
  check_launched(op, stream);
  return true;
}

}  // namespace regard::cuda_backend
