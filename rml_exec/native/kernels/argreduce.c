// Position of the largest or smallest element over the middle axis of [outer, n, inner]. What wins does not depend on the order of looking,
// so f32 is looked through in vectors of any width: along a row each lane keeps its best, along another axis, and over short rows, a vector
// holds neighbouring columns or rows.
//
// An element takes over from the best so far if it is better (with ties to the last one: not worse) or one of the two is NaN, where that
// settles it: NaN first, the best is never replaced once it is NaN; NaN skipped, it is always replaced by what is a number.
#include "isa.h"
#include "lanes.h"
#include "types.h"

enum { SHORT_ROW = 64 };

typedef struct rule {
  bool smallest, last, skip_nan;
} rule;

typedef struct best {
  vf value;
  vi at;
} best;

INL vm keeps(rule r, vf best, vf x) {
  if (r.smallest) return r.last ? vf_gt(x, best) : vf_ge(x, best);
  return r.last ? vf_lt(x, best) : vf_le(x, best);
}

INL best better_of(rule r, best b, vf x, vi at) {
  vm settled = r.skip_nan ? vf_ne(x, x) : vf_ne(b.value, b.value);
  vm takes = vm_not(vm_or(keeps(r, b.value, x), settled));
  return (best){vf_sel(takes, x, b.value), vi_sel(takes, at, b.at)};
}

INL void write_index(void *y, int64_t bytes, int64_t i, int64_t index) {
  if (bytes == 4) ((int32_t *)y)[i] = (int32_t)index;
  else ((int64_t *)y)[i] = index;
}

// Of two bests that stand at different positions.
INL bool takes_over(rule r, float value, int32_t at, float other, int32_t other_at) {
  bool nan = value != value, other_nan = other != other;
  if (nan && other_nan) return other_at < at;
  if (nan || other_nan) return r.skip_nan ? nan : other_nan;
  if (value == other) return r.last ? other_at > at : other_at < at;
  return r.smallest ? other < value : other > value;
}

INL int64_t arg_of_row(const float *x, int64_t n, rule r) {
  int32_t number[W], at[W];
  float value[W];
  for (int i = 0; i < W; i++) number[i] = i;
  int64_t i = 0;
  best b = {vf1(x[0]), vi1(0)};
  vi position = vi_load(number);
  if (n >= W) b = (best){vf_load(x), position}, i = W;
  for (; i + W <= n; i += W) {
    position += vi1(W);
    b = better_of(r, b, vf_load(x + i), position);
  }
  vf_store(value, b.value);
  vi_store(at, b.at);
  float winner = value[0];
  int32_t winner_at = at[0];
  for (int lane = 1; lane < W; lane++)
    if (takes_over(r, winner, winner_at, value[lane], at[lane])) winner = value[lane], winner_at = at[lane];
  for (; i < n; i++)
    if (takes_over(r, winner, winner_at, x[i], (int32_t)i)) winner = x[i], winner_at = (int32_t)i;
  return winner_at;
}

// Up to W neighbouring columns, results from element `first` of y on.
INL void arg_of_columns(void *y, int64_t bytes, int64_t first, const float *x, int64_t n, int64_t step, int lanes, rule r) {
  best b = {load_lanes(x, lanes), vi1(0)};
  for (int64_t i = 1; i < n; i++) b = better_of(r, b, load_lanes(x + i * step, lanes), vi1((int32_t)i));
  int32_t at[W];
  vi_store(at, b.at);
  for (int lane = 0; lane < lanes; lane++) write_index(y, bytes, first + lane, at[lane]);
}

// Up to W short rows: the columns of their transposed block.
INL void arg_of_short_rows(void *y, int64_t bytes, int64_t first, const float *x, int64_t n, int rows, rule r) {
  float block[SHORT_ROW * W];
  for (int64_t i = 0; i < n; i++)
    for (int row = 0; row < rows; row++) block[i * W + row] = x[row * n + i];
  arg_of_columns(y, bytes, first, block, n, W, rows, r);
}

INL void arg_of_floats(const rml_args *args, rule r) {
  const int64_t *p = args->p, outer = p[0], n = p[1], inner = p[2], bytes = p[7];
  int64_t pieces = (inner + W - 1) / W, begin, end;   // per outer index
  rml_share(outer * pieces, args->thread, args->threads, &begin, &end);
  if (inner == 1 && n <= SHORT_ROW) {
    for (const float *x = args->ptr[1]; begin < end; begin += W)
      arg_of_short_rows(args->ptr[0], bytes, begin, x + begin * n, n, lanes_left(end - begin), r);
    return;
  }
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t o = piece / pieces, column = piece % pieces * W;
    const float *x = (const float *)args->ptr[1] + o * n * inner + column;
    if (inner == 1) write_index(args->ptr[0], bytes, o, arg_of_row(x, n, r));
    else if (inner - column >= W) arg_of_columns(args->ptr[0], bytes, o * inner + column, x, n, inner, W, r);
    else arg_of_columns(args->ptr[0], bytes, o * inner + column, x, n, inner, (int)(inner - column), r);
  }
}

#define SEARCH(name, type) \
  static int64_t search_##name(const void *data, int64_t n, int64_t step, rule r) { \
    const type *x = data; \
    int64_t at = 0; \
    type best = x[0]; \
    for (int64_t i = 1; i < n; i++) { \
      type v = x[i * step]; \
      bool kept = r.smallest ? (r.last ? v > best : v >= best) : (r.last ? v < best : v <= best); \
      bool settled = r.skip_nan ? v != v : best != best; \
      if (!kept && !settled) best = v, at = i; \
    } \
    return at; \
  }
RML_TYPES(SEARCH)

void RML_KERNEL(argreduce)(const rml_args *args) {
#define FUNCTION(name, type) search_##name,
#define BYTES(name, type) sizeof(type),
  static int64_t (*const functions[])(const void *, int64_t, int64_t, rule) = {RML_TYPES(FUNCTION)};
  static const int64_t sizes[] = {RML_TYPES(BYTES)};
  const int64_t *p = args->p, n = p[1], inner = p[2];
  const rule r = {p[4], p[5], p[6]};
  if (p[3] == TYPE_F32) {
    if (r.smallest) arg_of_floats(args, (rule){true, r.last, r.skip_nan});
    else arg_of_floats(args, (rule){false, r.last, r.skip_nan});
    return;
  }
  int64_t begin, end;
  rml_share(p[0] * inner, args->thread, args->threads, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    const char *x = (const char *)args->ptr[1] + (i / inner * n * inner + i % inner) * sizes[p[3]];
    write_index(args->ptr[0], p[7], i, functions[p[3]](x, n, inner, r));
  }
}
