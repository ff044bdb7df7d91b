// Functions of f32 vectors. Included once for each instruction set, between HWY_BEFORE_NAMESPACE's and its end.
//
// The errors given are the largest seen, in units in the last place (ulp), against f64, over every 499th or 997th float
// of both signs, with AVX-512, AVX2 and without either; subnormal results count in the smallest unit. NaN gives NaN,
// and infinities the limits. tests/elementwise_test.cpp holds them to it.
#if defined(REGARD_AUTOGRAD_BACKEND_CPU_SIMD_MATH_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef REGARD_AUTOGRAD_BACKEND_CPU_SIMD_MATH_INL_HPP
#undef REGARD_AUTOGRAD_BACKEND_CPU_SIMD_MATH_INL_HPP
#else
#define REGARD_AUTOGRAD_BACKEND_CPU_SIMD_MATH_INL_HPP
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// c[0] x^n + c[1] x^(n-1) + ... + c[n]
template <class D, size_t N, class V = hn::Vec<D>>
HWY_INLINE V polynomial(D d, V x, const float (&c)[N]) {
  V sum = hn::Set(d, c[0]);
  for (size_t i = 1; i < N; ++i) sum = hn::MulAdd(sum, x, hn::Set(d, c[i]));
  return sum;
}

/// The same in even and odd powers side by side: half as long a chain of sums that wait for one another.
template <class D, size_t N, class V = hn::Vec<D>>
HWY_INLINE V polynomial_in_two(D d, V x, const float (&c)[N]) {
  const V z = hn::Mul(x, x);
  V sums[2];
  for (size_t power = 0; power < 2; ++power) {
    const size_t first = (N - 1 - power) % 2;
    sums[power] = hn::Set(d, c[first]);
    for (size_t i = first + 2; i < N; i += 2) sums[power] = hn::MulAdd(sums[power], z, hn::Set(d, c[i]));
  }
  return hn::MulAdd(sums[1], x, sums[0]);
}
/// And by powers modulo four, for long ones.
template <class D, size_t N, class V = hn::Vec<D>>
HWY_INLINE V polynomial_in_four(D d, V x, const float (&c)[N]) {
  const V z = hn::Mul(x, x), y = hn::Mul(z, z);
  V sums[4];
  for (size_t power = 0; power < 4; ++power) {
    const size_t first = (N - 1 - power) % 4;
    sums[power] = hn::Set(d, c[first]);
    for (size_t i = first + 4; i < N; i += 4) sums[power] = hn::MulAdd(sums[power], y, hn::Set(d, c[i]));
  }
  return hn::MulAdd(hn::MulAdd(sums[3], x, sums[2]), z, hn::MulAdd(sums[1], x, sums[0]));
}

/// min(max(x, low), high); NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V hold(D d, V x, float low, float high) {
  const V l = hn::Set(d, low), h = hn::Set(d, high);
  x = hn::IfThenElse(hn::Lt(x, l), l, x);
  return hn::IfThenElse(hn::Gt(x, h), h, x);
}

/// exp(x + tail) for a small tail, as a product of two numbers, the second a power of two: a factor that goes between
/// them does not meet a rounded subnormal. x = n ln 2 + r, a polynomial of degree 7 in r (Cephes), and 2^n in two
/// factors so that neither leaves the range.
template <class D, class V = hn::Vec<D>>
struct Exponential {
  V scaled, power;
  HWY_INLINE Exponential(D d, V x, V tail) {
    const hn::RebindToSigned<D> di;
    x = hold(d, x, -115.0F, 89.0F);
    const auto n = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504F)));
    const V nf = hn::ConvertTo(d, n);
    V r = hn::NegMulAdd(nf, hn::Set(d, 0.693359375F), x);  // exact: the constant has ten bits
    r = hn::Add(hn::NegMulAdd(nf, hn::Set(d, -2.12194440e-4F), r), tail);
    constexpr float c[] = {1.9875691500e-4F, 1.3981999507e-3F, 8.3334519073e-3F,
                           4.1665795894e-2F, 1.6666665459e-1F, 5.0000001201e-1F};
    const V p = hn::Add(hn::MulAdd(polynomial(d, r, c), hn::Mul(r, r), r), hn::Set(d, 1.0F));
    const auto half = hn::ShiftRight<1>(n), bias = hn::Set(di, 127);
    scaled = hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias))));
    power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(n, half), bias)));
  }
  HWY_INLINE V value() const { return hn::Mul(scaled, power); }
  HWY_INLINE V times(V factor) const { return hn::Mul(hn::Mul(scaled, factor), power); }
};

