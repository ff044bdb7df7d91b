// Initialisers: write first values into parameters, in place.
#pragma once

#include <regard/autograd/random.hpp>
#include <regard/layers/parameter.hpp>

namespace regard::layers::init {

/// Weights are [out, in, ...]: fan_in is in times the further sizes, fan_out is out times them.
struct Fans {
  int64_t in;
  int64_t out;
};
Fans fans(const Tensor& weight);

void constant_(const Tensor& x, double value);
void zeros_(const Tensor& x);
void ones_(const Tensor& x);
void uniform_(const Tensor& x, double low, double high, Generator& generator = default_generator());
void normal_(const Tensor& x, double mean = 0, double std = 1, Generator& generator = default_generator());
/// Normal, cut off outside [low, high] (in units of x, not of std).
void trunc_normal_(const Tensor& x, double mean = 0, double std = 1, double low = -2, double high = 2,
                   Generator& generator = default_generator());
/// Uniform in +-gain sqrt(6 / (fan_in + fan_out)). Glorot and Bengio, 2010.
void xavier_uniform_(const Tensor& weight, double gain = 1, Generator& generator = default_generator());
/// Normal of std gain sqrt(2 / (fan_in + fan_out)).
void xavier_normal_(const Tensor& weight, double gain = 1, Generator& generator = default_generator());
/// Uniform in +-sqrt(6 / ((1 + slope^2) fan_in)), for a (leaky) ReLU behind it. He et al., 2015.
void kaiming_uniform_(const Tensor& weight, double slope = 0, Generator& generator = default_generator());
/// Normal of std sqrt(2 / ((1 + slope^2) fan_in)).
void kaiming_normal_(const Tensor& weight, double slope = 0, Generator& generator = default_generator());

}  // namespace regard::layers::init
