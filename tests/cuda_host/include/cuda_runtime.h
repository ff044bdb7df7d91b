// CUDA's runtime on the CPU, for tests: what Regard's kernels and its CUDA backend use of <cuda_runtime.h>, so that a
// C++ compiler takes .cu files and they run where there is no GPU. Blocks run one after the other, a block's threads as
// fibers (fibers.cpp); memory of the "GPU" is guarded (memory.cpp). See tests/cuda_host/README.md.
#pragma once

#include <math.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

// ---- Types and errors

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoDevice = 100,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
};
const char* cudaGetErrorString(cudaError_t error);  // of a launch that failed: what was found
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// ---- Devices, streams, events

struct cuda_host_stream;
using cudaStream_t = cuda_host_stream*;
struct cuda_host_event;
using cudaEvent_t = cuda_host_event*;
constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDisableTiming = 2;

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor
};
struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
  size_t totalGlobalMem;
};
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

// ---- Graphs (graphs.cpp): work of a stream that is recorded instead of done

struct cuda_host_graph;
using cudaGraph_t = cuda_host_graph*;
using cudaGraphExec_t = cuda_host_graph*;
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);

// ---- Memory

enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};
cudaError_t cudaMalloc(void** data, size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocHost(void** data, size_t bytes);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemGetInfo(size_t* available, size_t* total);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data);

// ---- Launching

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

namespace cuda_host {

/// Whether the stream captures: then `work` is kept for the graph's launches.
bool record(cudaStream_t stream, const std::function<cudaError_t()>& work);

cudaError_t run_grid(const dim3& grid, const dim3& block, size_t shared_bytes, const void* kernel,
                     const std::function<void()>& thread);
void wait_for_block();                                            // __syncthreads
void wait_for_warp(unsigned mask);                                // __syncwarp
uint64_t exchange(unsigned mask, uint64_t value, unsigned lane);  // the value that the lane gave
unsigned vote(unsigned mask, bool value);                         // a bit for each lane of the mask
int count_in_block(bool value);                                   // __syncthreads_count
/// All 32 lanes of the warp meet; `work` runs once, on what each of them gave.
void meet(void* own, void (*work)(void* const* given), const char* name);
void find_fault(const char* what);  // the launch fails of it
/// Whether the kernel may have so much dynamic shared memory.
bool allows_shared(const void* kernel, size_t bytes);
/// cp.async of 16 bytes: NaN until this thread waits. `whole` false: zeros.
void copy_later(void* to, const void* from, bool whole);
void finish_copies();
unsigned lane();
void* shared_memory();

template <class T>
T shuffle(unsigned mask, T value, unsigned lane) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = exchange(mask, bits, lane);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace cuda_host

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  if (!cuda_host::allows_shared(reinterpret_cast<const void*>(kernel), config->dynamicSmemBytes))
    return cudaErrorInvalidValue;
  // Every thread gets copies of its own, as on a GPU.
  const auto run = [how = *config, kernel, values = std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)] {
    return cuda_host::run_grid(how.gridDim, how.blockDim, how.dynamicSmemBytes, reinterpret_cast<const void*>(kernel),
                               [&] { std::apply(kernel, values); });
  };
  return cuda_host::record(config->stream, run) ? cudaSuccess : run();
}

// ---- Inside of kernels

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

inline void __syncthreads() { cuda_host::wait_for_block(); }
inline int __syncthreads_count(int value) { return cuda_host::count_in_block(value != 0); }
inline int __syncthreads_or(int value) { return cuda_host::count_in_block(value != 0) > 0; }
inline int __syncthreads_and(int value) { return cuda_host::count_in_block(value == 0) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffffU) { cuda_host::wait_for_warp(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  const unsigned group = cuda_host::lane() & ~static_cast<unsigned>(width - 1);
  return cuda_host::shuffle(mask, value, group | (static_cast<unsigned>(lane) & static_cast<unsigned>(width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const unsigned own = cuda_host::lane(), other = own ^ static_cast<unsigned>(bits);
  const unsigned group_end = (own & ~static_cast<unsigned>(width - 1)) + static_cast<unsigned>(width);
  return cuda_host::shuffle(mask, value, other < group_end ? other : own);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned own = cuda_host::lane(), other = own + by;
  const unsigned group_end = (own & ~static_cast<unsigned>(width - 1)) + static_cast<unsigned>(width);
  return cuda_host::shuffle(mask, value, other < group_end ? other : own);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned own = cuda_host::lane(), group = own & ~static_cast<unsigned>(width - 1);
  return cuda_host::shuffle(mask, value, own >= group + by ? own - by : own);
}
inline unsigned __ballot_sync(unsigned mask, int value) { return cuda_host::vote(mask, value != 0); }
inline int __any_sync(unsigned mask, int value) { return cuda_host::vote(mask, value != 0) != 0; }
inline int __all_sync(unsigned mask, int value) { return cuda_host::vote(mask, value == 0) == 0; }

template <class T>
T cuda_host_exchange(T* at, T value) {
  T former = *at;
  *at = value;
  return former;
}
// One thread runs at a time: an atomic operation is a plain one. As in CUDA there are int, unsigned, unsigned long
// long, float and double.
template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return cuda_host_exchange(at, static_cast<T>(*at + value));
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return cuda_host_exchange(at, *at < value ? value : *at);
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return cuda_host_exchange(at, value < *at ? value : *at);
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  return cuda_host_exchange(at, value);
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return cuda_host_exchange(at, static_cast<T>(*at | value));
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return cuda_host_exchange(at, *at == expected ? value : *at);
}

template <class T>
T __ldg(const T* at) {
  return *at;
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32); }
__extension__ using cuda_host_uint128 = unsigned __int128;
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<cuda_host_uint128>(a) * b) >> 64);
}
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
// Roundings that are never contracted into a multiply-add.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
// cos(pi x), accurate near its zeros, too.
inline double cospi(double x) {
  const double pi = 3.14159265358979323846, turned = fabs(x - 2 * nearbyint(x / 2));
  return turned <= 0.25 ? cos(pi * turned) : turned < 0.75 ? sin(pi * (0.5 - turned)) : -cos(pi * (1 - turned));
}
inline float cospif(float x) { return static_cast<float>(cospi(static_cast<double>(x))); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float rsqrt(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / ::sqrt(x); }

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return b < a ? static_cast<std::common_type_t<A, B>>(b) : static_cast<std::common_type_t<A, B>>(a);
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? static_cast<std::common_type_t<A, B>>(b) : static_cast<std::common_type_t<A, B>>(a);
}

/// The dynamic shared memory of the block. (`extern __shared__` would need a name of its own in every kernel.)
inline void* cuda_host_shared_memory() { return cuda_host::shared_memory(); }

#include <cuda_host_matrix.h>
