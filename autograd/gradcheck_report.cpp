// How a gradient check's report reads.
#include <algorithm>
#include <cmath>
#include <ostream>
#include <sstream>

#include <regard/autograd/gradcheck.hpp>

namespace regard {

double GradcheckFailure::absolute_error() const { return std::abs(analytical - numerical); }

double GradcheckFailure::relative_error() const {
  double size = std::max(std::abs(analytical), std::abs(numerical));
  return size == 0 ? 0 : absolute_error() / size;
}

namespace {

std::string index_text(const std::vector<int64_t>& index) { return index.empty() ? "" : to_string(Shape(index)); }

void print(std::ostream& out, const GradcheckFailure& failure) {
  out << "\n  " << failure.output << index_text(failure.output_index) << " by " << failure.input
      << index_text(failure.input_index) << ": ";
  switch (failure.problem) {
    case GradcheckProblem::wrong:
      out << "wrong gradient";
      break;
    case GradcheckProblem::undefined:
      out << "backward gave no gradient (undefined, counted as 0)";
      break;
    case GradcheckProblem::not_deterministic:
      out << "the gradient is not deterministic: " << failure.analytical << " in one backward pass, "
          << failure.numerical << " in another";
      break;
    case GradcheckProblem::not_finite:
      out << "not finite";
      break;
    case GradcheckProblem::kink:
      out << "not differentiable near this point (a kink): differences are " << failure.from_left
          << " from the left and " << failure.from_right
          << " from the right; check at a point farther from it than 10 steps";
      break;
  }
  if (failure.problem != GradcheckProblem::not_deterministic)
    out << ": analytical " << failure.analytical << ", numerical " << failure.numerical << ", absolute error "
        << failure.absolute_error() << ", relative error " << failure.relative_error() << ", step " << failure.step;
  if (!failure.note.empty()) out << " (" << failure.note << ")";
}

}  // namespace

std::string GradcheckReport::to_string() const {
  std::ostringstream out;
  out.precision(8);
  const char* kind = options.fast ? "random projections of derivatives" : "derivatives";
  if (passed()) {
    out << check << " passed: " << checked << " " << kind << " are right";
    return out.str();
  }
  if (!complete) {
    out << check << " did not run to its end";
    return out.str();
  }
  out << check << " failed: " << failed << " of " << checked << " " << kind;
  if (kinks == failed)
    out << ", all at points where there is no derivative: not a fault of the gradient";
  else if (kinks > 0)
    out << ", " << kinks << " of them at points where there is no derivative";
  out << " (eps " << options.eps << ", atol " << options.atol << ", rtol " << options.rtol << ")";
  for (const GradcheckFailure& failure : failures) print(out, failure);
  if (static_cast<int64_t>(failures.size()) < failed)
    out << "\n  and " << failed - static_cast<int64_t>(failures.size()) << " more";
  if (taylor_ratio)
    out << "\n  Halving the step shrinks the first one's Taylor remainder " << *taylor_ratio
        << " times (4 where the gradient is right, 2 where it is wrong)";
  if (options.fast && kinks < failed) out << "\n  Without fast mode the report names the elements";
  return out.str();
}

std::ostream& operator<<(std::ostream& out, GradcheckProblem problem) {
  switch (problem) {
    case GradcheckProblem::wrong:
      return out << "wrong";
    case GradcheckProblem::undefined:
      return out << "undefined";
    case GradcheckProblem::not_deterministic:
      return out << "not deterministic";
    case GradcheckProblem::not_finite:
      return out << "not finite";
    case GradcheckProblem::kink:
      break;
  }
  return out << "kink";
}

std::ostream& operator<<(std::ostream& out, const GradcheckReport& report) { return out << report.to_string(); }

}  // namespace regard