/// exp(x): within 1.0 ulp.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V simd_exp(D d, V x) {
  return Exponential<D>(d, x, hn::Zero(d)).value();
}

/// log(x): within 0.8 ulp. x = 2^k m with m about 1, and fdlibm's series in (m - 1) / (m + 1).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V simd_log(D d, V x) {
  const hn::RebindToSigned<D> di;
  const auto small = hn::Lt(x, hn::Set(d, 1.17549435e-38F));
  const V scaled = hn::IfThenElse(small, hn::Mul(x, hn::Set(d, 33554432.0F)), x);  // 2^25
  const auto shift = hn::Set(di, 0x3f800000 - 0x3f3504f3);
  const auto bits = hn::Add(hn::BitCast(di, scaled), shift);
  auto k = hn::Sub(hn::ShiftRight<23>(bits), hn::Set(di, 127));
  V kf = hn::ConvertTo(d, k);
  kf = hn::Sub(kf, hn::IfThenElseZero(small, hn::Set(d, 25.0F)));
  const V m = hn::BitCast(d, hn::Add(hn::And(bits, hn::Set(di, 0x007fffff)), hn::Set(di, 0x3f3504f3)));
  const V f = hn::Sub(m, hn::Set(d, 1.0F));
  const V s = hn::Div(f, hn::Add(hn::Set(d, 2.0F), f));
  const V z = hn::Mul(s, s), w = hn::Mul(z, z);
  const V even = hn::Mul(w, hn::MulAdd(w, hn::Set(d, 0.24279078841F), hn::Set(d, 0.40000972152F)));
  const V odd = hn::Mul(z, hn::MulAdd(w, hn::Set(d, 0.28498786688F), hn::Set(d, 0.66666662693F)));
  const V half_square = hn::Mul(hn::Set(d, 0.5F), hn::Mul(f, f));
  const V sum = hn::MulAdd(s, hn::Add(half_square, hn::Add(even, odd)), hn::Mul(kf, hn::Set(d, 9.0580006145e-6F)));
  V y = hn::MulAdd(kf, hn::Set(d, 0.69313812256F), hn::Sub(f, hn::Sub(half_square, sum)));
  const V infinity = hn::Inf(d);
  y = hn::IfThenElse(hn::Eq(x, infinity), infinity, y);
  y = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(infinity), y);
  return hn::IfThenElse(hn::Ge(x, hn::Zero(d)), y, hn::NaN(d));  // NaN for negative numbers and NaN
}

/// tanh(x): within 1.3 ulp. Odd polynomial below 0.625 (Cephes), 1 - 2 / (exp(2 x) + 1) beyond.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V simd_tanh(D d, V x) {
  const V one = hn::Set(d, 1.0F), two = hn::Set(d, 2.0F), a = hn::Abs(x), z = hn::Mul(x, x);
  constexpr float c[] = {-5.70498872745e-3F, 2.06390887954e-2F, -5.37397155531e-2F, 1.33314422036e-1F,
                         -3.33332819422e-1F};
  const V near = hn::MulAdd(hn::Mul(polynomial(d, z, c), z), x, x);
  const V far = hn::Sub(one, hn::Div(two, hn::Add(simd_exp(d, hn::Add(a, a)), one)));
  return hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.625F)), near, hn::CopySign(far, x));
}

