// main() of the tests that need a GPU: where there is none it says why and ends with 77, which ctest takes for skipped.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include <iostream>

#include <regard/autograd/cuda.hpp>

int main(int argc, char** argv) {
  if (!regard::cuda_is_available()) {
    std::cout << "skipped: no GPU: " << regard::why_no_cuda() << "\n";
    return 77;
  }
  return Catch::Session().run(argc, argv) == 0 ? 0 : 1;  // else 77 failures would count as skipped
}
