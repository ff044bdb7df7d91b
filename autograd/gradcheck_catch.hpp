// Catch2 matchers: a gradient check as one line of a test. The only header here that needs Catch2 (2 or 3); a program
// that includes it brings its own.
//
//     REQUIRE_THAT([](const Tensors& in) { return softmax(in[0], -1); }, passes_gradcheck({x}));
//     REQUIRE_THAT(layer, passes_gradcheck({x}));  // with <regard/layers/gradcheck.hpp> or <regard/regard.hpp>
//
// Catch2 prints the whole report when it fails.
#pragma once

#if __has_include(<catch2/matchers/catch_matchers_templated.hpp>)
#include <catch2/matchers/catch_matchers_templated.hpp>
#define REGARD_CATCH_MATCHER_BASE : Catch::Matchers::MatcherGenericBase
#else
#include <catch2/catch.hpp>
#define REGARD_CATCH_MATCHER_BASE
#endif

#include <string>
#include <utility>

#include <regard/autograd/gradcheck.hpp>

namespace regard {

class GradcheckMatcher REGARD_CATCH_MATCHER_BASE {
 public:
  GradcheckMatcher(Tensors inputs, GradcheckOptions options, bool second_order)
      : inputs_(std::move(inputs)), options_(options), second_order_(second_order) {}

  /// For functions and, where layers/gradcheck.hpp is included, for layers.
  template <class Subject>
  bool match(const Subject& subject) const {
    GradcheckReport report =
        second_order_ ? gradgradcheck(subject, inputs_, options_) : gradcheck(subject, inputs_, options_);
    text_ = report.to_string();
    return report.passed();
  }
  std::string toString() const { return text_; }  // NOLINT: Catch2's name (version 2)
  std::string describe() const { return text_; }  // and that of version 3

 private:
  Tensors inputs_;
  GradcheckOptions options_;
  bool second_order_;
  mutable std::string text_;
};

#undef REGARD_CATCH_MATCHER_BASE

/// Matches what passes gradcheck(subject, inputs, options).
inline GradcheckMatcher passes_gradcheck(Tensors inputs, const GradcheckOptions& options = {}) {
  return {std::move(inputs), options, false};
}
/// Matches what passes gradgradcheck(subject, inputs, options).
inline GradcheckMatcher passes_gradgradcheck(Tensors inputs, const GradcheckOptions& options = {}) {
  return {std::move(inputs), options, true};
}

}  // namespace regard
