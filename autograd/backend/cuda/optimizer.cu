// One pass over parameters, their gradients and moments: SGD, Adam, AdamW, Lion; and the norm of gradients. The
// formulas are the CPU's, with its fused multiply-adds.
#include <cmath>
#include <functional>

#include <regard/autograd/backend/cuda/capture.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/math.hpp>
#include <regard/autograd/backend/cuda/tensor_list.hpp>

namespace regard::cuda_backend {
namespace {

template <class T>
struct Sgd {
  static constexpr unsigned written = 0b001;
  T lr, weight_decay;
  bool decays;
  static Sgd of(const SgdStep& o) {
    return {static_cast<T>(o.lr), static_cast<T>(o.weight_decay), o.weight_decay != 0};
  }
  __device__ void operator()(T (&x)[2]) const {
    const T g = decays ? fma(weight_decay, x[0], x[1]) : x[1];
    x[0] = fma(-lr, g, x[0]);
  }
};

template <class T>
struct SgdWithMomentum {
  static constexpr unsigned written = 0b101;
  T lr, weight_decay, momentum, rest;
  bool decays, nesterov, first;
  static SgdWithMomentum of(const SgdStep& o) {
    return {static_cast<T>(o.lr),
            static_cast<T>(o.weight_decay),
            static_cast<T>(o.momentum),
            static_cast<T>(1 - o.dampening),
            o.weight_decay != 0,
            o.nesterov,
            o.first};
  }
  __device__ void operator()(T (&x)[3]) const {
    const T g = decays ? fma(weight_decay, x[0], x[1]) : x[1];
    x[2] = first ? g : fma(momentum, x[2], rest * g);
    x[0] = fma(-lr, nesterov ? fma(momentum, x[2], g) : x[2], x[0]);
  }
};

template <class T>
struct Adam {
  static constexpr unsigned written = 0b1101;
  T beta1, rest1, beta2, rest2, scale, eps, lr, keep, decay;
  bool couples, shrinks;

  static Adam of(const AdamStep& o) {
    return {.beta1 = static_cast<T>(o.beta1),
            .rest1 = static_cast<T>(1 - o.beta1),
            .beta2 = static_cast<T>(o.beta2),
            .rest2 = static_cast<T>(1 - o.beta2),
            .scale = static_cast<T>(o.root_scale()),
            .eps = static_cast<T>(o.eps),
            .lr = static_cast<T>(o.corrected_lr()),
            .keep = static_cast<T>(1 - o.lr * o.weight_decay),
            .decay = static_cast<T>(o.weight_decay),
            .couples = !o.decoupled && o.weight_decay != 0,
            .shrinks = o.decoupled && o.weight_decay != 0};
  }

