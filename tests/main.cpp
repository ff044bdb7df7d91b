// The one place where Catch2 itself is compiled, and main() of the tests that need no GPU: they see none, even where
// there is one, since some are about machines without. (What stands in for a GPU in tests is another matter.)
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include <cstdlib>

int main(int argc, char** argv) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  return Catch::Session().run(argc, argv);
}
