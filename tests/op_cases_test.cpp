// The harness of the op cases: runs each row over dtypes and layouts, and its own tests, that it catches what is wrong.
// The rows are in op_cases/, one family a file.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <iostream>
#include <random>
#include <set>
#include <sstream>

#include <regard/autograd/cuda.hpp>
#include <regard/regard.hpp>

#include "op_cases/arrays.hpp"
#include "op_cases/op_case.hpp"

namespace regard::op_cases {

namespace {

enum class Layout : uint8_t { contiguous, permuted, expanded, offset, stepped };
constexpr Layout layouts[] = {Layout::contiguous, Layout::permuted, Layout::expanded, Layout::offset, Layout::stepped};

const char* name_of(Layout layout) {
  constexpr const char* names[] = {"contiguous", "permuted", "expanded", "offset", "stepped"};
  return names[static_cast<size_t>(layout)];
}

// ---- Numbers

bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }
/// The largest error of one rounding, relative to the number.
double rounding_of(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : 0x1p-11; }

bool is_drawn_floating(Fill fill) {
  return fill == Fill::normal || fill == Fill::positive || fill == Fill::distinct || fill == Fill::unit;
}

uint64_t seed_of(const OpCase& row, size_t set) {
  uint64_t hash = 1469598103934665603U + set;
  for (char c : row.op + "/" + row.variant) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

using Random = std::mt19937_64;

double uniform(Random& random, double low, double high) {
  const double value = low + (high - low) * static_cast<double>(random() >> 11) * 0x1p-53;
  return static_cast<double>(static_cast<float>(value));  // exact in f32
}

// What stands for the numbers of a floating input in a run of integers or booleans.
double drawn(Fill fill, DType dtype, Random& random) {
  if (dtype == DType::boolean) return static_cast<double>(random() % 2);
  const bool whole = dtype == DType::i64;
  switch (fill) {
    case Fill::positive:
      return whole ? 1 + static_cast<double>(random() % 4) : uniform(random, 0.3, 3);
    case Fill::unit:
      return whole ? static_cast<double>(random() % 2) : uniform(random, 0.02, 0.98);
    default:
      return whole ? static_cast<double>(random() % 9) - 4 : uniform(random, -2, 2);
  }
}

// `which` tells the inputs of one row apart, so that distinct numbers differ between them, too.
std::vector<double> draw(const Input& input, DType dtype, size_t which, int64_t count, Random& random) {
  std::vector<double> values(static_cast<size_t>(count));
  const auto n = values.size();
  switch (input.fill) {
    case Fill::integers:
      for (double& v : values)
        v = static_cast<double>(input.low + static_cast<int64_t>(random() % uint64_t(input.high - input.low)));
      break;
    case Fill::booleans:
      for (double& v : values) v = static_cast<double>(random() % 2);
      break;
    case Fill::permutation:
    case Fill::distinct: {
      for (size_t i = 0; i < n; ++i) values[i] = static_cast<double>(i);
      for (size_t i = n; i > 1; --i) std::swap(values[i - 1], values[random() % i]);
      if (input.fill == Fill::permutation) break;
      if (dtype == DType::boolean) {
        for (double& v : values) v = std::fmod(v, 2);
      } else {
        const double middle = static_cast<double>(n / 2);
        for (double& v : values)
          v = dtype == DType::i64 ? v - middle : (v - middle) * 0.25 + 0.0625 * static_cast<double>(1 + which % 3);
      }
      break;
    }
    default:
      for (double& v : values) v = drawn(input.fill, dtype, random);
  }
  return values;
}

// The same numbers as a tensor of `dtype` holds them.
void round_to(DType dtype, std::vector<double>& values) {
  if (!is_half(dtype)) return;
  for (double& v : values) {
    const auto x = static_cast<float>(v);
    v = static_cast<double>(dtype == DType::bf16 ? static_cast<float>(bfloat16(x)) : static_cast<float>(float16(x)));
  }
}

Array draw(const Input& input, DType dtype, size_t which, Layout layout, Random& random) {
  const Shape& shape = input.shape;
  if (layout != Layout::expanded || input.expand_dim < 0 || shape.dim() == 0)
    return {shape, draw(input, dtype, which, shape.numel(), random)};
  Shape small = shape;
  small[input.expand_dim] = std::min<int64_t>(1, shape[input.expand_dim]);
  Array one{small, draw(input, dtype, which, small.numel(), random)};
  return make(shape, [&](const Shape& i) { return at(one, i); });
}

// ---- Tensors in a layout: written by hand into a storage whose other elements are poison.

struct Placed {
  Tensor tensor;
  Tensor whole;                // all of the storage
  std::vector<char> snapshot;  // its bytes
};

std::vector<char> bytes_of(const Tensor& dense) {
  const Tensor here = dense.to(cpu());
  std::vector<char> bytes(static_cast<size_t>(here.numel() * element_size(here.dtype())));
  if (!bytes.empty()) std::memcpy(bytes.data(), here.raw_data(), bytes.size());
  return bytes;
}

template <class T>
T poison() {
  if constexpr (std::is_floating_point_v<T>)
    return std::numeric_limits<T>::quiet_NaN();
  else if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>)
    return T(std::numeric_limits<float>::quiet_NaN());
  else if constexpr (std::is_same_v<T, bool>)
    return true;
  else
    return static_cast<T>(int64_t{1} << 40);
}

Placed place(const Array& array, DType dtype, Layout layout, int64_t expand_dim, Device device) {
  const Shape& shape = array.shape;
  const int64_t dims = shape.dim();
  Strides strides = contiguous_strides(shape);
  int64_t offset = 0;
  int64_t size = shape.numel();
  if (layout == Layout::permuted) {
    int64_t stride = 1;
    for (int64_t d = 0; d < dims; ++d) {
      strides[d] = shape[d] == 1 ? 77 : stride;  // the stride of a single element means nothing
      stride *= std::max<int64_t>(shape[d], 1);
    }
  } else if (layout == Layout::expanded && expand_dim >= 0 && dims > 0) {
    Shape small = shape;
    small[expand_dim] = std::min<int64_t>(1, small[expand_dim]);
    strides = contiguous_strides(small);
    strides[expand_dim] = 0;
    size = small.numel();
  } else if (layout == Layout::offset || layout == Layout::stepped) {
    // A slice of a larger tensor: one or more elements around it in each dimension, and between in the last.
    Shape large = shape;
    for (int64_t d = 0; d < dims; ++d) large[d] = shape[d] + 2;
    const int64_t step = layout == Layout::stepped ? 3 : 1;
    if (dims > 0) large[dims - 1] = shape[dims - 1] * step + 2;
    strides = contiguous_strides(large);
    for (int64_t d = 0; d < dims; ++d) offset += strides[d];
    if (dims > 0) strides[dims - 1] = step;
    size = large.numel() + 1;
    if (dims == 0) offset = 1;
  }
  Tensor whole = empty({size}, dtype);
  visit_dtype(dtype, [&]<class T>(T) {
    T* data = whole.data<T>();
    for (int64_t i = 0; i < size; ++i) data[i] = poison<T>();
    size_t next = 0;
    each_index(shape, [&](const Shape& index) {
      int64_t element = offset;
      for (int64_t d = 0; d < dims; ++d) element += index[d] * strides[d];
      const double value = array.values[next++];
      if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>)
        data[element] = T(static_cast<float>(value));
      else
        data[element] = static_cast<T>(value);
    });
  });
  whole = whole.to(device);
  return {make_view(whole, shape, strides, offset), whole, bytes_of(whole)};
}

