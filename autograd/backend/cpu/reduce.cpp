// Sums, means, extremes, any and all, over any dimensions of any strides.
#include <limits>
#include <type_traits>
#include <vector>

#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/parallel.hpp>
#include <regard/autograd/backend/cpu/reduction_plan.hpp>
#include <regard/autograd/backend/cpu/row_sums.hpp>

namespace regard::cpu_backend {

namespace {

constexpr int64_t chunk_elements = 16384;  // what a thread takes at a time
constexpr int64_t segment = 16384;         // longest piece of a row folded in one go
constexpr int64_t column_block = 512;      // columns whose totals are kept close at hand

// Each operation says what it accumulates in, how a strided row becomes one accumulator, how two are joined, how rows
// are added to the accumulators of their columns, and what is written in the end.

template <class T, bool squares>
struct Sum {
  using Accumulator = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
  static Accumulator start() { return 0; }
  static Accumulator value(T x) {
    // Integers are added as unsigned numbers: they wrap around where they overflow.
    const auto v = static_cast<Accumulator>(x);
    return squares ? v * v : v;
  }
  static Accumulator join(Accumulator a, Accumulator b) {
    if constexpr (std::is_floating_point_v<T>)
      return a + b;
    else
      return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
  static Accumulator row(const T* first, int64_t n, int64_t stride) {
    if constexpr (std::is_floating_point_v<T>) {
      if (stride == 1) return squares ? row_sum_of_squares(first, n) : row_sum(first, n);
    }
    Accumulator total = 0;
    for (int64_t i = 0; i < n; ++i) total = join(total, value(first[i * stride]));
    return total;
  }
  static void columns(Accumulator* totals, const T* first, int64_t stride, int64_t rows, int64_t n) {
    if constexpr (std::is_floating_point_v<T>) {
      add_column_sums(totals, first, stride, rows, n, squares);
    } else {
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < n; ++c) totals[c] = join(totals[c], value(first[r * stride + c]));
    }
  }
};

template <class T, bool maximum>
struct Extreme {
  using Accumulator = T;
  static T start() {
    if constexpr (std::is_floating_point_v<T>)
      return maximum ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
    else
      return maximum ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max();
  }
  // A NaN wins, and stays.
  static T join(T a, T b) { return (maximum ? b > a : b < a) || is_nan(b) ? b : a; }
  static T row(const T* first, int64_t n, int64_t stride) {
    T best = start();
    for (int64_t i = 0; i < n; ++i) best = join(best, first[i * stride]);
    return best;
  }
  static void columns(T* best, const T* first, int64_t stride, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < n; ++c) best[c] = join(best[c], first[r * stride + c]);
  }
};

template <class T, bool all>
struct Truth {
  using Accumulator = unsigned char;
  static Accumulator start() { return all; }
  static Accumulator join(Accumulator a, Accumulator b) { return all ? a & b : a | b; }
  static Accumulator row(const T* first, int64_t n, int64_t stride) {
    Accumulator truth = all;
    for (int64_t i = 0; i < n; ++i) truth = join(truth, first[i * stride] != T{0});
    return truth;
  }
  static void columns(Accumulator* truth, const T* first, int64_t stride, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < n; ++c) truth[c] = join(truth[c], first[r * stride + c] != T{0});
  }
};

template <class Out>
struct Target {
  Out* data;
  double divisor;  // 1 unless a mean is wanted

