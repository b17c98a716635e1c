// Resampling of f32 along one or two neighbouring axes: an output row mixes rows of x, then an output column mixes columns of that row.
// x is [outer, lines, columns, inner], all dense; for each position of the result there is a number of taps, each an element along the axis
// and its weight. Products are added in the order of the taps, without fused multiply-add: as the NumPy reference does.
//
// A mixed row stays in the thread's workspace until its columns are mixed, so that no plane between the two is written to memory.
#include "isa.h"
#include "lanes.h"

enum { MIXED_VECTORS = 4 };
#define EACH_MIXED_VECTOR UNROLL(4) for (int j = 0; j < vectors; j++)

// `vectors` vectors of `lanes` lanes each of the sum of weights[t * apart] * x[elements[t * apart] * step ...].
INL void mix(float *y, const float *x, int64_t step, const int32_t *elements, const float *weights, int64_t apart, int64_t taps,
             int vectors, int lanes) {
  vf sum[MIXED_VECTORS];
  EACH_MIXED_VECTOR sum[j] = vf1(0);
  for (int64_t t = 0; t < taps; t++) {
    const float *from = x + elements[t * apart] * step;
    vf weight = vf1(weights[t * apart]);
    EACH_MIXED_VECTOR sum[j] += weight * load_lanes(from + j * W, lanes);
  }
  EACH_MIXED_VECTOR store_lanes(y + j * W, sum[j], lanes);
}

INL void mix_row(float *y, const float *x, int64_t n, int64_t step, const int32_t *elements, const float *weights, int64_t apart,
                 int64_t taps) {
  int64_t i = 0;
  for (; i + MIXED_VECTORS * W <= n; i += MIXED_VECTORS * W) mix(y + i, x + i, step, elements, weights, apart, taps, MIXED_VECTORS, W);
  for (; i < n; i += W) mix(y + i, x + i, step, elements, weights, apart, taps, 1, lanes_left(n - i));
}

// Columns of one element each: a vector holds neighbouring positions of the result.
static void mix_elements(float *restrict y, const float *restrict x, int64_t n, const int32_t *restrict elements,
                         const float *restrict weights, int64_t taps) {
  for (int64_t i = 0; i < n; i++) y[i] = weights[i] * x[elements[i]];
  for (int64_t t = 1; t < taps; t++)
    for (int64_t i = 0; i < n; i++) y[i] += weights[t * n + i] * x[elements[t * n + i]];
}

void RML_KERNEL(resize)(const rml_args *args) {
  const int64_t *p = args->p, lines = p[1], line_count = p[2], line_taps = p[3], columns = p[4], column_count = p[5], column_taps = p[6];
  const int64_t inner = p[7], row = columns * inner, result_row = column_count * inner;
  const int32_t *line_elements = args->ptr[2], *column_elements = args->ptr[4];
  const float *line_weights = args->ptr[3], *column_weights = args->ptr[5];
  int64_t workers = args->threads < p[8] ? args->threads : p[8], begin, end;
  if (args->thread >= workers) return;
  rml_share(p[0] * line_count, args->thread, (int)workers, &begin, &end);
  float *mixed = (float *)args->ptr[6] + args->thread * row;
  for (int64_t i = begin; i < end; i++) {
    const float *plane = (const float *)args->ptr[1] + i / line_count * lines * row, *from = plane;
    int64_t line = i % line_count;
    float *y = (float *)args->ptr[0] + i * result_row;
    if (line_taps) {
      float *to = column_taps ? mixed : y;
      mix_row(to, plane, row, row, line_elements + line, line_weights + line, line_count, line_taps);
      from = to;
    }
    if (column_taps && inner == 1) {
      mix_elements(y, from, column_count, column_elements, column_weights, column_taps);
    } else if (column_taps) {
      for (int64_t c = 0; c < column_count; c++)
        mix_row(y + c * inner, from, inner, inner, column_elements + c, column_weights + c, column_count, column_taps);
    }
  }
}