// ---- Comparing

std::vector<char> bits(const Tensor& x) {
  NoGrad no_grad;
  return bytes_of(x.detach().clone());
}

bool same_bits(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return false;
    if (!a[i].defined()) continue;
    if (a[i].shape() != b[i].shape() || a[i].dtype() != b[i].dtype() || bits(a[i]) != bits(b[i])) return false;
  }
  return true;
}

// Elements by strides, without the library's copies.
std::vector<double> elements(const Tensor& x) {
  if (x.device() != cpu()) return x.to_vector<double>();
  std::vector<double> values;
  visit_dtype(x.dtype(), [&]<class T>(T) {
    if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>)
      values = x.to_vector<double>();
    else {
      const T* data = x.data<T>();
      each_index(x.shape(), [&](const Shape& index) {
        int64_t element = 0;
        for (int64_t d = 0; d < x.dim(); ++d) element += index[d] * x.strides()[d];
        values.push_back(static_cast<double>(data[element]));
      });
    }
  });
  return values;
}

struct Tolerance {
  double relative;
  bool accumulates;
  DType dtype;  // what is compared was rounded to it
};

// Nothing where they agree, else the worst element.
std::string difference(const std::vector<double>& got, std::vector<double> right, const Shape& shape,
                       Tolerance tolerance) {
  if (got.size() != right.size()) return "another number of elements";
  double largest = 0;
  for (double& r : right) {
    if (tolerance.dtype != DType::f64 && is_floating(tolerance.dtype)) r = static_cast<double>(static_cast<float>(r));
    if (tolerance.dtype == DType::f16 && std::abs(r) >= 65520) r = std::copysign(inf, r);
    if (std::isfinite(r)) largest = std::max(largest, std::abs(r));
  }
  const double floor = tolerance.dtype == DType::f64 ? 1e-300 : tolerance.dtype == DType::f16 ? 0x1p-25 : 1e-37;
  if (!is_half(tolerance.dtype)) largest = std::max(largest, 1.0);
  size_t place = 0, worst_place = 0;
  double worst = 0, worst_got = 0, worst_right = 0;
  Shape worst_index;
  each_index(shape, [&](const Shape& index) {
    const double g = got[place], r = right[place];
    double error = 0;
    if (std::isfinite(g) && std::isfinite(r))
      error = std::abs(g - r) / (tolerance.relative * (tolerance.accumulates ? largest : std::abs(r)) + floor);
    else if (!(std::isnan(g) && std::isnan(r)) && g != r)
      error = inf;
    if (error > worst) {
      worst = error;
      worst_place = place;
      worst_got = g;
      worst_right = r;
      worst_index = index;
    }
    ++place;
  });
  if (!(worst > 1)) return "";
  std::ostringstream text;
  text.precision(17);
  text << "element " << worst_index << " (" << worst_place << ") is " << worst_got << ", right is " << worst_right
       << ", " << worst << " times the error allowed";
  return text.str();
}