  template <class Accumulator>
  void write(int64_t offset, Accumulator value) const {
    if constexpr (std::is_same_v<Accumulator, double>)
      data[offset] = static_cast<Out>(divisor == 1 ? value : value / divisor);
    else
      data[offset] = static_cast<Out>(value);
  }
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The innermost kept dimension is dense: rows are added onto a block of columns. Work is cut into blocks of columns
// and, where these are few, into blocks of rows, whose totals are then joined in order.
template <class Op, class T, class Out>
void reduce_columns(const ReductionPlan& plan, const T* a, const Target<Out>& y) {
  using Accumulator = typename Op::Accumulator;
  const Axes& kept = plan.kept;
  const Axes& reduced = plan.reduced;
  const int64_t columns = kept.inner_size();
  const int64_t outer = kept.numel() / columns;
  const int64_t rows = reduced.numel();
  const int64_t inner_rows = reduced.inner_size();
  const int64_t column_blocks = ceil_div(columns, column_block);
  int64_t block_rows = rows;
  if (column_blocks * outer < 16) block_rows = std::max<int64_t>(64, ceil_div(chunk_elements, columns));
  const int64_t row_blocks = std::min<int64_t>(64, ceil_div(rows, block_rows));
  block_rows = ceil_div(rows, row_blocks);
  std::vector<Accumulator> parts(row_blocks == 1 ? 0 : static_cast<size_t>(row_blocks * outer * columns));

  const auto task = [&](int64_t index) {
    const int64_t block = index % column_blocks;
    const int64_t row_block = index / column_blocks % row_blocks;
    const int64_t at = index / column_blocks / row_blocks;
    const int64_t first_column = block * column_block;
    const int64_t width = std::min(column_block, columns - first_column);
    int64_t input = first_column, output = first_column * kept.output[kept.count - 1];
    kept.locate(at, kept.count - 1, input, output);
    Accumulator local[column_block];
    Accumulator* totals = row_blocks == 1 ? local : parts.data() + (row_block * outer + at) * columns + first_column;
    std::fill_n(totals, width, Op::start());
    const int64_t end = std::min(rows, (row_block + 1) * block_rows);
    for (int64_t row = row_block * block_rows; row < end;) {
      const int64_t inner = row % inner_rows;
      const int64_t count = std::min(inner_rows - inner, end - row);
      const T* first =
          a + input + reduced.input_offset(row / inner_rows, reduced.count - 1) + inner * reduced.inner_stride();
      Op::columns(totals, first, reduced.inner_stride(), count, width);
      row += count;
    }
    if (row_blocks == 1)
      for (int64_t c = 0; c < width; ++c) y.write(output + c * kept.output[kept.count - 1], totals[c]);
  };
  const int64_t work = std::max<int64_t>(1, block_rows * std::min(columns, column_block));
  parallel_for_short(outer * row_blocks * column_blocks, std::max<int64_t>(1, chunk_elements / work),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t i = begin; i < end; ++i) task(i);
                     });
  if (row_blocks == 1) return;
  for (int64_t at = 0; at < outer; ++at) {
    int64_t input = 0, output = 0;
    kept.locate(at, kept.count - 1, input, output);
    for (int64_t c = 0; c < columns; ++c) {
      Accumulator total = parts[at * columns + c];
      for (int64_t b = 1; b < row_blocks; ++b) total = Op::join(total, parts[(b * outer + at) * columns + c]);
      y.write(output + c * kept.output[kept.count - 1], total);
    }
  }
}

// Each output folds its rows, piece by piece; where outputs are few and long, the pieces go to threads.
template <class Op, class T, class Out>
void reduce_rows(const ReductionPlan& plan, const T* a, const Target<Out>& y) {
  using Accumulator = typename Op::Accumulator;
  const Axes& kept = plan.kept;
  const Axes& reduced = plan.reduced;
  const int64_t outputs = kept.numel();
  const int64_t length = reduced.numel();
  const int64_t inner = reduced.inner_size();
  const int64_t stride = reduced.inner_stride();
  const int64_t pieces_a_row = std::max<int64_t>(1, ceil_div(inner, segment));
  const int64_t pieces = length == 0 ? 0 : length / inner * pieces_a_row;

  const auto fold = [&](const T* from, int64_t begin, int64_t end) {
    Accumulator total = Op::start();
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t row = piece / pieces_a_row;
      const int64_t first = (piece - row * pieces_a_row) * segment;
      const T* at = from + reduced.input_offset(row, reduced.count - 1) + first * stride;
      total = Op::join(total, Op::row(at, std::min(segment, inner - first), stride));
    }
    return total;
  };
  if (outputs < 64 && length > 2 * chunk_elements) {
    const int64_t grain = std::max<int64_t>(1, chunk_elements / std::min(inner, segment));
    std::vector<Accumulator> parts(static_cast<size_t>(ceil_div(pieces, grain)));
    for (int64_t i = 0; i < outputs; ++i) {
      int64_t input = 0, output = 0;
      kept.locate(i, kept.count, input, output);
      parallel_for_short(pieces, grain,
                         [&](int64_t begin, int64_t end) { parts[begin / grain] = fold(a + input, begin, end); });
      Accumulator total = parts[0];
      for (size_t k = 1; k < parts.size(); ++k) total = Op::join(total, parts[k]);
      y.write(output, total);
    }
    return;
  }
  parallel_for_short(outputs, std::max<int64_t>(1, chunk_elements / std::max<int64_t>(1, length)),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t i = begin; i < end; ++i) {
                         int64_t input = 0, output = 0;
                         kept.locate(i, kept.count, input, output);
                         y.write(output, fold(a + input, 0, pieces));
                       }
                     });
}

