// Rows of x picked by an index each: embeddings, gathers along one axis. All operands are dense; items of 1, 2, 4 or 8 bytes.
#include <stdbool.h>
#include <string.h>

#include "isa.h"

enum { DECLINE, NEAREST, FILL, SERIAL_BYTES = 16384 };

typedef struct picked {
  int64_t index;
  bool outside;
} picked;

static picked pick(const int64_t *p, const void *indices, int64_t i) {
  int64_t size = p[2], index = p[5] == 4 ? ((const int32_t *)indices)[i] : ((const int64_t *)indices)[i];
  if (p[6] && index < 0) index += size;
  bool outside = index < 0 || index >= size;
  return (picked){index < 0 ? 0 : index >= size ? size - 1 : index, outside};
}

#define FILL_ITEMS(type) \
  for (int64_t i = 0; i < n; i++) memcpy(y + i * (int64_t)sizeof(type), fill, sizeof(type))

static void fill_items(char *y, const int64_t *fill, int64_t item, int64_t n) {
  switch (item) {
    case 1: FILL_ITEMS(uint8_t); break;
    case 2: FILL_ITEMS(uint16_t); break;
    case 4: FILL_ITEMS(uint32_t); break;
    default: FILL_ITEMS(uint64_t); break;
  }
}

#define COPY_ITEM(type) *(type *)to = *(const type *)from

static void copy_row(char *to, const char *from, int64_t item, int64_t bytes) {
  if (bytes != item) memcpy(to, from, (size_t)bytes);
  else if (item == 4) COPY_ITEM(uint32_t);
  else if (item == 8) COPY_ITEM(uint64_t);
  else if (item == 2) COPY_ITEM(uint16_t);
  else COPY_ITEM(uint8_t);
}

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
    picked at = pick(p, args->ptr[2], i % count);
    if (at.outside && out_of_range == DECLINE) {
      rml_decline(args);
      return;
    }
    if (at.outside && out_of_range == FILL) fill_items(y + i * bytes, &p[8], item, inner);
    else copy_row(y + i * bytes, x + (i / count * size + at.index) * bytes, item, bytes);
  }
}