// Weights of a weighted sum of the outputs: none near 0, signs mixed, exact in every dtype.
Tensor weights_like(const Tensor& y, uint64_t seed) {
  Random random(seed);
  std::vector<double> values(static_cast<size_t>(y.numel()));
  for (double& v : values) v = (0.5 + 0x1p-6 * static_cast<double>(random() % 64)) * (random() % 2 ? 1 : -1);
  return from_vector<double>(values, y.shape()).to(y.dtype()).to(y.device());
}

// ---- One row

class Runner {
 public:
  Runner(const OpCase& row, Device device, int64_t& checks) : row_(row), device_(device), checks_(checks) {}

  std::vector<std::string> run() {
    std::vector<Inputs> sets{row_.inputs};
    sets.insert(sets.end(), row_.more.begin(), row_.more.end());
    for (set_ = 0; set_ < sets.size(); ++set_) {
      for (DType dtype : {DType::f32, DType::f64}) {
        for (Layout layout : layouts) {
          if (layout != Layout::contiguous && !has_layout(sets[set_], layout)) continue;
          guarded(sets[set_], dtype, layout, [&] { run_floating(sets[set_], dtype, layout); });
        }
      }
      run_halves(sets[set_]);
      run_integral(sets[set_], DType::i64, row_.of_integers);
      if (row_.of_booleans) run_integral(sets[set_], DType::boolean, row_.of_booleans);
    }
    if (row_.special) run_special();
    run_wrong();
    return std::move(problems_);
  }

 private:
  template <class F>
  void guarded(const Inputs& inputs, DType dtype, Layout layout, const F& f) {
    std::ostringstream where;
    where << row_.op << " (" << row_.variant << "), " << device_ << ", " << dtype << ", " << name_of(layout) << ",";
    for (const Input& input : inputs) where << " " << input.shape;
    where << ", seed " << seed_of(row_, set_);
    where_ = where.str();
    int64_t storages = 0, nodes = 0;
    for (int call = 0; call < 2; ++call) {
      const MemoryStats before = memory_stats();
      try {
        f();
      } catch (const std::exception& error) {
        problem("threw: ", error.what());
      }
      const MemoryStats after = memory_stats();
      storages = static_cast<int64_t>(after.live_storages) - static_cast<int64_t>(before.live_storages);
      nodes = static_cast<int64_t>(after.live_nodes) - static_cast<int64_t>(before.live_nodes);
      if (storages == 0 && nodes == 0) break;  // else once more: a first call may make a table that is kept
    }
    check(storages == 0, "left ", storages, " storages alive");
    check(nodes == 0, "left ", nodes, " nodes alive");
  }

  template <class... Parts>
  void problem(const Parts&... parts) {
    std::ostringstream text;
    text << where_ << ": ";
    (text << ... << parts);
    problems_.push_back(text.str());
  }
  template <class... Parts>
  void check(bool ok, const Parts&... parts) {
    ++checks_;
    if (!ok) problem(parts...);
  }

  static bool has_layout(const Inputs& inputs, Layout layout) {
    for (const Input& input : inputs) {
      if (layout == Layout::offset) return true;
      if (layout == Layout::permuted && input.shape.dim() >= 2) return true;
      if (layout == Layout::expanded && input.shape.dim() >= 1 && input.expand_dim >= 0) return true;
      if (layout == Layout::stepped && input.shape.dim() >= 1) return true;
    }
    return false;
  }

