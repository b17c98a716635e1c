// Max and average pooling with channels last, one to three spatial axes (fewer stand as axes of size 1). steps.def lists the parameters.
#include <stdbool.h>

#include "isa.h"
#include "lanes.h"

enum { AXES = 3, CHANNEL_VECTORS = 4 };

typedef struct {
  int64_t size, count, window, stride, pad, dilation;   // elements, windows, extent, ..., low padding
} pool_axis;

// What one window sees along an axis: positions first, first + dilation, ..., `taps` of them.
typedef struct {
  int64_t first, taps;
} span;

static span span_of(const pool_axis *a, int64_t window) {
  int64_t start = window * a->stride - a->pad, skipped = start < 0 ? (-start + a->dilation - 1) / a->dilation : 0;
  int64_t end = start + (a->window - 1) * a->dilation + 1;   // behind the last tap
  if (end > a->size) end = a->size;
  span s = {start + skipped * a->dilation, 0};
  if (s.first < end) s.taps = (end - s.first + a->dilation - 1) / a->dilation;
  if (s.taps > a->window - skipped) s.taps = a->window - skipped > 0 ? a->window - skipped : 0;
  return s;
}

typedef enum { MAX_NAN, MAX_SKIP, AVERAGE } pooling;   // numbers known to lower_rows.py

INL vf take(pooling kind, vf a, vf x) {
  if (kind == AVERAGE) return a + x;
  vf larger = vf_max(x, a);   // a, where x is NaN
  return kind == MAX_NAN ? vf_sel(vf_ne(x, x), x, larger) : larger;
}

// One window over `vectors` vectors of channels, the last with `lanes` lanes.
INL void pool_channels(float *y, const float *x, const span s[AXES], const int64_t step[AXES], pooling kind, float divisor, int vectors,
                       int lanes) {
  vf a[CHANNEL_VECTORS];
  for (int v = 0; v < vectors; v++) a[v] = vf1(kind == AVERAGE ? 0 : -INFINITY);
  for (int64_t i = 0; i < s[0].taps; i++)
    for (int64_t j = 0; j < s[1].taps; j++)
      for (int64_t k = 0; k < s[2].taps; k++) {
        const float *tap = x + i * step[0] + j * step[1] + k * step[2];
        UNROLL(4) for (int v = 0; v < vectors; v++) a[v] = take(kind, a[v], load_lanes(tap + v * W, lanes));
      }
  UNROLL(4) for (int v = 0; v < vectors; v++) store_lanes(y + v * W, kind == AVERAGE ? a[v] / vf1(divisor) : a[v], lanes);
}

INL void pool(const rml_args *args, pooling kind) {
  const int64_t *p = args->p, batch = p[0], channels = p[1];
  pool_axis axes[AXES];
  memcpy(axes, p + 4, sizeof axes);
  // Floats from neighbour to neighbour along each axis.
  const int64_t distance[AXES] = {axes[1].size * axes[2].size * channels, axes[2].size * channels, channels};
  int64_t step[AXES], begin, end;
  for (int axis = 0; axis < AXES; axis++) step[axis] = distance[axis] * axes[axis].dilation;
  rml_share(batch * axes[0].count * axes[1].count * axes[2].count, args->thread, args->threads, &begin, &end);
  for (int64_t at = begin; at < end; at++) {
    int64_t left = at;
    const float *x = args->ptr[1];
    float *y = (float *)args->ptr[0] + at * channels;
    span s[AXES];
    for (int axis = AXES - 1; axis >= 0; axis--) {
      s[axis] = span_of(&axes[axis], left % axes[axis].count);
      left /= axes[axis].count;
      if (s[axis].taps) x += s[axis].first * distance[axis];
    }
    x += left * axes[0].size * distance[0];
    float divisor = p[3] ? (float)p[3] : (float)(s[0].taps * s[1].taps * s[2].taps);
    int64_t c = 0;
    for (; c + CHANNEL_VECTORS * W <= channels; c += CHANNEL_VECTORS * W)
      pool_channels(y + c, x + c, s, step, kind, divisor, CHANNEL_VECTORS, W);
    for (; c + W <= channels; c += W) pool_channels(y + c, x + c, s, step, kind, divisor, 1, W);
    if (c < channels) pool_channels(y + c, x + c, s, step, kind, divisor, 1, (int)(channels - c));
  }
}

void RML_KERNEL(pool)(const rml_args *args) {
  switch (args->p[2]) {
    case MAX_NAN: pool(args, MAX_NAN); break;
    case MAX_SKIP: pool(args, MAX_SKIP); break;
    case AVERAGE: pool(args, AVERAGE); break;
  }
}
