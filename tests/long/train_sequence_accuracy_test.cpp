// What train_sequence promises: each task is learned with its own defaults, from any seed.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regard/examples/common/random.hpp>
#include <string>

namespace train_sequence_accuracy_test {

namespace fs = std::filesystem;

namespace {

// The percentage in the last line that train_sequence prints.
double exact_match(const std::string& arguments) {
  std::string pattern = (fs::temp_directory_path() / "regard-accuracy-XXXXXX").string();
  const fs::path folder = ::mkdtemp(pattern.data());
  {
    // 6000 words of random letters, backwards. They are in every folder, so that a --pairs finds them.
    examples::Random random(1);
    std::ofstream pairs(folder / "words.tsv");
    for (int i = 0; i < 6000; ++i) {
      std::string word;
      for (int64_t length = 3 + random.below(10); length > 0; --length)
        word += static_cast<char>('a' + static_cast<char>(random.below(26)));
      pairs << word << "\t" << std::string(word.rbegin(), word.rend()) << "\n";
    }
  }
  const std::string command = "cd '" + folder.string() + "' && '" REGARD_EXAMPLES_DIR "/train_sequence' " + arguments +
                              " >out 2>err </dev/null";
  const int status = std::system(command.c_str());
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  std::ifstream out(folder / "out");
  std::string last;
  for (std::string line; std::getline(out, line);) last = line;
  double percent = -1;
  std::sscanf(last.c_str(), "held-out exact match: %lf%%", &percent);
  fs::remove_all(folder);
  return percent;
}

}  // namespace

TEST_CASE("train_sequence reverses from any of five seeds") {
  for (int seed = 1; seed <= 5; ++seed) {
    INFO("seed " << seed);
    CHECK(exact_match("--seed " + std::to_string(seed)) >= 99);
  }
}

TEST_CASE("train_sequence learns each task with its own defaults") {
  for (const char* task : {"copy", "sort", "add"}) {
    INFO(task);
    CHECK(exact_match(std::string("--task ") + task) >= 99);
  }
}

TEST_CASE("train_sequence learns pairs of a file with its own defaults") {
  CHECK(exact_match("--pairs words.tsv") >= 95);
}

}  // namespace train_sequence_accuracy_test