  static DType dtype_in(const Input& input, DType run) {
    if (input.fill == Fill::booleans) return DType::boolean;
    return is_drawn_floating(input.fill) ? run : DType::i64;
  }

  struct Made {
    Arrays arrays;
    std::vector<Placed> placed;
    Tensors tensors() const {
      Tensors list;
      for (const Placed& p : placed) list.push_back(p.tensor);
      return list;
    }
  };

  Made make_inputs(const Inputs& inputs, DType run, Layout layout) const {
    return make_inputs(inputs, run, layout, device_, run);
  }
  // `rounded`: the dtype in which the floating numbers are exact.
  Made make_inputs(const Inputs& inputs, DType run, Layout layout, Device device, DType rounded) const {
    Random random(seed_of(row_, set_));
    Made made;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const DType dtype = dtype_in(inputs[i], run);
      made.arrays.push_back(draw(inputs[i], dtype, i, layout, random));
      if (is_drawn_floating(inputs[i].fill)) round_to(rounded, made.arrays.back().values);
      made.placed.push_back(place(made.arrays.back(), dtype, layout, inputs[i].expand_dim, device));
    }
    return made;
  }
  // Fresh handles on the same elements, so that what requires a gradient can differ from call to call.
  static Tensors handles(const Made& made, const std::vector<bool>& requires_grad) {
    Tensors list;
    for (size_t i = 0; i < made.placed.size(); ++i) {
      list.push_back(made.placed[i].tensor.detach());
      if (requires_grad[i]) list.back().set_requires_grad();
    }
    return list;
  }

  DType result_dtype(size_t output, DType otherwise) const {
    if (is_half(otherwise) && row_.of_halves) return *row_.of_halves;
    return output < row_.results.size() ? row_.results[output].value_or(otherwise) : otherwise;
  }

  void check_values(const Tensors& got, const Arrays& arrays, DType otherwise, double relative) {
    const Arrays right = row_.reference(arrays);
    check(got.size() == right.size(), got.size(), " outputs, not ", right.size());
    for (size_t k = 0; k < got.size() && k < right.size(); ++k) {
      check(got[k].shape() == right[k].shape, "output ", k, " has shape ", got[k].shape(), ", not ", right[k].shape);
      const DType dtype = result_dtype(k, otherwise);
      check(got[k].dtype() == dtype, "output ", k, " is ", got[k].dtype(), ", not ", dtype);
      if (got[k].shape() != right[k].shape) continue;
      // What is f32 is as exact as f32 even in a run of another dtype.
      const double allowed = !is_floating(dtype) ? 0 : dtype == DType::f32 ? row_.ulps * 0x1p-23 : relative;
      const std::string text =
          difference(elements(got[k]), right[k].values, right[k].shape, {allowed, row_.accumulates, dtype});
      check(text.empty(), "output ", k, ": ", text);
    }
  }

  void check_untouched(const Made& made, const char* by) {
    for (size_t i = 0; i < made.placed.size(); ++i)
      check(bytes_of(made.placed[i].whole) == made.placed[i].snapshot && made.placed[i].whole.version() == 0, by,
            " changed input ", i);
  }

  double value_tolerance(DType dtype) const {
    if (is_half(dtype)) return row_.half_roundings * rounding_of(dtype) + row_.ulps * 0x1p-23;
    return dtype == DType::f32 ? row_.ulps * 0x1p-23 : std::max(1e-12, row_.ulps * 0x1p-50);
  }
  double gradient_tolerance(DType dtype) const {
    if (is_half(dtype)) return row_.half_gradient_roundings * rounding_of(dtype);
    return 2e-6 * std::max(4.0, row_.ulps);
  }

  void run_halves(const Inputs& inputs) {
    if (device_ == cpu() || row_.half_roundings == 0) return;
    if (std::none_of(inputs.begin(), inputs.end(), [](const Input& input) { return is_drawn_floating(input.fill); }))
      return;
    for (DType dtype : {DType::bf16, DType::f16})
      for (Layout layout : {Layout::contiguous, Layout::permuted, Layout::stepped}) {
        if (layout != Layout::contiguous && !has_layout(inputs, layout)) continue;
        guarded(inputs, dtype, layout, [&] { run_floating(inputs, dtype, layout); });
      }
  }

  void run_floating(const Inputs& inputs, DType dtype, Layout layout) {
    const Made made = make_inputs(inputs, dtype, layout);
    Tensors plain;
    {
      NoGrad no_grad;
      plain = row_.function(made.tensors());
    }
    check_values(plain, made.arrays, dtype, value_tolerance(dtype));
    check_untouched(made, "the op");
    for (const Tensor& y : plain) check(!y.requires_grad(), "an output requires a gradient under NoGrad");

    std::vector<bool> wanted;
    for (const Input& input : inputs) wanted.push_back(is_drawn_floating(input.fill) && input.grad);
    if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) return;
    wanted_count_ = std::count(wanted.begin(), wanted.end(), true);
    if (!row_.differentiable) {
      for (const Tensor& y : row_.function(handles(made, wanted)))
        check(!y.requires_grad(), "an output requires a gradient, though there is none");
      return;
    }
    run_gradients(inputs, made, wanted, plain, dtype, layout);
    check_untouched(made, "the gradient");
  }

  // The gradients of the inputs that are wanted, of a weighted sum of the floating outputs.
  Tensors gradients(const Function& function, const Made& made, const std::vector<bool>& wanted, GradOptions options,
                    bool dense = true) {
    const Tensors in = handles(made, wanted);
    Tensors outputs, leaves;
    uint64_t seed = 17;
    const bool all = std::count(wanted.begin(), wanted.end(), true) == wanted_count_;
    for (const Tensor& y : function(in)) {
      ++seed;
      if (!is_floating(y.dtype())) continue;
      // Of several outputs, some may not depend on one input alone.
      check(y.requires_grad() || !all, "a floating output requires no gradient");
      if (!y.requires_grad()) continue;
      outputs.push_back(y);
      if (dense)
        options.grad_outputs.push_back(weights_like(y, seed));
      else
        options.grad_outputs.push_back(full({}, 0.75, {y.dtype(), y.device()}).expand(y.shape()));
    }
    for (size_t i = 0; i < in.size(); ++i)
      if (wanted[i]) leaves.push_back(in[i]);
    if (outputs.empty()) return Tensors(leaves.size());
    Tensors result = grad(outputs, leaves, options);
    for (Tensor& g : result)
      if (g.defined()) g = g.detach();
    return result;
  }

  void run_gradients(const Inputs& inputs, const Made& made, const std::vector<bool>& wanted, const Tensors& plain,
                     DType dtype, Layout layout) {
    {
      const Tensors recorded = row_.function(handles(made, wanted));
      check(same_bits(plain, recorded), "recording changes the value");
    }
    const Tensors first = gradients(row_.function, made, wanted, {});
    size_t leaf = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i]) continue;
      const Tensor& g = first[leaf++];
      check(g.defined(), "input ", i, " has no gradient");
      if (!g.defined()) return;
      check(g.shape() == inputs[i].shape && g.dtype() == dtype, "the gradient of input ", i, " has shape ", g.shape(),
            " and dtype ", g.dtype());
    }
    check(same_bits(first, gradients(row_.function, made, wanted, {.grad_outputs = {}, .create_graph = true})),
          "create_graph changes the gradient");
    // Alone, each input's gradient is the same: nothing that it needs is left out with the others'.
    if (first.size() > 1) {
      leaf = 0;
      for (size_t i = 0; i < wanted.size(); ++i) {
        if (!wanted[i]) continue;
        std::vector<bool> alone(wanted.size(), false);
        alone[i] = true;
        check(same_bits({first[leaf++]}, gradients(row_.function, made, alone, {})), "the gradient of input ", i,
              " differs where it alone is wanted");
      }
    }
    // An expanded gradient, as sum() gives it, is a gradient like others.
    {
      GradOptions options;
      const Tensors expanded = gradients(row_.function, made, wanted, options, false);
      const Tensors in = handles(made, wanted);
      Tensors outputs, leaves;
      for (const Tensor& y : row_.function(in))
        if (y.requires_grad()) {
          outputs.push_back(y);
          options.grad_outputs.push_back(full(y.shape(), 0.75, {y.dtype(), y.device()}));
        }
      for (size_t i = 0; i < in.size(); ++i)
        if (wanted[i]) leaves.push_back(in[i]);
      const Tensors dense = grad(outputs, leaves, options);
      const double allowed = is_half(dtype) ? gradient_tolerance(dtype) : dtype == DType::f32 ? 1e-5 : 1e-12;
      compare(expanded, dense, allowed, "an expanded gradient gives another: input ");
    }
    if (dtype != DType::f64) {
      const Made wide = make_inputs(inputs, DType::f64, layout, device_, dtype);
      compare(first, gradients(row_.function, wide, wanted, {}), gradient_tolerance(dtype),
              "the gradient is not that in f64: input ");
      return;
    }
    if (row_.composed) run_composed(made, wanted, plain, first);
    if (device_ != cpu()) return run_beside_cpu(inputs, made, wanted, layout, first);
    int64_t elements = 0;
    for (const Input& input : inputs) elements = std::max(elements, input.shape.numel());
    if (elements == 0 || elements > 64) return;
    Tensors in = handles(made, wanted);
    const auto floating = [this](const Tensors& x) {
      Tensors y;
      for (const Tensor& t : row_.function(x))
        if (is_floating(t.dtype())) y.push_back(t);
      return y;
    };
    if (const GradcheckReport report = gradcheck(floating, in); !report) problem(report);
    ++checks_;
    if (!row_.second || (layout != Layout::contiguous && layout != Layout::permuted) || set_ > 0) return;
    if (const GradcheckReport report = gradgradcheck(floating, in, {.fast = elements > 24}); !report) problem(report);
    ++checks_;
    if (layout != Layout::contiguous) return;
    // And the third: second derivatives of the gradient.
    const auto gradient = [this](const Tensors& x) { return gradient_of_squares(x); };
    if (const GradcheckReport report = gradgradcheck(gradient, in, {.fast = true}); !report) problem("third: ", report);
    ++checks_;
  }

  // Gradients that may be differentiated again, of the outputs' squares: linear ops have third derivatives, too, then.
  Tensors gradient_of_squares(const Tensors& x) const {
    Tensors outputs, leaves, result;
    GradOptions options{.grad_outputs = {}, .create_graph = true, .allow_unused = true};
    for (const Tensor& t : row_.function(x)) {
      if (!t.requires_grad()) continue;
      outputs.push_back(square(t));
      options.grad_outputs.push_back(weights_like(t, 23 + outputs.size()));
    }
    for (const Tensor& t : x)
      if (t.requires_grad()) leaves.push_back(t);
    for (const Tensor& g : grad(outputs, leaves, options))
      if (g.defined() && g.requires_grad()) result.push_back(g);
    return result;
  }

  // The CPU's gradients are checked against differences of values: those of another device are held against them.
  void run_beside_cpu(const Inputs& inputs, const Made& made, const std::vector<bool>& wanted, Layout layout,
                      const Tensors& first) {
    const Made here = make_inputs(inputs, DType::f64, layout, cpu(), DType::f64);
    compare(first, gradients(row_.function, here, wanted, {}), 1e-11, "the CPU has another gradient: input ");
    if (!row_.second || layout != Layout::contiguous || set_ > 0) return;
    const auto second = [&](const Made& at) {
      const Tensors in = handles(at, wanted);
      Tensors leaves;
      for (const Tensor& t : in)
        if (t.requires_grad()) leaves.push_back(t);
      GradOptions options{.grad_outputs = {}, .allow_unused = true};
      const Tensors firsts = gradient_of_squares(in);
      for (const Tensor& g : firsts) options.grad_outputs.push_back(weights_like(g, 71 + options.grad_outputs.size()));
      return firsts.empty() ? Tensors() : grad(firsts, leaves, options);
    };
    compare(second(made), second(here), 1e-10, "the CPU has another second derivative: input ");
  }

  void compare(const Tensors& got, const Tensors& right, double relative, const char* text) {
    check(got.size() == right.size(), text, "-");
    for (size_t i = 0; i < got.size() && i < right.size(); ++i) {
      if (!got[i].defined() || !right[i].defined()) {
        check(got[i].defined() == right[i].defined(), text, i, ": one is undefined");
        continue;
      }
      check(got[i].shape() == right[i].shape(), text, i, ": shape ", got[i].shape(), ", not ", right[i].shape());
      if (got[i].shape() != right[i].shape()) continue;
      const DType dtype = is_half(got[i].dtype()) ? got[i].dtype() : DType::f64;
      const std::string what =
          difference(elements(got[i]), elements(right[i]), got[i].shape(), {relative, true, dtype});
      check(what.empty(), text, i, ": ", what);
    }
  }

  void run_composed(const Made& made, const std::vector<bool>& wanted, const Tensors& plain, const Tensors& first) {
    Tensors values;
    {
      NoGrad no_grad;
      values = row_.composed(made.tensors());
    }
    compare(plain, values, 1e-12, "the composed form has another value: output ");
    compare(first, gradients(row_.composed, made, wanted, {}), 1e-11, "the composed form has another gradient: input ");
  }

  void run_integral(const Inputs& inputs, DType dtype, std::optional<DType> result) {
    if (std::none_of(inputs.begin(), inputs.end(), [](const Input& input) { return is_drawn_floating(input.fill); }))
      return;
    for (Layout layout : layouts) {
      if (layout != Layout::contiguous && !has_layout(inputs, layout)) continue;
      guarded(inputs, dtype, layout, [&] {
        const Made made = make_inputs(inputs, dtype, layout);
        if (result) {
          const Tensors got = row_.function(made.tensors());
          check_values(got, made.arrays, *result, row_.ulps * 0x1p-23);
        } else {
          std::string text = "no error";
          try {
            row_.function(made.tensors());
          } catch (const DTypeError&) {
            text = "";
          } catch (const std::exception& error) {
            text = error.what();
          }
          check(text.empty(), "a DTypeError was due: ", text);
        }
        check_untouched(made, "the op");
      });
      if (!result) return;
    }
  }

  // What does not fit is refused with an error of the library's own, or works: each input replaced in turn by what is
  // undefined, of another dtype or shape. No answer is right here; crashes, leaks and foreign exceptions are wrong.
  void run_wrong() {
    const Made made = make_inputs(row_.inputs, DType::f32, Layout::contiguous);
    for (size_t i = 0; i < row_.inputs.size(); ++i) {
      const Tensor& given = made.placed[i].tensor;
      const TensorOptions like(given.dtype(), device_);
      const Tensor odd[] = {{},
                            given.to(DType::bf16),
                            given.to(DType::f16),
                            given.to(DType::f64),
                            given.to(DType::i64),
                            given.to(DType::boolean),
                            ones({7}, like),
                            ones({}, like),
                            ones({0}, like),
                            ones({2, 0}, like),
                            ones({5, 3, 2}, like),
                            ones({1, 2, 1, 1, 2, 1, 1, 1}, like),
                            full(given.shape(), -1, like),
                            full(given.shape(), int64_t{1} << 62, like),
                            full(given.shape(), nan, like),
                            full(given.shape(), -inf, like)};
      for (const Tensor& replaced : odd) {
        guarded(row_.inputs, DType::f32, Layout::contiguous, [&] {
          Tensors in = made.tensors();
          in[i] = replaced;
          for (Tensor& x : in)
            if (x.defined() && computes(x.dtype(), x.device())) x = x.detach().set_requires_grad();
          ++checks_;
          try {
            Tensors y = row_.function(in);
            for (const Tensor& t : y)
              if (t.requires_grad())
                backward({t}, {.grad_outputs = {ones(t.shape(), {t.dtype(), t.device()})}, .retain_graph = true});
          } catch (const Error&) {
          }
          try {
            synchronize(device_);  // what a GPU finds later
          } catch (const Error&) {
          }
        });
      }
      check_untouched(made, "a call with another input");
    }
  }

  // Every pair of special numbers.
  void run_special() {
    const std::vector<double> numbers = {nan, inf,   -inf, 0.0,  -0.0,  1.0,  -1.0,  0x1p-140,
                                         2.5, -0.75, 3e38, 1e30, -1e30, 88.5, -104.0};
    const auto n = static_cast<int64_t>(numbers.size());
    for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      if (is_half(dtype) && (device_ == cpu() || row_.half_roundings == 0)) continue;
      guarded(row_.inputs, dtype, Layout::contiguous, [&] {
        Arrays arrays;
        Tensors tensors;
        for (size_t i = 0; i < row_.inputs.size(); ++i) {
          arrays.push_back(make({n, n}, [&](const Shape& at) {
            return static_cast<double>(static_cast<float>(numbers[static_cast<size_t>(at[i % 2 ? 1 : 0])]));
          }));
          round_to(dtype, arrays.back().values);
          tensors.push_back(from_vector<double>(arrays.back().values, {n, n}).to(dtype).to(device_));
        }
        check_values(row_.function(tensors), arrays, dtype, dtype == DType::f64 ? 1e-12 : value_tolerance(dtype));
      });
    }
  }

  const OpCase& row_;
  Device device_;
  int64_t& checks_;
  size_t set_ = 0;
  std::ptrdiff_t wanted_count_ = 0;  // inputs that have a gradient
  std::string where_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> run_case(const OpCase& row, int64_t& checks) {
  return Runner(row, cuda_is_available() ? cuda() : cpu(), checks).run();
}

