// Random numbers on the CPU. Every value is a function of (seed, counter) made of integer arithmetic and of IEEE
// operations alone (see random_blocks.cpp): the same bits on every machine and any number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/parallel.hpp>
#include <regard/autograd/backend/cpu/random_blocks.hpp>
#include <regard/autograd/philox.hpp>
#include <regard/autograd/random.hpp>

namespace regard::cpu_backend {

namespace {

constexpr int64_t block_size = BitBlock::size;
constexpr int64_t elements_a_chunk = 2048;  // some microseconds of work

/// A tensor's elements by logical row-major index, whatever its layout.
template <class T>
class Elements {
 public:
  explicit Elements(const Tensor& x)
      : data_(static_cast<T*>(x.raw_data())), shape_(x.shape()), strides_(x.strides()), dense_(x.is_contiguous()) {}

  /// Where to compute elements first ...: in place when dense, else in `buffer`, and store() brings them home.
  T* place(int64_t first, T* buffer) const { return dense_ ? data_ + first : buffer; }
  void store(int64_t first, int64_t count, const T* buffer) const {
    if (!dense_) walk(first, count, [&](int64_t i, T& element) { element = buffer[i]; });
  }
  /// The elements first ..., in place when dense, else copied to `buffer`.
  const T* load(int64_t first, int64_t count, T* buffer) const {
    if (dense_) return data_ + first;
    walk(first, count, [&](int64_t i, T& element) { buffer[i] = element; });
    return buffer;
  }

 private:
  template <class F>
  void walk(int64_t first, int64_t count, F&& f) const {
    if (count == 0) return;
    Shape position = shape_;
    int64_t offset = 0;
    for (int64_t d = shape_.dim() - 1, rest = first; d >= 0; --d) {
      position[d] = rest % shape_[d];
      rest /= shape_[d];
      offset += position[d] * strides_[d];
    }
    for (int64_t i = 0; i < count; ++i) {
      f(i, data_[offset]);
      for (int64_t d = shape_.dim() - 1; d >= 0; --d) {
        offset += strides_[d];
        if (++position[d] < shape_[d]) break;
        offset -= strides_[d] * shape_[d];
        position[d] = 0;
      }
    }
  }

  T* data_;
  Shape shape_;
  Strides strides_;
  bool dense_;
};

/// Fills y in blocks, from the first `words` words of each counter: `make(bits, first, count, out)` computes the
/// elements first ... of the logical order.
template <class T, class Make>
void fill_blocks(const Tensor& y, uint64_t seed, uint64_t offset, int words, const Make& make) {
  Elements<T> elements(y);
  parallel_for_short(y.numel(), elements_a_chunk, [&](int64_t begin, int64_t end) {
    BitBlock bits;
    alignas(64) T buffer[block_size];
    for (int64_t first = begin; first < end; first += block_size) {
      int64_t count = std::min(block_size, end - first);
      fill_bits(bits, seed, offset + static_cast<uint64_t>(first), count, words);
      make(bits, first, count, elements.place(first, buffer));
      elements.store(first, count, buffer);
    }
  });
}

float uniform_of(const BitBlock& bits, int64_t i, float) { return uniform_float(bits.word[0][i]); }
double uniform_of(const BitBlock& bits, int64_t i, double) { return uniform_double(bits.word[0][i], bits.word[1][i]); }

}  // namespace

void uniform(const Tensor& y, double low, double high, uint64_t seed, uint64_t offset) {
  visit_compute(y.dtype(), [&]<class T>(T) {
    auto start = static_cast<T>(low), end = static_cast<T>(high);
    auto range = static_cast<T>(high - low);
    // Rounding may reach `high`, which is left out: such a value becomes the largest one below.
    T last = end > start ? std::nextafter(end, start) : start;
    fill_blocks<T>(y, seed, offset, sizeof(T) == 4 ? 1 : 2, [=](const BitBlock& bits, int64_t, int64_t count, T* out) {
      for (int64_t i = 0; i < count; ++i) {
        T value = start + range * uniform_of(bits, i, T{});
        out[i] = value < last ? value : last;
      }
    });
  });
}

void normal(const Tensor& y, double mean, double std, uint64_t seed, uint64_t offset) {
  visit_compute(y.dtype(), [&]<class T>(T) {
    auto centre = static_cast<T>(mean), width = static_cast<T>(std);
    fill_blocks<T>(y, seed, offset, sizeof(T) == 4 ? 2 : 4, [=](const BitBlock& bits, int64_t, int64_t count, T* out) {
      fill_normal(bits, count, centre, width, out);
    });
  });
}

void randint(const Tensor& y, int64_t low, int64_t high, uint64_t seed, uint64_t offset) {
  uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  fill_blocks<int64_t>(y, seed, offset, 2, [=](const BitBlock& bits, int64_t, int64_t count, int64_t* out) {
    for (int64_t i = 0; i < count; ++i) {
      uint64_t word = uint64_t{bits.word[0][i]} << 32 | bits.word[1][i];
      out[i] = static_cast<int64_t>(static_cast<uint64_t>(low) + regard::detail::scale_bits(word, range));
    }
  });
}

void bernoulli(const Tensor& y, const Tensor& p, uint64_t seed, uint64_t offset) {
  visit_compute(y.dtype(), [&]<class T>(T) {
    Elements<T> probabilities(p);
    fill_blocks<T>(y, seed, offset, sizeof(T) == 4 ? 1 : 2,
                   [&](const BitBlock& bits, int64_t first, int64_t count, T* out) {
                     T buffer[block_size];
                     const T* probability = probabilities.load(first, count, buffer);
                     for (int64_t i = 0; i < count; ++i)
                       out[i] = uniform_of(bits, i, T{}) < probability[i] ? T{1} : T{0};
                   });
  });
}

void dropout(const Tensor& y, const Tensor& a, double p, uint64_t seed, uint64_t offset) {
  // The uniform number is bits * 2^-24 in both dtypes, so that f32 and f64 drop the same elements; it is at least
  // p exactly when bits >= p * 2^24.
  auto threshold = static_cast<uint32_t>(std::ceil(p * 0x1p24));
  visit_compute(y.dtype(), [&]<class T>(T) {
    auto scale = static_cast<T>(p < 1 ? 1 / (1 - p) : 0);
    Elements<T> source(a);
    fill_blocks<T>(y, seed, offset, 1, [&](const BitBlock& bits, int64_t first, int64_t count, T* out) {
      T buffer[block_size];
      const T* x = source.load(first, count, buffer);
      drop(bits, count, x, threshold, scale, out);
    });
  });
}

}  // namespace regard::cpu_backend
