// What train_translation promises: dates are learned with the defaults.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <regard/tests/program_folder.hpp>

namespace train_translation_accuracy_test {

TEST_CASE("train_translation learns dates") {
  const test::ProgramFolder folder;
  const test::Ran ran = folder.run_program("train_translation", "--name dates");
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const auto results = nlohmann::json::parse(test::read_raw(folder.path / "runs/dates/results.json"));
  CHECK(results.at("greedy").at("exact_match").get<double>() >= 0.99);
  CHECK(results.at("beam").at("exact_match").get<double>() >= 0.99);
  CHECK(results.at("beam").at("questions") == 2000);
}

}  // namespace train_translation_accuracy_test