template <class Op, class T, class Out>
void run(const Tensor& y, const Tensor& a, double divisor = 1) {
  const ReductionPlan plan(y, a);
  if (plan.kept.numel() == 0) return;
  const T* from = static_cast<const T*>(a.raw_data());
  const Target<Out> target{static_cast<Out*>(y.raw_data()), divisor};
  const bool rows_dense = plan.reduced.count > 0 && plan.reduced.inner_stride() == 1;
  const bool columns_dense = plan.kept.count > 0 && plan.kept.inner_stride() == 1 && plan.kept.inner_size() > 1;
  if (!rows_dense && columns_dense && plan.reduced.numel() > 0)
    reduce_columns<Op, T, Out>(plan, from, target);
  else
    reduce_rows<Op, T, Out>(plan, from, target);
}

template <class T>
void reduce_as(ReduceOp op, const Tensor& y, const Tensor& a) {
  constexpr bool floating = std::is_floating_point_v<T>;
  using Total = std::conditional_t<floating, T, int64_t>;
  switch (op) {
    case ReduceOp::sum:
      return run<Sum<T, false>, T, Total>(y, a);
    case ReduceOp::mean:
      if constexpr (floating) {
        const int64_t outputs = y.numel();
        return run<Sum<T, false>, T, T>(y, a, outputs == 0 ? 1 : static_cast<double>(a.numel() / outputs));
      }
      break;
    case ReduceOp::sum_of_squares:
      if constexpr (floating) {
        if (y.dtype() == DType::f64) return run<Sum<T, true>, T, double>(y, a);
        return run<Sum<T, true>, T, T>(y, a);
      }
      break;
    case ReduceOp::max:
      if constexpr (std::is_same_v<T, bool>)
        return run<Truth<T, false>, T, bool>(y, a);
      else
        return run<Extreme<T, true>, T, T>(y, a);
    case ReduceOp::min:
      if constexpr (std::is_same_v<T, bool>)
        return run<Truth<T, true>, T, bool>(y, a);
      else
        return run<Extreme<T, false>, T, T>(y, a);
    case ReduceOp::any:
      return run<Truth<T, false>, T, bool>(y, a);
    case ReduceOp::all:
      return run<Truth<T, true>, T, bool>(y, a);
  }
  fail<DTypeError>("reduce", "no such reduction of ", a.dtype(), "; convert with to(DType::f32)");
}

}  // namespace

void reduce(ReduceOp op, const Tensor& y, const Tensor& a) {
  switch (a.dtype()) {
    case DType::f32:
      return reduce_as<float>(op, y, a);
    case DType::f64:
      return reduce_as<double>(op, y, a);
    case DType::i64:
      return reduce_as<int64_t>(op, y, a);
    case DType::boolean:
      return reduce_as<bool>(op, y, a);
    case DType::bf16:
    case DType::f16:
      break;
  }
  fail<DTypeError>("reduce", a.dtype(), " is for storage alone; convert with to(DType::f32)");
}

}  // namespace regard::cpu_backend
