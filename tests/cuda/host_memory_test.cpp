// A GPU whose memory is full.
#include <catch2/catch.hpp>

#include <regard/regard.hpp>

#include "../cuda_host/fibers.hpp"

namespace host_memory_test {

using namespace regard;
using Catch::Matchers::Contains;

TEST_CASE("cuda host: what does not fit into memory is said, and what fits goes on") {
  cuda_host::set_capacity(1 << 20);
  CHECK_THROWS_WITH(zeros({1 << 20}, cuda()), Contains("out of memory on cuda:0") && Contains("4194304 bytes"));
  cuda_host::set_capacity(size_t{4} << 30);
  CHECK(zeros({1 << 20}, cuda()).numel() == 1 << 20);
}

}  // namespace host_memory_test
