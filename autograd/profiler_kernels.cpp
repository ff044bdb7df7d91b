// The tables of kernels that stand in for the devices' own while a Profiler records: each calls its original and notes
// what it was given and how long it took.
#include <algorithm>
#include <array>
#include <span>
#include <type_traits>
#include <vector>

#include <regard/autograd/backend/cuda_backend.hpp>
#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/profiler_recorder.hpp>

namespace regard::profiling {

namespace {

const char* name_of(UnaryOp op) {
  constexpr std::array names{"neg",        "abs",    "sign", "exp",     "log",         "sqrt",     "rsqrt",
                             "reciprocal", "square", "tanh", "sigmoid", "relu",        "gelu",     "gelu_tanh",
                             "silu",       "erf",    "sin",  "cos",     "logical_not", "is_finite"};
  const auto number = static_cast<size_t>(op);
  return number < names.size() ? names[number] : "unary";
}

const char* name_of(BinaryOp op) {
  constexpr std::array names{
      "add",        "sub",         "mul",       "div",          "pow",       "maximum",   "minimum",
      "eq",         "ne",          "lt",        "le",           "gt",        "ge",        "logical_and",
      "logical_or", "logical_xor", "tanh_grad", "sigmoid_grad", "relu_grad", "gelu_grad", "gelu_tanh_grad",
      "silu_grad"};
  const auto number = static_cast<size_t>(op);
  return number < names.size() ? names[number] : "binary";
}

const char* name_of(ReduceOp op) {
  constexpr std::array names{"sum", "mean", "max", "min", "any", "all", "sum_of_squares"};
  const auto number = static_cast<size_t>(op);
  return number < names.size() ? names[number] : "reduce";
}

/// What a row of the table does with the tensors it is given, in their order: bit i stands for tensor i.
struct Facts {
  const char* name = "";
  uint32_t written = 1;
  uint32_t updated = 0;  // of those written: read, too
};

template <auto Row>
Facts facts;

template <auto A, auto B>
constexpr bool same = std::is_same_v<std::integral_constant<decltype(A), A>, std::integral_constant<decltype(B), B>>;

// ---- Tensors among a kernel's arguments

struct Describe {
  KernelNote& note;
  const Facts& of;
  uint32_t tensor = 0;

  void operator()(const Tensor& x) {
    const uint32_t bit = 1U << tensor++;
    if (of.written & bit) note.writes(x);
    if (!(of.written & bit) || (of.updated & bit)) note.reads(x);
  }
  // Lists: bits stand for the tensors of one entry.
  void operator()(std::span<const Tensor> list) {
    each(list, [&](const Tensor& x) { (*this)(x); });
  }
  void operator()(std::span<const SgdTensors> list) {
    each(list, [&](const SgdTensors& x) { all(x.p, x.grad, x.velocity); });
  }
  void operator()(std::span<const AdamTensors> list) {
    each(list, [&](const AdamTensors& x) { all(x.p, x.grad, x.exp_avg, x.exp_avg_sq); });
  }
  void operator()(std::span<const LionTensors> list) {
    each(list, [&](const LionTensors& x) { all(x.p, x.grad, x.exp_avg); });
  }
  template <class... T>
  void all(const T&... tensors) {
    ((*this)(tensors), ...);
  }
  template <class Entry, class F>
  void each(std::span<const Entry> list, const F& f) {
    const uint32_t first = tensor;
    for (const Entry& entry : list) {
      tensor = first;
      f(entry);
    }
  }
  template <class Other>
  void operator()(const Other& other) {
    if constexpr (std::is_enum_v<Other> && requires { name_of(other); }) note.call_it(name_of(other));
  }
};

// ---- Floating-point operations, and what a matrix product reads and writes

// Matrices that a batch repeats count once.
int64_t different(const int64_t* offsets, int64_t count) {
  if (!offsets) return 1;
  std::vector<int64_t> list(offsets, offsets + count);
  std::sort(list.begin(), list.end());
  return std::unique(list.begin(), list.end()) - list.begin();
}

struct Matrices {
  DType dtype;
  int64_t count;

