#include <regard/autograd/matmul_precision.hpp>

#include <atomic>

#include <regard/autograd/backend/cpu/bf16_gemm.hpp>

namespace regard {

namespace {

std::atomic<MatmulPrecision> of_the_process{MatmulPrecision::f32};
constexpr int8_t none = -1;
thread_local int8_t of_the_scope = none;  // a MatmulPrecision, or none

}  // namespace

void set_matmul_precision(MatmulPrecision precision) { of_the_process.store(precision, std::memory_order_relaxed); }

MatmulPrecision matmul_precision() {
  return of_the_scope == none ? of_the_process.load(std::memory_order_relaxed)
                              : static_cast<MatmulPrecision>(of_the_scope);
}

bool bf16_matmul_available() { return cpu_backend::bf16_gemm_available(); }

MatmulPrecisionScope::MatmulPrecisionScope(MatmulPrecision precision) : former_(of_the_scope) {
  of_the_scope = static_cast<int8_t>(precision);
}
MatmulPrecisionScope::~MatmulPrecisionScope() { of_the_scope = former_; }

}  // namespace regard
