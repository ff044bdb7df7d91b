// Every public op has a row in the table of op cases, and every layer a gradient check: read from the headers.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "layer_cases.hpp"
#include "op_cases/op_case.hpp"

namespace coverage_test {

using namespace regard;

namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  REQUIRE(file);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string without_comments(const std::string& text) { return std::regex_replace(text, std::regex("//[^\n]*"), ""); }

/// How often each function that makes or takes tensors is declared: name -> overloads.
std::map<std::string, int> declared_ops(const std::string& header) {
  // A declaration stands at the start of a line; its parameters may go over several.
  static const std::regex declaration(
      R"((?:^|\n)(?:inline )?(Tensor|Tensors|bool|void|std::pair<Tensor, Tensor>) (operator ?[^ \w(]+|\w+)\(([^;]*?)\)(?:;| \{ ))");
  std::map<std::string, int> ops;
  const std::string text = without_comments(header);
  for (auto match = std::sregex_iterator(text.begin(), text.end(), declaration); match != std::sregex_iterator();
       ++match) {
    const std::string result = (*match)[1], parameters = (*match)[3];
    if (result.find("Tensor") != std::string::npos || parameters.find("Tensor") != std::string::npos)
      ++ops[(*match)[2]];
  }
  return ops;
}

/// The structs of a header that derive from Layer.
std::set<std::string> declared_layers(const std::string& header) {
  static const std::regex declaration(R"((?:struct|class) (\w+)(?: final)? : (?:public )?(?:layers::)?Layer\b)");
  std::set<std::string> layers;
  const std::string text = without_comments(header);
  for (auto match = std::sregex_iterator(text.begin(), text.end(), declaration); match != std::sregex_iterator();
       ++match)
    layers.insert((*match)[1]);
  return layers;
}

op_cases::Table all_rows() {
  op_cases::Table table;
  for (auto part : {op_cases::arithmetic_cases, op_cases::unary_cases, op_cases::compare_cases, op_cases::select_cases,
                    op_cases::reduce_cases, op_cases::view_cases, op_cases::rearrange_cases, op_cases::index_cases,
                    op_cases::matrix_cases, op_cases::normalise_cases, op_cases::loss_cases, op_cases::attention_cases,
                    op_cases::rotary_cases, op_cases::random_cases})
    for (op_cases::OpCase& row : part()) table.push_back(std::move(row));
  return table;
}

}  // namespace

TEST_CASE("coverage: declarations of ops are found in a header's text") {
  const std::string header = R"(
// Tensor not_this(const Tensor& x);
Tensor one(const Tensor& x);  ///< Tensor nor_this(const Tensor& x)
inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator+(const Tensor& a, Scalar b) { return add(a, b); }
Tensor operator<=(const Tensor& a, const Tensor& b);
std::pair<Tensor, Tensor> two(const Tensor& x,
                              std::optional<double> y = std::nullopt);
Tensors several(const Tensor& x, const std::vector<int64_t>& sizes);
bool compared(const Tensor& a, double rtol = 1e-5);
Tensor with_options(const Tensor& x, const Tensor& weight = {}, const Options& options = {});
Tensor made(const Shape& shape, TensorOptions options = {}, Generator& g = default_generator());  ///< [0, 1)
void filled_(const Tensor& x);
void without_tensors(uint64_t seed);
constexpr double number(uint32_t bits) { return 0; }
enum class Kind : uint8_t { a, b };
)";
  CHECK(declared_ops(header) == std::map<std::string, int>{{"one", 1},
                                                           {"operator+", 2},
                                                           {"operator<=", 1},
                                                           {"two", 1},
                                                           {"several", 1},
                                                           {"compared", 1},
                                                           {"with_options", 1},
                                                           {"made", 1},
                                                           {"filled_", 1}});
}

TEST_CASE("coverage: layers are found in a header's text") {
  CHECK(declared_layers("struct Linear : Layer {\n// struct Not : Layer {\nstruct Options {\nclass Own final : public "
                        "layers::Layer {\nstruct LayerNorm : Layer {") ==
        std::set<std::string>{"Linear", "Own", "LayerNorm"});
}

TEST_CASE("coverage: every public op has a row for each of its overloads in the table of op cases") {
  const std::filesystem::path autograd = std::filesystem::path(REGARD_SOURCE_DIR) / "autograd";
  std::map<std::string, int> ops = declared_ops(text_of(autograd / "ops.hpp"));
  for (const auto& [name, overloads] : declared_ops(text_of(autograd / "random.hpp"))) ops[name] += overloads;
  CHECK(ops.size() > 100);  // the headers were read
  CHECK(ops.contains("matmul"));
  CHECK(ops["operator-"] == 4);

  std::map<std::string, int> rows;
  int total = 0;
  for (const op_cases::OpCase& row : all_rows()) {
    ++rows[row.op];
    ++total;
  }
  int overloads = 0;
  for (const auto& [name, count] : ops) {
    INFO("the op '" << name << "' has " << count << " overloads and " << rows[name]
                    << " rows: add them to a table in tests/op_cases/");
    CHECK(rows[name] >= count);
    overloads += count;
  }
  for (const auto& [name, count] : rows) {
    INFO("'" << name << "' of the table is no public op");
    CHECK(ops.contains(name));
  }
  std::cout << "coverage: " << total << " op cases over " << ops.size() << " ops with " << overloads << " overloads\n";
}

namespace {

// The layers that the headers of `folder` declare, `expected` among them, and the rows of `cases` are the same.
void check_layers(const char* folder, const std::string& expected, const std::vector<layer_cases::LayerCase>& cases,
                  const char* table) {
  std::set<std::string> layers;
  for (const auto& file : std::filesystem::directory_iterator(std::filesystem::path(REGARD_SOURCE_DIR) / folder))
    if (file.path().extension() == ".hpp") layers.merge(declared_layers(text_of(file.path())));
  CHECK(layers.contains(expected));  // the headers were read

  std::map<std::string, int> rows;
  for (const layer_cases::LayerCase& row : cases) ++rows[row.layer];
  for (const std::string& name : layers) {
    INFO("the layer '" << name << "' has no gradient check: add a row to the table in " << table);
    CHECK(rows[name] > 0);
  }
  for (const auto& [name, count] : rows) {
    INFO("'" << name << "' of the table is no layer");
    CHECK(layers.contains(name));
  }
  std::cout << "coverage: " << cases.size() << " gradient checks over " << layers.size() << " layers of " << folder
            << "/\n";
}

}  // namespace

TEST_CASE("coverage: every layer has a gradient check") {
  check_layers("layers", "MultiHeadAttention", layer_cases::layer_cases(), "tests/layers_test.cpp");
}

TEST_CASE("coverage: every model has a gradient check") {
  check_layers("layers/models", "GPT", layer_cases::model_cases(), "tests/models_test.cpp");
}

}  // namespace coverage_test
