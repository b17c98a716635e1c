// Rows of x picked by an index each: embeddings, gathers along one axis. All operands are dense; items of 1, 2, 4 or 8 bytes.
#include "indices.h"
#include "isa.h"

void RML_KERNEL(take)(const rml_args *args) {
  const int64_t *p = args->p;
  int64_t item = p[0], outer = p[1], size = p[2], inner = p[3], count = p[4], out_of_range = p[7], bytes = inner * item, begin, end;
  rml_share(outer * count, args->thread, args->threads, &begin, &end);
  if (outer * count * bytes < SERIAL_BYTES) {
    if (args->thread) return;
    begin = 0, end = outer * count;
  }
  char *y = args->ptr[0];
  const char *x = args->ptr[1];
  for (int64_t i = begin; i < end; i++) {
    picked at = pick(args->ptr[2], p[5], i % count, size, p[6]);
    if (at.outside && out_of_range == DECLINE) {
      rml_decline(args);
      return;
    }
    if (at.outside && out_of_range == FILL) fill_items(y + i * bytes, &p[8], item, inner);
    else copy_row(y + i * bytes, x + (i / count * size + at.index) * bytes, item, bytes);
  }
}