void run_table(const std::string& family, const Table& table) {
  int64_t checks = 0;
  std::set<std::string> ops;
  for (const OpCase& row : table) {
    ops.insert(row.op);
    const std::vector<std::string> problems = run_case(row, checks);
    // All kinds of fault, but not each of a hundred places.
    for (size_t i = 0; i < problems.size() && i < 4; ++i) FAIL_CHECK(problems[i]);
    if (problems.size() > 4) FAIL_CHECK(row.op << " (" << row.variant << "): " << problems.size() - 4 << " more");
  }
  std::cout << "op cases, " << family << ": " << checks << " checks over " << table.size() << " rows of " << ops.size()
            << " ops\n";
  CHECK(checks > static_cast<int64_t>(10 * table.size()));
}

}  // namespace regard::op_cases

// ---- The harness itself

using namespace regard;
using namespace regard::op_cases;
using Catch::Matchers::Contains;

namespace {

OpCase doubling() {
  return {.op = "doubled",
          .variant = "itself",
          .inputs = {{{2, 3}}},
          .function = [](const Tensors& in) { return in[0] * 2.0; },
          .reference = [](const Arrays& in) { return map(in[0], [](double x) { return 2 * x; }); },
          .of_integers = DType::f32};
}

std::string faults(const OpCase& row) {
  int64_t checks = 0;
  std::string text;
  for (const std::string& problem : run_case(row, checks)) text += problem + "\n";
  CHECK(checks > 20);
  return text;
}

Tensor doubled(const Tensor& x, std::function<Tensors(const Tensors&, const Tensor&)> backward) {
  return custom_op(
      "doubled", {x}, [](const Tensors& in) { return in[0] * 2.0; }, std::move(backward));
}

}  // namespace

