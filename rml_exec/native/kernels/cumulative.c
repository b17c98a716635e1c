// Running sum, product, largest or smallest element along the middle axis of [outer, n, inner], one element after the other. y may be x.
// The identity of a sum is -0, so that the first element comes out as it is.
#include <math.h>

#include "isa.h"
#include "types.h"

enum { SUM, PROD, MAX, MIN };   // numbers known to lower_order.py
enum { COLUMNS = 64, SERIAL_ELEMENTS = 4096 };

#define RUN(expression) \
  if (columns == 1) { \
    type a = first; \
    for (int64_t i = 0; i < n; i++) { \
      int64_t row = (reverse ? n - 1 - i : i) * step; \
      type before = a, b = x[row]; \
      a = (type)(expression); \
      y[row] = exclusive ? before : a; \
    } \
    break; \
  } \
  for (int64_t i = 0; i < n; i++) { \
    int64_t row = (reverse ? n - 1 - i : i) * step; \
    for (int64_t c = 0; c < columns; c++) { \
      type a = running[c], b = x[row + c]; \
      running[c] = (type)(expression); \
      y[row + c] = exclusive ? a : running[c]; \
    } \
  }

// Neighbouring columns of n elements that are `step` apart. Integers are added and multiplied as unsigned ones, which may overflow.
#define CUMULATE(name, element, wide) \
  static void cumulate_##name(void *to, const void *from, int64_t n, int64_t step, int64_t columns, int64_t kind, bool exclusive, \
                              bool reverse, element first) { \
    typedef element type; \
    type *y = to, running[COLUMNS]; \
    const type *x = from; \
    for (int64_t c = 0; c < columns; c++) running[c] = first; \
    switch (kind) { \
      case SUM: RUN((wide)a + (wide)b) break; \
      case PROD: RUN((wide)a * (wide)b) break; \
      case MAX: RUN(a != a || a >= b ? a : b) break; \
      default: RUN(a != a || a <= b ? a : b) break; \
    } \
  }
#define CUMULATE_INTEGERS(name, type) CUMULATE(name, type, uint64_t)
RML_INTEGERS(CUMULATE_INTEGERS)
CUMULATE(F32, float, float)
CUMULATE(F64, double, double)

#define INTEGER_CASE(name, type) \
  case TYPE_##name: \
    cumulate_##name((type *)args->ptr[0] + at, (const type *)args->ptr[1] + at, n, inner, columns, kind, exclusive, reverse, \
                    kind == SUM ? 0 : kind == PROD ? 1 : kind == MAX ? RML_LOWEST(type) : RML_HIGHEST(type)); \
    break;
#define FLOAT_CASE(name, type) \
  case TYPE_##name: \
    cumulate_##name((type *)args->ptr[0] + at, (const type *)args->ptr[1] + at, n, inner, columns, kind, exclusive, reverse, \
                    kind == SUM ? (exclusive ? 0 : (type)-0.0) : kind == PROD ? 1 : kind == MAX ? (type)-INFINITY : (type)INFINITY); \
    break;

void RML_KERNEL(cumulative)(const rml_args *args) {
  const int64_t *p = args->p, outer = p[0], n = p[1], inner = p[2], kind = p[4];
  const bool exclusive = p[5], reverse = p[6];
  int64_t pieces = (inner + COLUMNS - 1) / COLUMNS, begin, end;   // per outer index
  rml_share(outer * pieces, args->thread, args->threads, &begin, &end);
  if (outer * n * inner < SERIAL_ELEMENTS) begin = 0, end = args->thread ? 0 : outer * pieces;
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t column = piece % pieces * COLUMNS, at = piece / pieces * n * inner + column;
    int64_t columns = inner - column < COLUMNS ? inner - column : COLUMNS;
    switch (p[3]) {
      RML_INTEGERS(INTEGER_CASE)
      FLOAT_CASE(F32, float)
      FLOAT_CASE(F64, double)
    }
  }
}
