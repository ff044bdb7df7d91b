#include <regard/autograd/gradcheck_line.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace regard::gradcheck_detail {

std::vector<double*> element_pointers(const Tensor& x) {
  std::vector<double*> pointers;
  pointers.reserve(static_cast<size_t>(x.numel()));
  if (x.numel() == 0) return pointers;
  const Shape& shape = x.shape();
  const Strides& strides = x.strides();
  Shape index = Shape::filled(shape.dim(), 0);
  double* at = x.data<double>();
  for (int64_t count = x.numel(); count > 0; --count) {
    pointers.push_back(at);
    for (int64_t d = shape.dim() - 1; d >= 0; --d) {
      at += strides[d];
      if (++index[d] < shape[d]) break;
      at -= strides[d] * shape[d];
      index[d] = 0;
    }
  }
  return pointers;
}

Tensor copy_with_layout(const Tensor& x) {
  Tensor values = x.detach();
  int64_t span = 1;
  bool simple = x.device() == Device{} && x.numel() > 0;
  for (int64_t d = 0; d < x.dim(); ++d) {
    simple = simple && x.strides()[d] >= 0;
    span += (x.shape()[d] - 1) * x.strides()[d];
  }
  if (!simple || span > 64 * x.numel() + 1024) return values.clone();  // a few elements spread over a large tensor
  int64_t offset = x.storage_offset() % 8;
  Tensor buffer = empty({offset + span}, DType::f64);
  std::memcpy(buffer.data<double>() + offset, values.data<double>(), static_cast<size_t>(span) * sizeof(double));
  return make_view(buffer, x.shape(), x.strides(), offset);
}

bool Tolerance::accepts(double analytical, double numerical) const {
  return std::isfinite(analytical) && std::isfinite(numerical) &&
         std::abs(analytical - numerical) <= absolute + relative * std::abs(numerical);
}

namespace {

// Infinities that stay where they are do not change.
double difference(double a, double b) { return a == b ? 0 : a - b; }

// Moves elements, and puts them back also when the function throws. The storage's version stays as it was: graphs that
// were recorded before hold good, for the values come back.
class Moved {
 public:
  Moved(const std::vector<double*>& elements, const std::vector<double>& direction, double t) : elements_(elements) {
    former_.reserve(elements.size());
    for (size_t i = 0; i < elements.size(); ++i) {
      former_.push_back(*elements[i]);
      *elements[i] += t * direction[i];
    }
  }
  ~Moved() {
    for (size_t i = 0; i < elements_.size(); ++i) *elements_[i] = former_[i];
  }
  Moved(const Moved&) = delete;
  Moved& operator=(const Moved&) = delete;

 private:
  const std::vector<double*>& elements_;
  std::vector<double> former_;
};

}  // namespace

const std::vector<double>& Line::at(double t) {
  auto found = values_.find(t);
  if (found != values_.end()) return found->second;
  Moved moved(elements_, direction_, t);
  return values_.emplace(t, evaluate_()).first->second;
}

Slopes Line::slopes(size_t output, double step) {
  double above = at(step)[output];
  double below = at(-step)[output];
  double here = base_[output];
  return {difference(above, below) / (2 * step), difference(here, below) / step, difference(above, here) / step};
}

GradcheckProblem Line::diagnose(size_t output, double analytical, double step, const Tolerance& tolerance) {
  Slopes wide = slopes(output, step);
  if (!std::isfinite(analytical) || !std::isfinite(wide.central)) return GradcheckProblem::not_finite;
  // A kink anywhere between x - step and x + step pulls the one-sided differences at least as far apart as it pulls
  // the central one from the derivative.
  double apart = std::abs(wide.right - wide.left);
  if (!(apart >= std::abs(analytical - wide.central) * 0.999)) return GradcheckProblem::wrong;
  // One beside x is out of reach of a smaller step.
  for (double smaller : {step / 4, step / 16, step / 64, step / 256})
    if (tolerance.accepts(analytical, slopes(output, smaller).central)) return GradcheckProblem::kink;
  // One at x itself stays, however small the step, where curvature would fade; and the gradient is one of both
  // sides, or between.
  Slopes narrow = slopes(output, step / 4);
  double slack = tolerance.absolute + tolerance.relative * std::max(std::abs(narrow.left), std::abs(narrow.right));
  bool between = analytical >= std::min(narrow.left, narrow.right) - slack &&
                 analytical <= std::max(narrow.left, narrow.right) + slack;
  return between && std::abs(narrow.right - narrow.left) > apart / 2 ? GradcheckProblem::kink : GradcheckProblem::wrong;
}

std::optional<double> Line::taylor_ratio(size_t output, double analytical, double t) {
  auto remainder = [&](double step) { return std::abs(at(step)[output] - base_[output] - step * analytical); };
  double ratio = remainder(t) / remainder(t / 2);
  return std::isfinite(ratio) ? std::optional(ratio) : std::nullopt;
}

}  // namespace regard::gradcheck_detail
