// What attention's kernels work on, and the memory they work in.
#pragma once

#include <cstddef>
#include <cstdint>

#include <regard/autograd/backend/allocator.hpp>

namespace regard::cpu_backend {

/// A [N, H, length, width] tensor in memory.
template <class T>
struct HeadRows {
  T* data = nullptr;
  int64_t batch = 0, head = 0, row = 0, column = 0;  // strides
  T* at(int64_t n, int64_t h) const { return data + n * batch + h * head; }
  explicit operator bool() const { return data != nullptr; }
};

enum class MaskKind : uint8_t { none, boolean, integer, floating };

template <class T>
struct AttentionProblem {
  int64_t batch, heads, queries, keys, width, value_width;
  int64_t group;  // query heads that share a head of keys and values: head h uses h / group of k, v, dk and dv
  HeadRows<const T> q, k, v;
  HeadRows<T> y;           // the output; read only in backward
  T* statistics;           // [N, H, 2, L]: largest score and inverse sum of each row
  HeadRows<const T> dy;    // backward alone, and so are delta and the gradients
  const T* delta;          // [N, H, L]: the sum of dy y of each row; null: from y
  HeadRows<T> dq, dk, dv;  // no data: not wanted
  MaskKind mask_kind;
  HeadRows<const char> mask;  // strides in elements of its kind
  MaskKind key_mask_kind;
  const char* key_mask;
  int64_t key_mask_batch, key_mask_key;  // strides
  const double* slopes;                  // [H] of ALiBi; null: none
  T scale;
  bool causal;
  bool drops;
  uint32_t drop_threshold;  // weights whose upper 24 bits are below are dropped ...
  T keep_scale;             // ... and the others multiplied
  uint64_t seed, offset;

  int64_t key_head(int64_t head) const { return group == 1 ? head : head / group; }
  /// How many keys queries up to `last` may see.
  int64_t visible_keys(int64_t last) const {
    if (!causal) return keys;
    const int64_t visible = last + 1 + keys - queries;
    return visible < 0 ? 0 : visible < keys ? visible : keys;
  }
  /// Whether keys may be blocked for every query alike: what stands there must not be read.
  bool blocks_keys() const {
    return key_mask_kind != MaskKind::none ||
           ((mask_kind == MaskKind::boolean || mask_kind == MaskKind::integer) && (mask.row == 0 || queries == 1));
  }
};

/// Memory for one tile of work: on the stack where it fits.
class AttentionMemory {
 public:
  explicit AttentionMemory(int64_t bytes) : bytes_(bytes) {
    if (bytes > static_cast<int64_t>(sizeof(stack_))) heap_ = allocate_memory(bytes, {});
  }
  ~AttentionMemory() {
    if (heap_ != nullptr) free_memory(heap_, bytes_, {});
  }
  AttentionMemory(const AttentionMemory&) = delete;
  AttentionMemory& operator=(const AttentionMemory&) = delete;
  std::byte* data() { return heap_ != nullptr ? static_cast<std::byte*>(heap_) : stack_; }

 private:
  int64_t bytes_;
  void* heap_ = nullptr;
  alignas(64) std::byte stack_[16 * 1024];
};

/// Hands out parts of one block of memory, each aligned to 64 bytes; with no memory, counts what they would take.
class AttentionParts {
 public:
  explicit AttentionParts(std::byte* memory) : memory_(memory) {}
  template <class Element>
  Element* take(int64_t count) {
    std::byte* part = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (count * static_cast<int64_t>(sizeof(Element)) + 63) / 64 * 64;
    return reinterpret_cast<Element*>(part);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* memory_;
  int64_t used_ = 0;
};

}  // namespace regard::cpu_backend
