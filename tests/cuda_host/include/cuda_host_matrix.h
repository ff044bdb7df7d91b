// Matrix instructions on the CPU: what autograd/backend/cuda/matrix.hpp has in the place of PTX. The lanes' registers
// are put together and taken apart as PTX's documentation lays them out, so that a kernel that takes an element for
// another gets other numbers here as it does on a GPU.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace cuda_host {

/// mma.sync.aligned.m16n8k16.row.col with sums of f32: c [16, 8] += a [16, 16] b [16, 8]. Number: a function without
/// state from the bits of an element to its value.
template <class Number>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Number) {
  struct Registers {
    float* c;
    const uint32_t *a, *b;
  } own{c, a, b};
  const auto work = [](void* const* given) {
    float left[16][16], right[16][8], sums[16][8];
    const auto put = [](uint32_t word, float& first, float& second) {
      first = Number()(static_cast<uint16_t>(word));
      second = Number()(static_cast<uint16_t>(word >> 16));
    };
    for (unsigned lane = 0; lane < 32; ++lane) {
      const Registers& from = *static_cast<const Registers*>(given[lane]);
      const unsigned g = lane / 4, t = lane % 4;
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = g + i % 2 * 8, column = 2 * t + i / 2 * 8;
        put(from.a[i], left[row][column], left[row][column + 1]);
        sums[g + i / 2 * 8][2 * t + i % 2] = from.c[i];
      }
      for (unsigned i = 0; i < 2; ++i) put(from.b[i], right[2 * t + i * 8][g], right[2 * t + i * 8 + 1][g]);
    }
    for (unsigned row = 0; row < 16; ++row)
      for (unsigned k = 0; k < 16; ++k)
        for (unsigned column = 0; column < 8; ++column) sums[row][column] += left[row][k] * right[k][column];
    for (unsigned lane = 0; lane < 32; ++lane)
      for (unsigned i = 0; i < 4; ++i)
        static_cast<const Registers*>(given[lane])->c[i] = sums[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
  };
  meet(&own, work, "mma.sync");
}

/// ldmatrix.sync.aligned.m8n8.x4.shared.b16, with .trans where `transposed`.
inline void load_matrices(uint32_t (&words)[4], const void* row, bool transposed) {
  struct Registers {
    uint32_t* words;
    const void* row;
    bool transposed;
  } own{words, row, transposed};
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) find_fault("ldmatrix: the address of a row is no multiple of 16");
  const auto work = [](void* const* given) {
    uint16_t matrices[4][8][8];
    for (unsigned lane = 0; lane < 32; ++lane)
      std::memcpy(matrices[lane / 8][lane % 8], static_cast<const Registers*>(given[lane])->row, 16);
    for (unsigned lane = 0; lane < 32; ++lane) {
      const Registers& to = *static_cast<const Registers*>(given[lane]);
      const unsigned g = lane / 4, t = lane % 4;
      for (unsigned m = 0; m < 4; ++m) {
        const auto& matrix = matrices[m];
        const uint32_t first = to.transposed ? matrix[2 * t][g] : matrix[g][2 * t];
        const uint32_t second = to.transposed ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1];
        to.words[m] = first | second << 16;
      }
    }
  };
  meet(&own, work, "ldmatrix");
}

}  // namespace cuda_host