  ProfiledTensor shape(int64_t rows, int64_t columns) const {
    return {count == 1 ? Shape{rows, columns} : Shape{count, rows, columns}, dtype};
  }
  int64_t bytes(const int64_t* offsets, int64_t elements) const {
    return different(offsets, count) * elements * element_size(dtype);
  }
  Memory memory(const void* data, const int64_t* offsets) const {
    const char* first = static_cast<const char*>(data) + (offsets ? offsets[0] : 0) * element_size(dtype);
    return {first, first + 1};
  }
};

template <class... More>
void describe_gemm(KernelNote& note, DType dtype, int64_t m, int64_t n, int64_t k, double /*alpha*/, const void* a,
                   int64_t, int64_t, const void* b, int64_t, int64_t, double beta, void* c, int64_t, int64_t,
                   const GemmBatch& batch, const More&...) {
  const Matrices matrices{dtype, batch.count};
  note.writes(matrices.shape(m, n), matrices.bytes(batch.c, m * n), matrices.memory(c, batch.c));
  note.reads(matrices.shape(m, k), matrices.bytes(batch.a, m * k), matrices.memory(a, batch.a));
  note.reads(matrices.shape(k, n), matrices.bytes(batch.b, k * n), matrices.memory(b, batch.b));
  if (beta != 0) note.reads(matrices.shape(m, n), matrices.bytes(batch.c, m * n), matrices.memory(c, batch.c));
  note.add_flops(2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) *
                 static_cast<double>(batch.count));
}

template <class... More>
void describe_gemm_epilogue(KernelNote& note, DType dtype, int64_t m, int64_t n, int64_t k, const void* a, int64_t,
                            int64_t, const void* b, int64_t, int64_t, void* c, const GemmEpilogue& epilogue,
                            const More&...) {
  const Matrices matrices{dtype, 1};
  const auto writes = [&](const void* data) {
    if (data) note.writes(matrices.shape(m, n), matrices.bytes(nullptr, m * n), matrices.memory(data, nullptr));
  };
  const auto reads = [&](const void* data, int64_t rows, int64_t columns) {
    if (data)
      note.reads(matrices.shape(rows, columns), matrices.bytes(nullptr, rows * columns),
                 matrices.memory(data, nullptr));
  };
  writes(c);
  writes(epilogue.before);
  writes(epilogue.activated);
  reads(a, m, k);
  reads(b, k, n);
  if (epilogue.bias) note.reads({Shape{n}, dtype}, n * element_size(dtype), matrices.memory(epilogue.bias, nullptr));
  reads(epilogue.x, m, n);
  reads(epilogue.residual, m, n);
  note.add_flops(2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k));
}

// How many pairs of a query and a key see each other.
double visible_pairs(const Tensor& q, const Tensor& k, const AttentionSettings& settings) {
  const auto queries = static_cast<double>(q.size(2)), keys = static_cast<double>(k.size(2));
  double pairs = queries * keys;
  if (settings.causal) {                                // query i sees i + 1 + keys - queries of them
    const double hidden = std::min(queries - 1, keys);  // the first query sees so many fewer than the last, at most
    pairs -= queries <= keys ? 0.5 * queries * (queries - 1) : (queries - keys) * keys + 0.5 * hidden * (keys - 1);
  }
  return static_cast<double>(q.size(0) * q.size(1)) * pairs;
}

template <class... More>
void count_attention(KernelNote& note, const Tensor& /*y*/, const Tensor& /*statistics*/, const Tensor& q,
                     const Tensor& k, const Tensor& v, const Tensor& /*mask*/, const Tensor& /*key_mask*/,
                     const Tensor& /*alibi*/, const AttentionSettings& settings, const More&...) {
  note.add_flops(2 * visible_pairs(q, k, settings) * static_cast<double>(q.size(3) + v.size(3)));
}

template <class... More>
void count_attention_grad(KernelNote& note, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& /*dy*/,
                          const Tensor& /*y*/, const Tensor& /*statistics*/, const Tensor& q, const Tensor& k,
                          const Tensor& v, const Tensor& /*mask*/, const Tensor& /*key_mask*/, const Tensor& /*alibi*/,
                          const AttentionSettings& settings, const More&...) {
  int64_t width = 0;
  if (dv.defined()) width += v.size(3);                  // weights^T dy
  if (dq.defined() || dk.defined()) width += v.size(3);  // dy v^T
  if (dq.defined()) width += q.size(3);
  if (dk.defined()) width += q.size(3);
  note.add_flops(2 * visible_pairs(q, k, settings) * static_cast<double>(width));
}

/// Rows that take only a few entries of their input.
template <class... More>
void reads_what_it_writes(KernelNote& note, const Tensor& y, const Tensor&, int64_t, const Tensor& index,
                          const More&...) {
  note.reads_at_most(y.numel() * element_size(y.dtype()) + index.numel() * element_size(index.dtype()));
}

template <auto Row, class... A>
void describe(KernelNote& note, const A&... arguments) {
  if constexpr (same<Row, &Kernels::gemm>) {
    describe_gemm(note, arguments...);
    return;
  }
  if constexpr (same<Row, &Kernels::gemm_epilogue>) {
    describe_gemm_epilogue(note, arguments...);
    return;
  }
  Describe tensors{note, facts<Row>};
  (tensors(arguments), ...);
  if constexpr (same<Row, &Kernels::attention>) count_attention(note, arguments...);
  if constexpr (same<Row, &Kernels::attention_grad>) count_attention_grad(note, arguments...);
  if constexpr (same<Row, &Kernels::gather> || same<Row, &Kernels::index_select>)
    reads_what_it_writes(note, arguments...);
}

