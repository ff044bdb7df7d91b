// What train_translation promises: dates are learned with the defaults.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace fs = std::filesystem;

TEST_CASE("train_translation learns dates") {
  std::string pattern = (fs::temp_directory_path() / "regard-accuracy-XXXXXX").string();
  const fs::path folder = ::mkdtemp(pattern.data());
  const std::string command =
      "cd '" + folder.string() + "' && '" REGARD_EXAMPLES_DIR "/train_translation' --name dates >out 2>err </dev/null";
  const int status = std::system(command.c_str());
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  std::ifstream file(folder / "runs/dates/results.json");
  const auto results = nlohmann::json::parse(file);
  CHECK(results.at("greedy").at("exact_match").get<double>() >= 0.99);
  CHECK(results.at("beam").at("exact_match").get<double>() >= 0.99);
  CHECK(results.at("beam").at("questions") == 2000);
  fs::remove_all(folder);
}
