// The programs that README.md shows are those in tests/readme/, which are compiled and run.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace readme_test {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  REQUIRE(file);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("README.md shows the programs of tests/readme, to the letter") {
  const std::filesystem::path root = REGARD_SOURCE_DIR;
  std::set<std::string> shown;
  const std::string page = read(root / "README.md"), fence = "```cpp\n";
  for (size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, at)) {
    at += fence.size();
    const size_t end = page.find("```", at);
    REQUIRE(end != std::string::npos);
    shown.insert(page.substr(at, end - at));
  }
  std::set<std::string> programs;
  for (const auto& entry : std::filesystem::directory_iterator(root / "tests" / "readme"))
    programs.insert(read(entry.path()));
  CHECK(programs.size() >= 2);
  CHECK(shown == programs);
}

}  // namespace readme_test