TEST_CASE("op case harness: a right op passes in every dtype and layout") { CHECK(faults(doubling()).empty()); }

TEST_CASE("op case harness: a wrong value, shape or dtype is found") {
  OpCase row = doubling();
  row.reference = [](const Arrays& in) { return map(in[0], [](double x) { return 2 * x + 1e-9; }); };
  CHECK_THAT(faults(row), Contains("f64, contiguous") && Contains("element") && Contains("right is"));
  row.reference = [](const Arrays& in) { return seen_as(map(in[0], [](double x) { return 2 * x; }), {3, 2}); };
  CHECK_THAT(faults(row), Contains("has shape [2, 3], not [3, 2]"));
  row = doubling();
  row.results = {DType::f64};
  CHECK_THAT(faults(row), Contains("is f32, not f64"));
}

TEST_CASE("op case harness: an op that reads past its strides is found") {
  OpCase row = doubling();
  row.function = [](const Tensors& in) {
    return is_floating(in[0].dtype()) ? make_view(in[0], {2, 3}, {3, 1}, in[0].storage_offset()).contiguous() * 2.0
                                      : in[0] * 2.0;
  };
  row.differentiable = false;
  const std::string text = faults(row);
  CHECK_THAT(text, Contains("permuted") && Contains("offset") && Contains("stepped") && !Contains("contiguous,"));
}

