// Softmax and layer normalisation: several passes over a row that stays in the first-level cache. steps.def lists the parameters.
#include <stdbool.h>

#include "isa.h"
#include "lanes.h"
#include "softmax.h"
#include "vmath.h"

// ---- softmax along rows ----------------------------------------------------------------------------------------------------------------
// The last step: x and the logarithm of the sum for log_softmax, else e^(x - largest) and one over the sum.
INL vf softmax_result(vf a, vf largest, vf factor, bool log) { return log ? (a - largest) - factor : a * factor; }

// Short rows go through the passes in groups, so that the long chain of additions at the end of a row overlaps with the next row's work.
enum { GROUP = 8, GROUP_FLOATS = 4096 };

INL int64_t rows_at_once(int64_t n) { return n * GROUP <= GROUP_FLOATS ? GROUP : 1; }

// `rows` <= GROUP rows of n elements.
INL void softmax_group(float *y, const float *x, int64_t rows, int64_t n, bool log, bool masked_is_zero) {
  vf largest[GROUP], sum[GROUP];
  for (int64_t r = 0; r < rows; r++) largest[r] = row_max(x + r * n, n);
  for (int64_t r = 0; r < rows; r++) {
    if (masked_is_zero) largest[r] = vf_sel(vf_eq(largest[r], vf1(-VMATH_INF)), vf1(0), largest[r]);
    sum[r] = exponentials(log ? 0 : y + r * n, x + r * n, n, largest[r], vf1(1));
  }
  for (int64_t r = 0; r < rows; r++, x += n, y += n) {
    const float *from = log ? x : y;
    vf factor = log ? v_log(sum[r]) : vf1(1) / sum[r];
    if (masked_is_zero) factor = vf_sel(vf_eq(sum[r], vf1(0)), vf1(0), factor);
    int64_t i = 0;
    for (; i + W <= n; i += W) vf_store(y + i, softmax_result(vf_load(from + i), largest[r], factor, log));
    if (i < n) store_left(y + i, softmax_result(load_left(from + i, n - i), largest[r], factor, log), n - i);
  }
}

// ---- softmax along another axis --------------------------------------------------------------------------------------------------------
enum { COLUMN_VECTORS = 4, COLUMNS = COLUMN_VECTORS * W };
#define EACH_COLUMN_VECTOR UNROLL(4) for (int j = 0; j < vectors; j++)

// x and y point at element 0 of neighbouring columns of n elements, `step` floats apart: `vectors` vectors of them, of `lanes` lanes each.
INL void softmax_columns(float *y, const float *x, int64_t n, int64_t step, int vectors, int lanes, bool log, bool masked_is_zero) {
  const vf zero = vf1(0);
  vf largest[COLUMN_VECTORS], sum[COLUMN_VECTORS], factor[COLUMN_VECTORS];
  EACH_COLUMN_VECTOR largest[j] = vf1(-VMATH_INF), sum[j] = zero;
  for (int64_t i = 0; i < n; i++) EACH_COLUMN_VECTOR largest[j] = vf_max(load_lanes(x + i * step + j * W, lanes), largest[j]);
  if (masked_is_zero) EACH_COLUMN_VECTOR largest[j] = vf_sel(vf_eq(largest[j], vf1(-VMATH_INF)), zero, largest[j]);
  for (int64_t i = 0; i < n; i++) {
    EACH_COLUMN_VECTOR {
      vf e = v_exp_neg(load_lanes(x + i * step + j * W, lanes) - largest[j]);
      if (!log) store_lanes(y + i * step + j * W, e, lanes);
      sum[j] += e;
    }
  }
  EACH_COLUMN_VECTOR factor[j] = log ? v_log(sum[j]) : vf1(1) / sum[j];
  if (masked_is_zero) EACH_COLUMN_VECTOR factor[j] = vf_sel(vf_eq(sum[j], zero), zero, factor[j]);
  for (int64_t i = 0; i < n; i++) {
    EACH_COLUMN_VECTOR {
      const float *from = (log ? x : y) + i * step + j * W;
      store_lanes(y + i * step + j * W, softmax_result(load_lanes(from, lanes), largest[j], factor[j], log), lanes);
    }
  }
}

