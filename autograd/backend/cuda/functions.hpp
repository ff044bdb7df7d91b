// The kernels of CUDA devices, one function a row of the table in backend/kernels.hpp, which says what each computes.
#pragma once

#include <regard/autograd/backend/kernels.hpp>

namespace regard::cuda_backend {

extern const Kernels table;

/// The widest heads that attention takes in 16 bits.
inline constexpr int most_tensor_width = 128;

void unary(UnaryOp op, const Tensor& y, const Tensor& a);
void binary(BinaryOp op, const Tensor& y, const Tensor& a, const Tensor& b);
void binary_scalar(BinaryOp op, const Tensor& y, const Tensor& a, Scalar b, bool scalar_first);
void clamp(const Tensor& y, const Tensor& a, double low, double high);
void where(const Tensor& y, const Tensor& condition, const Tensor& a, const Tensor& b);
void masked_fill(const Tensor& y, const Tensor& a, const Tensor& mask, Scalar value);
void copy(const Tensor& y, const Tensor& a);
void fill(const Tensor& y, Scalar value);
void arange(const Tensor& y, Scalar start, Scalar step);
void axpy(const Tensor& y, const Tensor& a, double alpha);
void reduce(ReduceOp op, const Tensor& y, const Tensor& a);
void extreme(bool maximum, const Tensor& values, const Tensor& indices, const Tensor& a, int64_t dim);
void variance(const Tensor& y, const Tensor& mean, const Tensor& a, int64_t correction);
void logsumexp(const Tensor& y, const Tensor& a);
void softmax(const Tensor& y, const Tensor& a, int64_t dim, bool empty_rows_zero);
void softmax_grad(const Tensor& da, const Tensor& y, const Tensor& dy, int64_t dim);
void log_softmax(const Tensor& y, const Tensor& a, int64_t dim);
void log_softmax_grad(const Tensor& da, const Tensor& y, const Tensor& dy, int64_t dim);
void layer_norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& a, const Tensor& weight,
                const Tensor& bias, double eps);
void layer_norm_grad(const Tensor& da, const Tensor& dweight, const Tensor& dbias, const Tensor& dy, const Tensor& a,
                     const Tensor& mean, const Tensor& rstd, const Tensor& weight);
void rms_norm(const Tensor& y, const Tensor& rstd, const Tensor& a, const Tensor& weight, double eps);
void rms_norm_grad(const Tensor& da, const Tensor& dweight, const Tensor& dy, const Tensor& a, const Tensor& rstd,
                   const Tensor& weight);
void cross_entropy(const Tensor& losses, const Tensor& log_sum_exp, const Tensor& logits, const Tensor& targets,
                   const Tensor& weight, int64_t ignore_index, double label_smoothing);
void cross_entropy_grad(const Tensor& dlogits, const Tensor& dlosses, const Tensor& log_sum_exp, const Tensor& logits,
                        const Tensor& targets, const Tensor& weight, int64_t ignore_index, double label_smoothing);
void index_range(const Tensor& index, int64_t* smallest, int64_t* largest);
void gather(const Tensor& y, const Tensor& a, int64_t dim, const Tensor& index);
void scatter_add(const Tensor& y, int64_t dim, const Tensor& index, const Tensor& source);
void index_select(const Tensor& y, const Tensor& a, int64_t dim, const Tensor& index);
void index_add(const Tensor& y, int64_t dim, const Tensor& index, const Tensor& source);
void triangle(const Tensor& y, const Tensor& a, int64_t diagonal, bool upper);
void flip(const Tensor& y, const Tensor& a, const Shape& dims);
void gemm(DType dtype, int64_t m, int64_t n, int64_t k, double alpha, const void* a, int64_t a_row, int64_t a_column,
          const void* b, int64_t b_row, int64_t b_column, double beta, void* c, int64_t c_row, int64_t c_column,
          const GemmBatch& batch);
void gemm_epilogue(DType dtype, int64_t m, int64_t n, int64_t k, const void* a, int64_t a_row, int64_t a_column,
                   const void* b, int64_t b_row, int64_t b_column, void* c, const GemmEpilogue& epilogue);
void attention(const Tensor& y, const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v,
               const Tensor& mask, const Tensor& key_mask, const Tensor& alibi, const AttentionSettings& settings);
void attention_delta(const Tensor& delta, const Tensor& dy, const Tensor& y);
void attention_grad(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dy, const Tensor& y,
                    const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                    const Tensor& key_mask, const Tensor& alibi, const AttentionSettings& settings);
void rotate(const Tensor& y, const Tensor& x, const Tensor& cosines, const Tensor& sines, bool interleaved, bool back);
void uniform(const Tensor& y, double low, double high, uint64_t seed, uint64_t offset);
void normal(const Tensor& y, double mean, double std, uint64_t seed, uint64_t offset);
void randint(const Tensor& y, int64_t low, int64_t high, uint64_t seed, uint64_t offset);
void bernoulli(const Tensor& y, const Tensor& p, uint64_t seed, uint64_t offset);
void dropout(const Tensor& y, const Tensor& a, double p, uint64_t seed, uint64_t offset);
void sgd_step(std::span<const SgdTensors> list, const SgdStep& options);
void adam_step(std::span<const AdamTensors> list, const AdamStep& options);
void lion_step(std::span<const LionTensors> list, const LionStep& options);
void norm_squared(const Tensor& y, std::span<const Tensor> list);
void limit_norm(std::span<const Tensor> list, const Tensor& norm, double largest);

}  // namespace regard::cuda_backend
