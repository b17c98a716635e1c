// Updates written into y, which holds x already: of whole rows at points (scatter_nd), or of elements along an axis (scatter_along). All
// operands are dense. Updates of one element are made in row-major order: each thread walks all of them and makes those that fall into its
// share of y, so the results do not depend on threads. What is out of range is left out or written to the nearest place; where it is an
// error a step of check_indices stands before, ahead even of the copy of x, which y may have taken the place of.
#include "indices.h"
#include "isa.h"
#include "types.h"

enum { REPLACE, ADD, MULTIPLY, LARGER, SMALLER };   // as runtime/lower_index.py numbers them

#define EACH(expression) \
  for (int64_t i = 0; i < n; i++) { \
    TARGET a = to[i], b = from[i]; \
    to[i] = (TARGET)(expression); \
  }

// Integers are added and multiplied as unsigned ones, which may overflow. A NaN of either side stays.
#define COMBINE(name, type, wide) \
  static void combine_##name(void *y, const void *update, int64_t n, int64_t reduction) { \
    typedef type TARGET; \
    TARGET *to = y; \
    const TARGET *from = update; \
    switch (reduction) { \
      case ADD: EACH((wide)a + (wide)b) break; \
      case MULTIPLY: EACH((wide)a * (wide)b) break; \
      case LARGER: EACH(a != a || a >= b ? a : b) break; \
      default: EACH(a != a || a <= b ? a : b) break; \
    } \
  }
#define COMBINE_INTEGERS(name, type) COMBINE(name, type, uint64_t)
RML_INTEGERS(COMBINE_INTEGERS)
COMBINE(F32, float, float)
COMBINE(F64, double, double)

static void write_row(char *y, const char *update, int64_t item, int64_t n, int64_t type, int64_t reduction) {
#define FUNCTION(name, type) combine_##name,
  static void (*const functions[])(void *, const void *, int64_t, int64_t) = {combine_U8, RML_INTEGERS(FUNCTION) combine_F32, combine_F64};
  if (reduction == REPLACE) copy_row(y, update, item, n * item);
  else functions[type](y, update, n, reduction);
}

void RML_KERNEL(check_indices)(const rml_args *args) {
  const int64_t *p = args->p, *sizes = p + 4;
  int64_t begin, end;
  rml_share(p[0], args->thread, args->threads, &begin, &end);
  for (int64_t i = begin; i < end; i++)
    for (int64_t axis = 0; axis < p[1]; axis++)
      if (pick(args->ptr[0], p[2], i * p[1] + axis, sizes[axis], p[3]).outside) {
        rml_decline(args);
        return;
      }
}

void RML_KERNEL(scatter_nd)(const rml_args *args) {
  const int64_t *p = args->p, item = p[0], points = p[3], depth = p[4], inner = p[5], *sizes = p + 9;
  int64_t rows = 1, begin, end;
  for (int64_t axis = 0; axis < depth; axis++) rows *= sizes[axis];
  rml_share(rows, args->thread, args->threads, &begin, &end);
  for (int64_t i = 0; i < points; i++) {
    picked at = pick_point(args->ptr[1], p[6], i, depth, sizes, p[7]);
    if ((at.outside && p[8]) || at.index < begin || at.index >= end) continue;
    write_row((char *)args->ptr[0] + at.index * inner * item, (const char *)args->ptr[2] + i * inner * item, item, inner, p[1], p[2]);
  }
}

void RML_KERNEL(scatter_along)(const rml_args *args) {
  const int64_t *p = args->p, item = p[0], size = p[6], axis_stride = p[7], rank = p[9];
  const int64_t *dims = p + 10, *strides = dims + rank, columns = dims[rank - 1], step = strides[rank - 1];
  int64_t lines = 1, begin, end;
  for (int64_t axis = 0; axis < rank - 1; axis++) lines *= dims[axis];
  rml_share(p[8], args->thread, args->threads, &begin, &end);
  for (int64_t line = 0; line < lines; line++) {
    int64_t to = strided_offset(line, dims, strides, rank - 1);
    for (int64_t i = line * columns; i < (line + 1) * columns; i++, to += step) {
      picked at = pick(args->ptr[1], p[3], i, size, p[4]);
      int64_t element = to + at.index * axis_stride;
      if ((at.outside && p[5]) || element < begin || element >= end) continue;
      write_row((char *)args->ptr[0] + element * item, (const char *)args->ptr[2] + i * item, item, 1, p[1], p[2]);
    }
  }
}
