// What tests of the example programs share: a folder to run them in, and what a run left there.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "test_folder.hpp"

namespace test {

inline std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// How a program ended, and what it wrote.
struct Ran {
  int status;
  std::string out, err;
};

/// An empty folder in which the example programs run.
struct ProgramFolder : Folder {
  /// Runs a program here with `input` on its standard input; `before` is shell text in front of the command.
  Ran run_program(const std::string& program, const std::string& arguments, const std::string& input = "",
                  const std::string& before = "") const {
    const std::filesystem::path log = path / "log";
    std::filesystem::create_directories(log);
    std::ofstream(log / "in", std::ios::binary) << input;
    const std::string command = "cd '" + path.string() + "' || exit 99; " + before + " exec '" + REGARD_EXAMPLES_DIR +
                                "/" + program + "' " + arguments + " >log/out 2>log/err <log/in";
    const int status = std::system(command.c_str());
    REQUIRE(WIFEXITED(status));
    return {WEXITSTATUS(status), read_raw(log / "out"), read_raw(log / "err")};
  }

  /// The lines of runs/NAME/metrics.jsonl, without the key named, which differs from run to run.
  std::vector<nlohmann::json> metrics_without(const std::string& key, const std::string& name) const {
    std::vector<nlohmann::json> steps;
    for (const std::string& line : lines_of(read_raw(path / "runs" / name / "metrics.jsonl"))) {
      steps.push_back(nlohmann::json::parse(line));
      steps.back().erase(key);
    }
    return steps;
  }
  nlohmann::json config(const std::string& name) const {
    return nlohmann::json::parse(read_raw(path / "runs" / name / "config.json"));
  }
};

}  // namespace test
