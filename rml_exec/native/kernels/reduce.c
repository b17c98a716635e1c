// Sum, mean, product, largest and smallest element over the middle axis of [outer, n, inner]. steps.def lists the parameters.
//
// Along rows (inner = 1) elements go to 64 fixed lanes (lanes.h); along another axis a vector holds neighbouring columns, each added in
// order. Sums are taken over blocks whose totals are added in order: the error grows with the square root of what a plain sum would have.
#include <stdbool.h>

#include "isa.h"
#include "lanes.h"

typedef enum { SUM, MEAN, PROD, MAX, MIN } reduction;   // numbers known to lower_rows.py

enum { BLOCK = 64 };   // elements that a lane or column adds up before its total is taken
enum { SHORT_ROW = 8 };
enum { COLUMN_VECTORS = 8, COLUMNS = COLUMN_VECTORS * W };
#define EACH_COLUMN_VECTOR UNROLL(8) for (int j = 0; j < vectors; j++)

INL lanes_op op_of(reduction kind) { return kind == PROD ? LANES_PRODUCT : kind == MAX ? LANES_MAX : kind == MIN ? LANES_MIN : LANES_SUM; }

// An element as it counts: a NaN that is to be skipped is the identity.
INL vf element(lanes_op op, bool skip, vf x) { return skip ? vf_sel(vf_ne(x, x), vf1(lanes_identity(op)), x) : x; }

INL float reduce_row(const float *x, int64_t n, reduction kind, bool skip) {
  const lanes_op op = op_of(kind);
  const vf start = vf1(lanes_identity(op));
  vf total = start;
  for (int64_t begin = 0; begin < n; begin += BLOCK * LANES) {
    int64_t end = n - begin < BLOCK * LANES ? n : begin + BLOCK * LANES, i = begin;
    vf lane[LANE_VECTORS];
    EACH_LANE_VECTOR lane[j] = start;
    for (; i + LANES <= end; i += LANES) EACH_LANE_VECTOR lane[j] = lanes_combine(op, lane[j], element(op, skip, vf_load(x + i + j * W)));
    if (i < end) {
      float rest[LANES];
      EACH_LANE_VECTOR vf_store(rest + j * W, start);
      memcpy(rest, x + i, (size_t)(end - i) * sizeof *rest);
      EACH_LANE_VECTOR lane[j] = lanes_combine(op, lane[j], element(op, skip, vf_load(rest + j * W)));
    }
    total = lanes_combine(op, total, lanes_total(op, lane));
  }
  float result[W];
  vf_store(result, total);
  return kind == MEAN ? result[0] / (float)n : result[0];
}

INL float combine(lanes_op op, float a, float b) {   // as lanes_combine
  switch (op) {
    case LANES_PRODUCT: return a * b;
    case LANES_MAX: return b != b || b > a ? b : a;
    case LANES_MIN: return b != b || b < a ? b : a;
    default: return a + b;
  }
}

// Rows of n <= SHORT_ROW elements, in the order of the fixed lanes, most of which are empty.
INL void reduce_short_rows(float *y, const float *x, int64_t rows, int n, reduction kind, bool skip) {
  const lanes_op op = op_of(kind);
  const float start = lanes_identity(op);
  for (int64_t row = 0; row < rows; row++) {
    float lane[SHORT_ROW];
    UNROLL(8) for (int i = 0; i < SHORT_ROW; i++) {
      float v = i < n ? x[row * n + i] : start;
      lane[i] = combine(op, start, skip && v != v ? start : v);
    }
    UNROLL(4) for (int i = 0; i < 4; i++) lane[i] = combine(op, lane[i], lane[i + 4]);
    UNROLL(2) for (int i = 0; i < 2; i++) lane[i] = combine(op, lane[i], lane[i + 2]);
    float total = combine(op, start, combine(op, lane[0], lane[1]));
    y[row] = kind == MEAN ? total / (float)n : total;
  }
}

// Neighbouring columns of n elements, `step` floats apart: `vectors` vectors of them, of `lanes` lanes each.
INL void reduce_columns(float *y, const float *x, int64_t n, int64_t step, int vectors, int lanes, reduction kind, bool skip) {
  const lanes_op op = op_of(kind);
  const vf start = vf1(lanes_identity(op));
  vf total[COLUMN_VECTORS], block[COLUMN_VECTORS];
  EACH_COLUMN_VECTOR total[j] = start;
  for (int64_t begin = 0; begin < n; begin += BLOCK) {
    int64_t end = n - begin < BLOCK ? n : begin + BLOCK;
    EACH_COLUMN_VECTOR block[j] = start;
    for (int64_t i = begin; i < end; i++)
      EACH_COLUMN_VECTOR block[j] = lanes_combine(op, block[j], element(op, skip, load_lanes(x + i * step + j * W, lanes)));
    EACH_COLUMN_VECTOR total[j] = lanes_combine(op, total[j], block[j]);
  }
  EACH_COLUMN_VECTOR store_lanes(y + j * W, kind == MEAN ? total[j] / vf1((float)n) : total[j], lanes);
}

#define SHORT_ROWS(length) \
  case length: reduce_short_rows(y, x, end - begin, length, kind, skip); return;

INL void reduce(const rml_args *args, reduction kind, bool skip) {
  const int64_t *p = args->p, outer = p[0], n = p[1], inner = p[2];
  float *y = args->ptr[0];
  const float *x = args->ptr[1];
  int64_t pieces = (inner + COLUMNS - 1) / COLUMNS, begin, end;   // per outer index
  rml_share(outer * pieces, args->thread, args->threads, &begin, &end);
  if (inner == 1 && n <= SHORT_ROW) {
    y += begin, x += begin * n;
    switch (n) {
      SHORT_ROWS(0) SHORT_ROWS(1) SHORT_ROWS(2) SHORT_ROWS(3) SHORT_ROWS(4) SHORT_ROWS(5) SHORT_ROWS(6) SHORT_ROWS(7) SHORT_ROWS(8)
    }
  }
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t o = piece / pieces, column = piece % pieces * COLUMNS, last = column + COLUMNS < inner ? column + COLUMNS : inner;
    const float *from = x + o * n * inner;
    if (inner == 1) {
      y[o] = reduce_row(from, n, kind, skip);
    } else if (last - column == COLUMNS) {
      reduce_columns(y + o * inner + column, from + column, n, inner, COLUMN_VECTORS, W, kind, skip);
    } else {
      for (; column < last; column += W)
        reduce_columns(y + o * inner + column, from + column, n, inner, 1, lanes_left(last - column), kind, skip);
    }
  }
}

#define VARIANTS(kind) \
  case kind * 2: reduce(args, kind, false); break; \
  case kind * 2 + 1: reduce(args, kind, true); break;

void RML_KERNEL(reduce)(const rml_args *args) {
  switch (args->p[3] * 2 + args->p[4]) {
    VARIANTS(SUM)
    VARIANTS(MEAN)
    VARIANTS(PROD)
    VARIANTS(MAX)
    VARIANTS(MIN)
  }
}