INL void softmax(const rml_args *args, bool log, bool masked_is_zero) {
  const int64_t *p = args->p, outer = p[0], n = p[1], inner = p[2];
  float *y = args->ptr[0];
  const float *x = args->ptr[1];
  int64_t pieces = (inner + COLUMNS - 1) / COLUMNS, begin, end;   // per outer index
  rml_share(outer * pieces, args->thread, args->threads, &begin, &end);
  if (inner == 1) {
    for (int64_t row = begin, rows; row < end; row += rows) {
      rows = end - row < rows_at_once(n) ? end - row : rows_at_once(n);
      softmax_group(y + row * n, x + row * n, rows, n, log, masked_is_zero);
    }
    return;
  }
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t column = piece % pieces * COLUMNS, at = piece / pieces * n * inner, last = column + COLUMNS < inner ? column + COLUMNS : inner;
    if (last - column == COLUMNS) {
      softmax_columns(y + at + column, x + at + column, n, inner, COLUMN_VECTORS, W, log, masked_is_zero);
    } else {
      for (; column < last; column += W)
        softmax_columns(y + at + column, x + at + column, n, inner, 1, lanes_left(last - column), log, masked_is_zero);
    }
  }
}

void RML_KERNEL(softmax)(const rml_args *args) {
  if (args->p[1] == 0) return;
  if (args->p[3]) softmax(args, true, false);
  else if (args->p[4]) softmax(args, false, true);
  else softmax(args, false, false);
}

// ---- layer normalisation ---------------------------------------------------------------------------------------------------------------
INL vf row_sum(const float *x, int64_t n) {
  vf sum[LANE_VECTORS] = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) EACH_LANE_VECTOR sum[j] += vf_load(x + i + j * W);
  if (i < n) EACH_LANE_VECTOR sum[j] += load_left(x + i + j * W, n - i - j * W);
  return lanes_total(LANES_SUM, sum);
}

// Sum of (x - mean)^2.
INL vf row_spread(const float *x, int64_t n, vf mean) {
  vf sum[LANE_VECTORS] = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    EACH_LANE_VECTOR {
      vf d = vf_load(x + i + j * W) - mean;
      sum[j] = vf_fma(d, d, sum[j]);
    }
  }
  if (i < n) {
    EACH_LANE_VECTOR {
      int left = lanes_left(n - i - j * W);
      vf d = lanes_first(vf_loadn(x + i + j * W, left) - mean, left);
      sum[j] = vf_fma(d, d, sum[j]);
    }
  }
  return lanes_total(LANES_SUM, sum);
}

// Elements i .. i + lanes - 1 of a normalised row; scale and bias may be null.
INL vf normalise(const float *x, vf mean, vf factor, const float *scale, const float *bias, int64_t i, int lanes) {
  vf y = (load_lanes(x + i, lanes) - mean) * factor;
  if (scale && bias) return vf_fma(y, load_lanes(scale + i, lanes), load_lanes(bias + i, lanes));
  if (scale) return y * load_lanes(scale + i, lanes);
  return bias ? y + load_lanes(bias + i, lanes) : y;
}

INL void layer_norm_group(float *y, const float *x, int64_t rows, int64_t n, float eps, const float *scale, const float *bias) {
  const vf count = vf1((float)n);
  vf mean[GROUP], factor[GROUP];
  for (int64_t r = 0; r < rows; r++) mean[r] = row_sum(x + r * n, n) / count;
  for (int64_t r = 0; r < rows; r++) factor[r] = v_rsqrt(row_spread(x + r * n, n, mean[r]) / count + vf1(eps));
  for (int64_t r = 0; r < rows; r++, x += n, y += n) {
    int64_t i = 0;
    for (; i + W <= n; i += W) vf_store(y + i, normalise(x, mean[r], factor[r], scale, bias, i, W));
    if (i < n) vf_storen(y + i, normalise(x, mean[r], factor[r], scale, bias, i, (int)(n - i)), (int)(n - i));
  }
}

INL void layer_norm(const rml_args *args, const float *scale, const float *bias) {
  const int64_t *p = args->p, n = p[1];
  double eps;
  memcpy(&eps, &p[2], sizeof eps);
  int64_t begin, end;
  rml_share(p[0], args->thread, args->threads, &begin, &end);
  for (int64_t row = begin, rows; row < end; row += rows) {
    rows = end - row < rows_at_once(n) ? end - row : rows_at_once(n);
    layer_norm_group((float *)args->ptr[0] + row * n, (const float *)args->ptr[1] + row * n, rows, n, (float)eps, scale, bias);
  }
}

void RML_KERNEL(layer_norm)(const rml_args *args) {
  const float *scale = args->ptr[2], *bias = args->ptr[3];
  if (scale && bias) layer_norm(args, scale, bias);   // the usual case gets a loop without tests
  else layer_norm(args, scale, bias);
}