/// exp(-|x|), 1 / (1 + exp(-|x|)): what sigmoid and its gradients are made of.
template <class D, class V = hn::Vec<D>>
struct Logistic {
  Exponential<D> exponential;
  V e, larger;
  HWY_INLINE Logistic(D d, V x)
      : exponential(d, hn::Neg(hn::Abs(x)), hn::Zero(d)),
        e(exponential.value()),
        larger(hn::Div(hn::Set(d, 1.0F), hn::Add(hn::Set(d, 1.0F), e))) {}
  HWY_INLINE V sigmoid(D d, V x) const { return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Mul(e, larger), larger); }
  /// factor * sigmoid(x)
  HWY_INLINE V times_sigmoid(D d, V x, V factor) const {
    const V product = hn::Mul(factor, larger);
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), exponential.times(product), product);
  }
  HWY_INLINE V derivative() const { return hn::Mul(hn::Mul(e, larger), larger); }
};

/// 1 / (1 + exp(-x)): within 2.2 ulp, in both tails.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V simd_sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0F), e = simd_exp(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

/// erf(x): within 1.1 ulp. Odd polynomial below 0.9277, 1 - exp(p(|x|)) beyond.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V simd_erf(D d, V x) {
  const V a = hn::Abs(x);
  const V t = hold(d, a, 0.0F, 4.0F);  // erf(4) rounds to 1
  constexpr float far[] = {-1.72853470e-5F, 3.83197126e-4F,  -3.88396438e-3F, 2.42546219e-2F,
                           -1.06777877e-1F, -6.34846687e-1F, -1.28717512e-1F};
  const V exponent = hn::MulSub(polynomial(d, t, far), t, t);
  const V beyond = hn::Sub(hn::Set(d, 1.0F), simd_exp(d, exponent));
  const V s = hn::Mul(x, x);
  constexpr float near[] = {-5.96761703e-4F, 4.99119423e-3F,  -2.67681349e-2F,
                            1.12819925e-1F,  -3.76125336e-1F, 1.28379166e-1F};
  const V inside = hn::MulAdd(polynomial(d, s, near), x, x);
  return hn::IfThenElse(hn::Gt(a, hn::Set(d, 0.927734375F)), hn::CopySign(beyond, x),
                        hn::IfThenElse(hn::Eq(x, x), inside, x));
}

/// x, or -200 where it is below: x exp(-|x|) is 0 there, and 0 it stays where exp has stopped to fall.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V far_below(D d, V x) {
  const V bound = hn::Set(d, -200.0F);
  return hn::IfThenElse(hn::Lt(x, bound), bound, x);
}

/// x Phi(x), Phi the normal distribution's function: within 3.8 ulp, in both tails.
///
/// With u = |x| and w = u / (u + 3), u Phi(-u) = exp(-u^2 / 2) w P(2 w - 1), P of degree 10, fitted over [0, 15] to
/// 1e-9. What is 0 for u = 15 is 0 beyond. The square is taken in two parts, so that the exponential has the accuracy
/// of a float; its power of two is larger by 2^64 until the end, so that no factor is subnormal.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V simd_gelu(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V bound = hn::Set(d, 15.0F), minus_half = hn::Set(d, -0.5F), magnitude = hn::Abs(x);
  const V u = hn::IfThenElse(hn::Gt(magnitude, bound), bound, magnitude);
#if HWY_NATIVE_FMA
  const V square = hn::Mul(u, u), rest = hn::MulSub(u, u, square);
#else
  const hn::RebindToUnsigned<D> du;
  const V upper = hn::BitCast(d, hn::And(hn::BitCast(du, u), hn::Set(du, 0xfffff000U)));  // its square is exact
  const V square = hn::Mul(upper, upper), rest = hn::Mul(hn::Sub(u, upper), hn::Add(u, upper));
