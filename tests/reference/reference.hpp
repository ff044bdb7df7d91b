// Reads the reference values that generate.py wrote, and compares tensors with them.
#pragma once

#include <catch2/catch.hpp>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <regard/autograd/ops.hpp>
#include <regard/autograd/tensor.hpp>

namespace reference {

using Json = nlohmann::json;
using regard::DType;
using regard::Shape;
using regard::Tensor;
using regard::Tensors;

/// The cases of one file, `load("ops_nn")`; never an empty list.
inline Json load(const std::string& name) {
  std::string path = std::string(REGARD_TEST_DATA_DIR) + "/" + name + ".json";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  Json cases = Json::parse(file).at("cases");
  if (cases.empty()) throw std::runtime_error(path + " holds no case");
  return cases;
}

/// A number; infinities and NaN are written as strings.
inline double number(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const auto& text = json.get_ref<const std::string&>();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  throw std::runtime_error("not a number: " + text);
}

inline std::vector<double> numbers(const Json& json) {
  std::vector<double> result;
  result.reserve(json.size());
  for (const Json& item : json) result.push_back(number(item));
  return result;
}

inline std::vector<int64_t> integers(const Json& json) { return json.get<std::vector<int64_t>>(); }
inline Shape shape(const Json& json) { return Shape(integers(json)); }

/// The dtype a tensor of the file has in a run whose floating type is `floating`.
inline DType dtype(const Json& json, DType floating) {
  const auto& name = json.at("dtype").get_ref<const std::string&>();
  if (name == "i64") return DType::i64;
  if (name == "bool") return DType::boolean;
  if (name == "f32") return DType::f32;  // whatever the run's: a quotient of integers
  return floating;
}

/// {"shape", "dtype", "data"} as a tensor; undefined for null. `requires_grad` is followed.
inline Tensor tensor(const Json& json, DType floating = DType::f64) {
  if (json.is_null()) return {};
  Shape size = shape(json.at("shape"));
  DType type = dtype(json, floating);
  Tensor result;
  if (type == DType::i64) {
    result = regard::from_vector<int64_t>(integers(json.at("data")), size);
  } else if (type == DType::boolean) {
    std::vector<int64_t> bits;
    for (const Json& bit : json.at("data")) bits.push_back(bit.get<bool>() ? 1 : 0);
    result = regard::from_vector<int64_t>(bits, size).to(DType::boolean);
  } else {
    result = regard::from_vector<double>(numbers(json.at("data")), size).to(floating);
  }
  if (json.value("requires_grad", false)) result.set_requires_grad();
  return result;
}

struct Tolerance {
  double relative;
  bool whole_tensor = false;  ///< relative to the largest element, not to each: for single precision
};
inline Tolerance tolerance(DType floating) { return floating == DType::f64 ? Tolerance{1e-10} : Tolerance{1e-5, true}; }

/// Empty where `got` has the shape, dtype and values of `want`; else what is wrong, for a message. The allowed
/// difference is relative * (1 + magnitude); infinities and NaN must be the same.
inline std::string difference(const Tensor& got, const Json& want, DType floating, Tolerance allowed) {
  std::ostringstream message;
  message.precision(17);
  if (!got.defined()) return "is undefined";
  if (got.shape() != shape(want.at("shape"))) {
    message << "has shape " << got.shape() << ", PyTorch's " << shape(want.at("shape"));
    return message.str();
  }
  if (got.dtype() != dtype(want, floating)) {
    message << "has dtype " << got.dtype() << ", expected " << dtype(want, floating);
    return message.str();
  }
  std::vector<double> values = got.to_vector<double>(), expected;
  for (const Json& item : want.at("data"))
    expected.push_back(item.is_boolean() ? static_cast<double>(item.get<bool>()) : number(item));
  if (values.size() != expected.size()) return "has another number of elements";
  double largest = 0;
  for (double e : expected)
    if (std::isfinite(e)) largest = std::max(largest, std::abs(e));
  for (size_t i = 0; i < values.size(); ++i) {
    double v = values[i], e = expected[i];
    bool same = std::isfinite(e)
                    ? std::abs(v - e) <= allowed.relative * (1 + (allowed.whole_tensor ? largest : std::abs(e)))
                    : (std::isnan(e) ? std::isnan(v) : v == e);
    if (!same) {
      message << "element " << i << " is " << v << ", PyTorch's " << e << " (differs by " << v - e << ")";
      return message.str();
    }
  }
  return {};
}
inline std::string difference(const Tensor& got, const Json& want, DType floating = DType::f64) {
  return difference(got, want, floating, tolerance(floating));
}

/// Adds a failed assertion that names what differs.
inline void check(const std::string& what, const Tensor& got, const Json& want, DType floating = DType::f64) {
  std::string wrong = difference(got, want, floating);
  INFO(what << " " << wrong);
  CHECK(wrong.empty());
}

/// A leaf's gradient; zeros where backward did not reach it.
inline Tensor gradient(const Tensor& leaf) {
  Tensor found = leaf.grad();
  return found.defined() ? found : regard::zeros_like(leaf);
}

}  // namespace reference