TEST_CASE("op case harness: wrong, missing and one-sided gradients are found") {
  OpCase row = doubling();
  row.function = [](const Tensors& in) {
    return doubled(in[0], [](const Tensors&, const Tensor& g) { return Tensors{g}; });
  };
  CHECK_THAT(faults(row), Contains("gradcheck"));
  row.function = [](const Tensors& in) { return in[0].detach() * 2.0; };
  CHECK_THAT(faults(row), Contains("requires no gradient"));
  row.function = [](const Tensors& in) {
    return doubled(in[0], [](const Tensors&, const Tensor& g) { return Tensors{g.detach() * 2.0}; });
  };
  CHECK_THAT(faults(row), Contains("gradgradcheck"));
  row.function = [](const Tensors& in) {
    return doubled(in[0], [](const Tensors&, const Tensor& g) { return Tensors{g * (grad_enabled() ? 2.0 : 2.001)}; });
  };
  CHECK_THAT(faults(row), Contains("create_graph changes the gradient"));
}

TEST_CASE("op case harness: a value that depends on recording, a changed input and a leak are found") {
  OpCase row = doubling();
  row.function = [](const Tensors& in) { return in[0] * (grad_enabled() && in[0].requires_grad() ? 2.0001 : 2.0); };
  CHECK_THAT(faults(row), Contains("recording changes the value"));
  row.function = [](const Tensors& in) {
    NoGrad no_grad;
    if (in[0].is_contiguous()) in[0].detach().zero_();
    return in[0] * 2.0;
  };
  CHECK_THAT(faults(row), Contains("changed input 0"));
  Tensors leaked;
  row.function = [&leaked](const Tensors& in) {
    leaked.push_back(in[0] * 2.0);
    return leaked.back();
  };
  CHECK_THAT(faults(row), Contains("storages alive"));
}

TEST_CASE(
    "op case harness: integers that are taken where a DTypeError is due are found, and a composed form that differs") {
  OpCase row = doubling();
  row.of_integers = std::nullopt;
  CHECK_THAT(faults(row), Contains("a DTypeError was due: no error"));
  row = doubling();
  row.composed = [](const Tensors& in) { return in[0] + in[0] * 1.0001; };
  CHECK_THAT(faults(row),
             Contains("the composed form has another value") && Contains("the composed form has another gradient"));
}
