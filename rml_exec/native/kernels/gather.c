// Elements and rows picked by an index per axis (gather_nd), or by one index per element along an axis (take_along). y and the indices are
// dense, x is dense in gather_nd and strided in take_along; items of 1, 2, 4 or 8 bytes.
#include "indices.h"
#include "isa.h"

// The share of `n` rows of `bytes` bytes that a thread does.
static void share_rows(const rml_args *args, int64_t n, int64_t bytes, int64_t *begin, int64_t *end) {
  rml_share(n, args->thread, args->threads, begin, end);
  if (n * bytes < SERIAL_BYTES) *begin = 0, *end = args->thread ? 0 : n;
}

void RML_KERNEL(gather_nd)(const rml_args *args) {
  const int64_t *p = args->p, item = p[0], points = p[2], depth = p[3], inner = p[4], out_of_range = p[7], *sizes = p + 9;
  int64_t bytes = inner * item, batch_bytes = bytes, begin, end;
  for (int64_t axis = 0; axis < depth; axis++) batch_bytes *= sizes[axis];
  char *y = args->ptr[0];
  const char *x = args->ptr[1];
  share_rows(args, p[1] * points, bytes, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    picked at = pick_point(args->ptr[2], p[5], i, depth, sizes, p[6]);
    if (at.outside && out_of_range == DECLINE) {
      rml_decline(args);
      return;
    }
    if (at.outside && out_of_range == FILL) fill_items(y + i * bytes, &p[8], item, inner);
    else copy_row(y + i * bytes, x + i / points * batch_bytes + at.index * bytes, item, bytes);
  }
}

void RML_KERNEL(take_along)(const rml_args *args) {
  const int64_t *p = args->p, item = p[0], index_bytes = p[1], out_of_range = p[3], size = p[5], axis_stride = p[6], rank = p[7];
  const int64_t *dims = p + 8, *strides = dims + rank, columns = dims[rank - 1], step = strides[rank - 1];
  int64_t lines = 1, begin, end;
  for (int64_t axis = 0; axis < rank - 1; axis++) lines *= dims[axis];
  char *y = args->ptr[0];
  const char *x = args->ptr[1];
  share_rows(args, lines, columns * item, &begin, &end);
  for (int64_t line = begin; line < end; line++) {
    int64_t from = strided_offset(line, dims, strides, rank - 1);
    for (int64_t i = line * columns; i < (line + 1) * columns; i++, from += step) {
      picked at = pick(args->ptr[2], index_bytes, i, size, p[2]);
      if (at.outside && out_of_range == DECLINE) {
        rml_decline(args);
        return;
      }
      if (at.outside && out_of_range == FILL) fill_items(y + i * item, &p[4], item, 1);
      else copy_row(y + i * item, x + (from + at.index * axis_stride) * item, item, item);
    }
  }
}
