// Rules that rename the tensors of a state dict.
#include <catch2/catch.hpp>

#include <regard/regard.hpp>

namespace rename_test {

using namespace regard;
using namespace regard::layers;
using Catch::Matchers::Contains;

namespace {

std::vector<std::string> names(const StateDict& state) {
  std::vector<std::string> list;
  for (const auto& [name, tensor] : state) list.push_back(name);
  return list;
}
StateDict of(std::initializer_list<const char*> names) {
  StateDict state;
  for (const char* name : names) state[name] = zeros({2, 3});
  return state;
}
using Names = std::vector<std::string>;

template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("rename: parts, any text, the first rule that matches, and names that none does") {
  const StateDict state = of({"model.h.0.ln.weight", "model.h.11.ln.weight", "model.h.0.attn.bias", "wte", "model.x"});
  CHECK(names(rename(state, {})) == names(state));
  CHECK(names(rename(state, {{.from = "model.**", .to = "**"}})) ==
        Names{"h.0.attn.bias", "h.0.ln.weight", "h.11.ln.weight", "wte", "x"});
  CHECK(names(rename(state,
                     {{.from = "model.h.*.ln.*", .to = "blocks.*.norm.*"}, {.from = "model.**", .to = "rest.**"}})) ==
        Names{"blocks.0.norm.weight", "blocks.11.norm.weight", "rest.h.0.attn.bias", "rest.x", "wte"});
  CHECK(names(rename(state, {{.from = "**.attn.bias", .drop = true}, {.from = "*", .to = "tokens"}})) ==
        Names{"model.h.0.ln.weight", "model.h.11.ln.weight", "model.x", "tokens"});
  // `*` stands for something without dots, `**` for nothing as well; a pattern is the whole name.
  CHECK(names(rename(of({"a.b", "a.", "a.b.c"}), {{.from = "a.*", .to = "one"}})) == Names{"a.", "a.b.c", "one"});
  CHECK(names(rename(of({"a.", "b"}), {{.from = "a.**", .to = "any**"}})) == Names{"any", "b"});
  CHECK(names(rename(of({"a.weight.weight"}), {{.from = "**.weight", .to = "**"}})) == Names{"a.weight"});
  CHECK(names(rename(of({"h0", "h12x"}), {{.from = "h*", .to = "blocks.*"}})) == Names{"blocks.0", "blocks.12x"});
  CHECK(names(rename(of({"a.b.c"}), {{.from = "**.*.**", .to = "**/*/**"}})) == Names{"a/b/c"});
}

TEST_CASE("rename: transposes matrices, shares memory and leaves the state dict as it was") {
  StateDict state{{"a.weight", arange(6).view({2, 3})}, {"b.weight", arange(3)}};
  StateDict result = rename(state, {{.from = "a.weight", .transpose = true}, {.from = "b.*", .to = "c.*"}});
  CHECK(result.at("a.weight").shape() == Shape{3, 2});
  CHECK(equal(result.at("a.weight"), state.at("a.weight").t()));
  CHECK(result.at("c.weight").shares_storage_with(state.at("b.weight")));
  CHECK(names(state) == Names{"a.weight", "b.weight"});
}

TEST_CASE("rename: errors name the rule and the tensors") {
  const StateDict state = of({"a.x", "b.x", "c"});
  CHECK_THAT(message_of([&] {
               rename(state, {{.from = "q"}, {.from = "*.x", .to = "y"}});
             }),
             Contains("'a.x' (rule 2, '*.x' -> 'y') and 'b.x' (rule 2, '*.x' -> 'y') would both be named 'y'"));
  CHECK_THAT(message_of([&] { rename(state, {{.from = "a.x", .to = "c"}}); }),
             Contains("'a.x' (rule 1, 'a.x' -> 'c') and 'c' (no rule) would both be named 'c'"));
  CHECK_THAT(message_of([&] {
               rename({{"v", zeros({3})}}, {{.from = "**", .transpose = true}});
             }),
             Contains("'v' (rule 1, '**' transposed) is [3]: only a matrix"));
  CHECK_THAT(message_of([&] { rename(state, {{.from = "*.x", .to = "*.*"}}); }),
             Contains("rule 1") && Contains("2 wildcards") && Contains("1"));
  CHECK_THAT(message_of([&] { rename(state, {{.from = "", .to = "x"}}); }), Contains("matches no name"));
  CHECK_THAT(message_of([&] { rename(state, {{.from = "c", .to = "d", .drop = true}}); }), Contains("dropped"));
  CHECK_THAT(message_of([&] { rename(of({"a."}), {{.from = "a.**", .to = "**"}}); }), Contains("empty name"));
  CHECK_THAT(message_of([&] { rename({{"u", Tensor()}}, {}); }), Contains("u"));
}

}  // namespace rename_test