#endif
  const auto n = hn::NearestInt(hn::Mul(square, hn::Set(d, -0.72134752F)));
  const V nf = hn::ConvertTo(d, n);
  V r = hn::NegMulAdd(nf, hn::Set(d, 0.693359375F), hn::Mul(square, minus_half));
  r = hn::MulAdd(rest, minus_half, hn::NegMulAdd(nf, hn::Set(d, -2.12194440e-4F), r));
  constexpr float powers[] = {1.9875691500e-4F, 1.3981999507e-3F, 8.3334519073e-3F,
                              4.1665795894e-2F, 1.6666665459e-1F, 5.0000001201e-1F};
  const V growth = hn::MulAdd(polynomial(d, r, powers), hn::Mul(r, r), r);  // exp(r) - 1
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127 + 64))));
  const V w = hn::Div(u, hn::Add(u, hn::Set(d, 3.0F)));
  constexpr float c[] = {5.4489883e-05F, 0.000131331617F, -0.000244730385F, -0.00103257503F,
                         0.00102475379F, 0.00696931174F,  -0.0104625132F,   -0.0472626872F,
                         0.230017707F,   -0.509332001F,   0.729083717F};
  const V p = polynomial_in_two(d, hn::MulSub(w, hn::Set(d, 2.0F), hn::Set(d, 1.0F)), c);
  const V tail =
      hn::Mul(hn::Mul(hn::Mul(hn::MulAdd(growth, p, p), w), power), hn::Set(d, 5.421010862427522e-20F));  // 2^-64
  return hn::Sub(hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x), tail);
}
/// Phi(x) + x phi(x): absolute error below 2.4e-7. 1/2 and x times a polynomial in x^2 up to 5.8, 0 or 1 beyond.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V simd_gelu_grad(D d, V x) {
  const V t = hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.0594530321F), hn::Set(d, -1.0F));
  constexpr float c[] = {3.26723275e-05F, -0.000101397527F, 8.95249614e-05F, -0.000138368443F, 0.000669323897F,
                         -0.00159204053F, 0.00280155684F,   -0.00518869516F, 0.00965130795F,   -0.0163418017F,
                         0.0254173949F,   -0.0368128903F,   0.049288772F,    -0.0605177209F,   0.0678949505F,
                         -0.0695523471F,  0.0654361844F,    -0.0577410236F,  0.0501281843F,    -0.046195019F,
                         0.0486370996F,   -0.0616575144F,   0.121998765F};
  const V near = hn::MulAdd(polynomial_in_four(d, t, c), x, hn::Set(d, 0.5F));
  const V far = hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), hn::Set(d, 1.0F));
  return hn::IfThenElse(hn::Gt(hn::Abs(x), hn::Set(d, 5.8F)), far, near);
}

/// 2 sqrt(2 / pi) (x + 0.044715 x^3): gelu's tanh approximation is x sigmoid of it.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_tanh_argument(D d, V x) {
  const V cubic = hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.044715F), hn::Set(d, 1.0F));
  return hn::Mul(hn::Mul(x, hn::Set(d, 1.5957691216F)), cubic);
}
/// gelu's tanh approximation: error below 2e-7 max(1, |y|). (In the negative tail the rounded argument of exp shows:
/// 200 ulp at -10, where y is 1e-37.)
template <class D, class V = hn::Vec<D>>
HWY_INLINE V simd_gelu_tanh(D d, V x) {
  const V v = gelu_tanh_argument(d, x);
  return Logistic<D>(d, v).times_sigmoid(d, v, far_below(d, x));
}
/// Its derivative: absolute error below 1e-6.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V simd_gelu_tanh_grad(D d, V x) {
  const V held = hold(d, x, -20.0F, 20.0F);  // the derivative is 0 or 1 there
  const V v = gelu_tanh_argument(d, held);
  const Logistic<D> logistic(d, v);
  const V slope = hn::MulAdd(hn::Mul(held, held), hn::Set(d, 3 * 0.044715F * 1.5957691216F), hn::Set(d, 1.5957691216F));
  return hn::MulAdd(hn::Mul(held, slope), logistic.derivative(), logistic.sigmoid(d, v));
}

/// x sigmoid(x): within 2.9 ulp, in both tails.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V simd_silu(D d, V x) {
  return Logistic<D>(d, x).times_sigmoid(d, x, far_below(d, x));
}
/// sigmoid(x) (1 + x (1 - sigmoid(x))): absolute error below 3e-7.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V simd_silu_grad(D d, V x) {
  const Logistic<D> logistic(d, x);
  return hn::MulAdd(hold(d, x, -110.0F, 110.0F), logistic.derivative(), logistic.sigmoid(d, x));
}

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
