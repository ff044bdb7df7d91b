// Sums along dense rows and down columns, vectorised: what reductions are made of. All totals are f64; none of these
// starts threads.
#pragma once

#include <cstdint>

namespace regard::cpu_backend {

double row_sum(const float* row, int64_t n);
double row_sum(const double* row, int64_t n);
double row_sum_of_squares(const float* row, int64_t n);
double row_sum_of_squares(const double* row, int64_t n);
/// The sum of (x - mean)^2.
double row_squared_deviations(const float* row, int64_t n, double mean);
double row_squared_deviations(const double* row, int64_t n, double mean);
/// The largest element; -inf for none.
float row_max(const float* row, int64_t n);
double row_max(const double* row, int64_t n);
/// The sum of exp(x - shift); no x is larger than shift.
double row_sum_exp(const float* row, int64_t n, double shift);
double row_sum_exp(const double* row, int64_t n, double shift);

/// totals[c] += the sum of column c, or of its squares, over `rows` rows that lie `stride` elements apart.
void add_column_sums(double* totals, const float* first, int64_t stride, int64_t rows, int64_t columns, bool squares);
void add_column_sums(double* totals, const double* first, int64_t stride, int64_t rows, int64_t columns, bool squares);

}  // namespace regard::cpu_backend