  __device__ void operator()(T (&x)[4]) const {
    const T g = couples ? fma(decay, x[0], x[1]) : x[1];
    const T p = shrinks ? x[0] * keep : x[0];
    x[2] = fma(beta1, x[2], rest1 * g);
    x[3] = fma(beta2, x[3], rest2 * (g * g));
    x[0] = fma(-lr, x[2] / fma(sqrt(x[3]), scale, eps), p);
  }
};

template <class T>
struct Lion {
  static constexpr unsigned written = 0b101;
  T beta1, rest1, beta2, rest2, lr, keep;
  static Lion of(const LionStep& o) {
    return {static_cast<T>(o.beta1),     static_cast<T>(1 - o.beta1), static_cast<T>(o.beta2),
            static_cast<T>(1 - o.beta2), static_cast<T>(o.lr),        static_cast<T>(1 - o.lr * o.weight_decay)};
  }
  __device__ void operator()(T (&x)[3]) const {
    const T c = fma(beta1, x[2], rest1 * x[1]);
    const T sign = c > 0 ? T(1) : c < 0 ? T(-1) : c;  // NaN stays NaN: a step that went wrong is seen in the parameter
    x[0] = fma(-lr, sign, x[0] * keep);
    x[2] = fma(beta2, x[2], rest2 * x[1]);
  }
};

template <class T>
struct Multiply {
  static constexpr unsigned written = 1;
  T by;
  __device__ void operator()(T (&x)[1]) const { x[0] *= by; }
};

// `replayed` is null, or where a step that was captured finds its numbers.
template <class F, class T, int N>
__global__ void step_kernel(F f, const F* replayed, const TensorList<T, N> list) {
  if (replayed) f = *replayed;
  each_element(list, f);
}

// `make` turns the options of a step into what the kernel is given.
template <class T, int N, class F, class Options, class List, class Arrays>
void step(const char* op, F (*make)(const Options&), const Options& options, const List& list, const Arrays& arrays) {
  cudaStream_t stream = stream_of(list[0].p);
  std::function<F()> at_replay;
  if (options.at_replay) at_replay = [make, next = options.at_replay] { return make(next()); };
  const F* numbers = replayed<F>(op, std::move(at_replay));
  const F f = make(options);
  in_lists<T, N>(
      list, [](const auto& one) { return one.p.numel(); }, arrays,
      [&](const TensorList<T, N>& part) { launch(op, stream, part.grid(), step_kernel<F, T, N>, f, numbers, part); });
}

// ---- Norms

constexpr unsigned all_lanes = 0xffffffffU;
constexpr int most_warps = 8;

// Of all threads of the block, in a fixed order; thread 0 has it. Once a launch, or with a barrier behind it.
__device__ double block_sum(double value) {
  __shared__ double of_warps[most_warps];
  for (int by = 16; by > 0; by /= 2) value += __shfl_xor_sync(all_lanes, value, by);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  const unsigned warps = blockDim.x / 32;
  value = 0;
  if (threadIdx.x == 0)
    for (unsigned w = 0; w < warps; ++w) value += of_warps[w];
  return value;
}

// In f64 throughout: the square of an f32 as large as 1e20 is no f32.
template <class T>
struct SumOfSquares {
  static constexpr unsigned written = 0;
  double sum = 0;
  __device__ void operator()(T (&x)[1]) { sum = fma(double{x[0]}, double{x[0]}, sum); }
};

// partial[b]: what block b found.
template <class T>
__global__ void squares_kernel(double* partial, const TensorList<T, 1> list) {
  SumOfSquares<T> squares;
  each_element(list, squares);
  const double sum = block_sum(squares.sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// One block.
__global__ void add_up_kernel(double* y, const double* partial, int64_t count) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *y = sum;
}

template <class T>
__global__ void limit_norm_kernel(const TensorList<T, 1> list, const double* norm, double largest) {
  const double before = *norm, factor = largest / (before + 1e-6);
  if (!(before < infinity<double>()) || factor >= 1) return;
  Multiply<T> multiply{static_cast<T>(factor)};
  each_element(list, multiply);
}

// Lists of the f32 and of the f64 tensors among `list`.
template <class Start>
void in_lists_by_type(std::span<const Tensor> list, const Start& start) {
  const auto of_type = [&]<class T>(T) {
    in_lists<T, 1>(
        list, [](const Tensor& x) { return x.dtype() == dtype_of<T>() ? x.numel() : 0; },
        [](const Tensor& x) { return std::array{device_pointer<T>(x)}; }, start);
  };
  of_type(float{});
  of_type(double{});
}

}  // namespace

void sgd_step(std::span<const SgdTensors> list, const SgdStep& o) {
  if (list.empty()) return;
  visit_compute(list[0].p.dtype(), [&]<class T>(T) {
    if (!list[0].velocity.defined())
      step<T, 2>("sgd_step", Sgd<T>::of, o, list, [](const SgdTensors& one) {
        return std::array{device_pointer<T>(one.p), device_pointer<T>(one.grad)};
      });
    else
      step<T, 3>("sgd_step", SgdWithMomentum<T>::of, o, list, [](const SgdTensors& one) {
        return std::array{device_pointer<T>(one.p), device_pointer<T>(one.grad), device_pointer<T>(one.velocity)};
      });
  });
}

void adam_step(std::span<const AdamTensors> list, const AdamStep& o) {
  if (list.empty()) return;
  visit_compute(list[0].p.dtype(), [&]<class T>(T) {
    step<T, 4>("adam_step", Adam<T>::of, o, list, [](const AdamTensors& one) {
      return std::array{device_pointer<T>(one.p), device_pointer<T>(one.grad), device_pointer<T>(one.exp_avg),
                        device_pointer<T>(one.exp_avg_sq)};
    });
  });
}

void lion_step(std::span<const LionTensors> list, const LionStep& o) {
  if (list.empty()) return;
  visit_compute(list[0].p.dtype(), [&]<class T>(T) {
    step<T, 3>("lion_step", Lion<T>::of, o, list, [](const LionTensors& one) {
      return std::array{device_pointer<T>(one.p), device_pointer<T>(one.grad), device_pointer<T>(one.exp_avg)};
    });
  });
}

void norm_squared(const Tensor& y, std::span<const Tensor> list) {
  constexpr uint32_t most_blocks = 1024;  // the same on every GPU, for the sake of the bits
  cudaStream_t stream = stream_of(y);
  const auto lists = static_cast<int64_t>(list.size()) / TensorList<float, 1>::most + 2;  // at most
  const Scratch partial(lists * most_blocks * static_cast<int64_t>(sizeof(double)), y.device());
  int64_t blocks = 0;
  in_lists_by_type(list, [&]<class T>(const TensorList<T, 1>& part) {
    Grid grid = part.grid();
    grid.blocks = dim3(part.chunks() < most_blocks ? part.chunks() : most_blocks);
    launch("norm_squared", stream, grid, squares_kernel<T>, partial.as<double>() + blocks, part);
    blocks += grid.blocks.x;
  });
  const Grid one_block{dim3(1), blocks > 32 ? dim3(32 * most_warps) : dim3(32)};
  launch("norm_squared", stream, one_block, add_up_kernel, device_pointer<double>(y), partial.as<double>(), blocks);
}

void limit_norm(std::span<const Tensor> list, const Tensor& norm, double largest) {
  cudaStream_t stream = stream_of(norm);
  in_lists_by_type(list, [&]<class T>(const TensorList<T, 1>& part) {
    launch("limit_norm", stream, part.grid(), limit_norm_kernel<T>, part, device_pointer<const double>(norm), largest);
  });
}

}  // namespace regard::cuda_backend
