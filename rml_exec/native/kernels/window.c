// A window whose first element is known only at run time: read out of x, or written into y, which holds x already. The window lies dense on
// the one side, in a dense tensor on the other. A first element from which the window would leave the tensor is moved back.
#include "indices.h"
#include "isa.h"

enum { MOST_AXES = 32 };

void RML_KERNEL(window)(const rml_args *args) {
  const int64_t *p = args->p, item = p[0], into_y = p[1], index_bytes = p[2];
  const int64_t *sizes = p + 4, *whole = sizes + p[3];
  int64_t rank = p[3], first = 0, inner = 1, lines = 1, strides[MOST_AXES], begin, end;
  for (int64_t axis = rank - 1, stride = 1; axis >= 0; stride *= whole[axis--]) {
    picked at = pick(args->ptr[2], index_bytes, axis, whole[axis] - sizes[axis] + 1, false);
    first += at.index * stride;
    strides[axis] = stride;
  }
  // Lines as long as they lie side by side on both sides.
  for (bool full = true; rank && full; rank--) {
    inner *= sizes[rank - 1];
    full = sizes[rank - 1] == whole[rank - 1];
  }
  for (int64_t axis = 0; axis < rank; axis++) lines *= sizes[axis];
  int64_t bytes = inner * item;
  rml_share(lines, args->thread, args->threads, &begin, &end);
  if (lines * bytes < SERIAL_BYTES) begin = 0, end = args->thread ? 0 : lines;
  for (int64_t line = begin; line < end; line++) {
    int64_t dense = line * bytes, strided = (first + strided_offset(line, sizes, strides, rank)) * item;
    copy_row((char *)args->ptr[0] + (into_y ? strided : dense), (const char *)args->ptr[1] + (into_y ? dense : strided), item, bytes);
  }
}
