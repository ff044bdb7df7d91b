// Selection: where, masked_fill, clamp.
#include <cstring>

#include <regard/autograd/backend/cpu/convert.hpp>
#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/iterate.hpp>

namespace regard::cpu_backend {
namespace {

// Selection moves elements without looking at them: one loop an element size.
template <class F>
void visit_word(DType dtype, F&& f) {
  switch (element_size(dtype)) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

}  // namespace

void where(const Tensor& y, const Tensor& condition, const Tensor& a, const Tensor& b) {
  visit_word(y.dtype(), [&]<class Word>(Word) {
    iterate<4>({&y, &condition, &a, &b}, cheap_grain, [](const auto& p, const auto& s, int64_t count) {
      auto* to = reinterpret_cast<Word*>(p[0]);
      const auto* chosen = reinterpret_cast<const uint8_t*>(p[1]);
      const auto* first = reinterpret_cast<const Word*>(p[2]);
      const auto* second = reinterpret_cast<const Word*>(p[3]);
      if (s[0] == 1 && s[1] == 1 && s[2] == 1 && s[3] == 1)
        for (int64_t i = 0; i < count; ++i) {
          const Word x = first[i], z = second[i];
          to[i] = chosen[i] ? x : z;
        }
      else
        for (int64_t i = 0; i < count; ++i) {
          const Word x = first[i * s[2]], z = second[i * s[3]];
          to[i * s[0]] = chosen[i * s[1]] ? x : z;
        }
    });
  });
}

void masked_fill(const Tensor& y, const Tensor& a, const Tensor& mask, Scalar value) {
  uint64_t bits = 0;
  visit_dtype(y.dtype(), [&]<class T>(T) {
    const T element = value.to<T>();
    std::memcpy(&bits, &element, sizeof(T));
  });
  visit_word(y.dtype(), [&]<class Word>(Word) {
    Word element;
    std::memcpy(&element, &bits, sizeof(Word));
    const auto loop = [element]<class Mask>(Mask, const auto& p, const auto& s, int64_t count) {
      auto* to = reinterpret_cast<Word*>(p[0]);
      const auto* from = reinterpret_cast<const Word*>(p[1]);
      const auto* masked = reinterpret_cast<const Mask*>(p[2]);
      if (s[0] == 1 && s[1] == 1 && s[2] == 1)
        for (int64_t i = 0; i < count; ++i) {
          const Word x = from[i];
          to[i] = masked[i] != 0 ? element : x;
        }
      else
        for (int64_t i = 0; i < count; ++i) {
          const Word x = from[i * s[1]];
          to[i * s[0]] = masked[i * s[2]] != 0 ? element : x;
        }
    };
    if (mask.dtype() == DType::i64)
      iterate<3>({&y, &a, &mask}, cheap_grain,
                 [&loop](const auto& p, const auto& s, int64_t count) { loop(int64_t{}, p, s, count); });
    else
      iterate<3>({&y, &a, &mask}, cheap_grain,
                 [&loop](const auto& p, const auto& s, int64_t count) { loop(uint8_t{}, p, s, count); });
  });
}

void clamp(const Tensor& y, const Tensor& a, double low, double high) {
  const auto run = [&]<class T>(T) {
    const T least = convert<T>(low), most = convert<T>(high);
    iterate<2>({&y, &a}, cheap_grain, [least, most](const auto& p, const auto& s, int64_t count) {
      auto* to = reinterpret_cast<T*>(p[0]);
      const auto* from = reinterpret_cast<const T*>(p[1]);
      const auto hold = [least, most](T x) {  // NaN passes both comparisons
        x = x < least ? least : x;
        return x > most ? most : x;
      };
      if (s[0] == 1 && s[1] == 1)
        for (int64_t i = 0; i < count; ++i) to[i] = hold(from[i]);
      else
        for (int64_t i = 0; i < count; ++i) to[i * s[0]] = hold(from[i * s[1]]);
    });
  };
  if (y.dtype() == DType::i64)
    run(int64_t{});
  else
    visit_compute(y.dtype(), run);
}

}  // namespace regard::cpu_backend
