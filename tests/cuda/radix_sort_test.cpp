// The sort behind sums at indices.
#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>
#include <vector>

#include <regard/autograd/backend/cuda/radix_sort.hpp>
#include <regard/regard.hpp>

namespace radix_sort_test {

using namespace regard;
using namespace regard::cuda_backend;

template <class Key>
void check_sorted(size_t count, Key below) {
  INFO(count << " keys below " << below);
  std::mt19937_64 random(count);
  std::vector<Key> keys(count);
  for (Key& key : keys) key = static_cast<Key>(random() % below);
  std::vector<uint32_t> positions(count);
  std::iota(positions.begin(), positions.end(), 0U);

  RadixSort<Key> sorting(static_cast<int64_t>(count), cuda());
  const auto copy = [](void* to, Device to_device, const void* from, Device from_device, size_t bytes) {
    copy_memory("sort", to, to_device, from, from_device, static_cast<int64_t>(bytes));
  };
  copy(sorting.keys(), cuda(), keys.data(), cpu(), count * sizeof(Key));
  copy(sorting.positions(), cuda(), positions.data(), cpu(), count * sizeof(uint32_t));
  sorting.sort("sort", stream_of(cuda()), std::bit_width(static_cast<uint64_t>(below - 1)));
  std::vector<Key> got_keys(count);
  std::vector<uint32_t> got_positions(count);
  copy(got_keys.data(), cpu(), sorting.keys(), cuda(), count * sizeof(Key));
  copy(got_positions.data(), cpu(), sorting.positions(), cuda(), count * sizeof(uint32_t));

  std::stable_sort(positions.begin(), positions.end(), [&](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
  CHECK(got_positions == positions);
  std::sort(keys.begin(), keys.end());
  CHECK(got_keys == keys);
}

TEST_CASE("cuda radix sort: stable, any number of keys and bits") {
  check_sorted<uint32_t>(1, 1);
  check_sorted<uint32_t>(37, 5);
  check_sorted<uint32_t>(2048, 256);
  check_sorted<uint32_t>(2049, 257);
  check_sorted<uint32_t>(20000, 50257);
  check_sorted<uint32_t>(5000, UINT32_MAX);
  check_sorted<uint64_t>(5000, uint64_t{1} << 45);
}

}  // namespace radix_sort_test