// ---- The tables

template <Device::Kind kind, auto Row, class Function = decltype(Row)>
struct Noted;
template <Device::Kind kind, auto Row, class... A>
struct Noted<kind, Row, void (*Kernels::*)(A...)> {
  static void call(A... arguments) {
    const auto kernel = own_kernels(Device{kind}).*Row;
    if (!active()) return kernel(arguments...);
    KernelNote note(facts<Row>.name);
    describe<Row>(note, arguments...);
    note.begin();
    kernel(arguments...);
  }
};

struct Tables {
  Kernels cpu{}, cuda{};  // without the backend nobody calls the latter
};

template <auto Row>
void note(Tables& tables, const Facts& of) {
  facts<Row> = of;
  tables.cpu.*Row = Noted<Device::Kind::cpu, Row>::call;
  if (tables.cuda.*Row) tables.cuda.*Row = Noted<Device::Kind::cuda, Row>::call;
}

Tables make_tables() {
  Tables t{own_kernels(cpu()), {}};
  if (const CudaBackend* backend = find_cuda_backend()) t.cuda = *backend->kernels;
  note<&Kernels::unary>(t, {"unary"});
  note<&Kernels::binary>(t, {"binary"});
  note<&Kernels::binary_scalar>(t, {"binary_scalar"});
  note<&Kernels::clamp>(t, {"clamp"});
  note<&Kernels::where>(t, {"where"});
  note<&Kernels::masked_fill>(t, {"masked_fill"});
  note<&Kernels::copy>(t, {"copy"});
  note<&Kernels::fill>(t, {"fill"});
  note<&Kernels::arange>(t, {"arange"});
  note<&Kernels::axpy>(t, {"axpy", 1, 1});
  note<&Kernels::reduce>(t, {"reduce"});
  note<&Kernels::extreme>(t, {"extreme", 0b11});
  note<&Kernels::variance>(t, {"variance", 0b11});
  note<&Kernels::logsumexp>(t, {"logsumexp"});
  note<&Kernels::softmax>(t, {"softmax"});
  note<&Kernels::softmax_grad>(t, {"softmax_grad"});
  note<&Kernels::log_softmax>(t, {"log_softmax"});
  note<&Kernels::log_softmax_grad>(t, {"log_softmax_grad"});
  note<&Kernels::layer_norm>(t, {"layer_norm", 0b111});
  note<&Kernels::layer_norm_grad>(t, {"layer_norm_grad", 0b111});
  note<&Kernels::rms_norm>(t, {"rms_norm", 0b11});
  note<&Kernels::rms_norm_grad>(t, {"rms_norm_grad", 0b11});
  note<&Kernels::cross_entropy>(t, {"cross_entropy", 0b11});
  note<&Kernels::cross_entropy_grad>(t, {"cross_entropy_grad"});
  note<&Kernels::index_range>(t, {"index_range", 0});
  note<&Kernels::gather>(t, {"gather"});
  note<&Kernels::scatter_add>(t, {"scatter_add", 1, 1});
  note<&Kernels::index_select>(t, {"index_select"});
  note<&Kernels::index_add>(t, {"index_add", 1, 1});
  note<&Kernels::triangle>(t, {"triangle"});
  note<&Kernels::flip>(t, {"flip"});
  note<&Kernels::gemm>(t, {"gemm"});
  note<&Kernels::gemm_epilogue>(t, {"gemm_epilogue"});
  note<&Kernels::attention>(t, {"attention", 0b11});
  note<&Kernels::attention_delta>(t, {"attention_delta"});
  note<&Kernels::attention_grad>(t, {"attention_grad", 0b111});
  note<&Kernels::rotate>(t, {"rotate"});
  note<&Kernels::uniform>(t, {"uniform"});
  note<&Kernels::normal>(t, {"normal"});
  note<&Kernels::randint>(t, {"randint"});
  note<&Kernels::bernoulli>(t, {"bernoulli"});
  note<&Kernels::dropout>(t, {"dropout"});
  note<&Kernels::sgd_step>(t, {"sgd_step", 0b101, 0b101});
  note<&Kernels::adam_step>(t, {"adam_step", 0b1101, 0b1101});
  note<&Kernels::lion_step>(t, {"lion_step", 0b101, 0b101});
  note<&Kernels::norm_squared>(t, {"norm_squared"});
  note<&Kernels::limit_norm>(t, {"limit_norm", 1, 1});
  return t;
}

}  // namespace

const Kernels* noted_kernels(Device::Kind kind) {
  static const Tables tables = make_tables();
  if (kind == Device::Kind::cpu) return &tables.cpu;
  return cuda_device_count() > 0 ? &tables.cuda : nullptr;
}

}  // namespace regard::profiling
