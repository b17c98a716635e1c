// The k first elements in order along the middle axis of [outer, n, inner], and where each came from: all of them is sort, fewer topk.
// Equal elements keep their order, NaN is above every number. Each thread sorts whole lines in its workspace, as keys (sorting.h).
#include "isa.h"
#include "sorting.h"
#include "types.h"

// The key of element i: in order of value as an unsigned integer.
#define INTEGER_KEY(name, type) \
  static void keys_##name(entry *to, const void *data, int64_t n, int64_t step, uint64_t flip) { \
    const type *x = data; \
    for (int64_t i = 0; i < n; i++) \
      to[i] = (entry){((uint64_t)x[i * step] ^ (RML_IS_SIGNED(type) ? UINT64_C(1) << 63 : 0)) ^ flip, i}; \
  }
#define FLOAT_KEY(name, bits, mantissa) \
  static void keys_##name(entry *to, const void *data, int64_t n, int64_t step, uint64_t flip) { \
    const uint##bits##_t *x = data; \
    for (int64_t i = 0; i < n; i++) to[i] = (entry){float_key(x[i * step], bits, mantissa) ^ flip, i}; \
  }
RML_INTEGERS(INTEGER_KEY)
FLOAT_KEY(F32, 32, 23)
FLOAT_KEY(F64, 64, 52)
FLOAT_KEY(F16, 16, 10)

enum { MANY = 256 };   // elements from which on a selection is worth its tables

// Leaves out, in order, entries that are certainly not among the k first: those whose leading bits are above those of the k-th. Returns how
// many stay.
static int64_t select_few(entry *a, int64_t n, int64_t k) {
  enum { BUCKETS = 2048 };
  uint64_t low = a[0].key, high = a[0].key;
  for (int64_t i = 1; i < n; i++) {
    low = a[i].key < low ? a[i].key : low;
    high = a[i].key > high ? a[i].key : high;
  }
  int shift = 0;
  while ((high - low) >> shift >= BUCKETS) shift++;
  uint32_t counts[BUCKETS] = {0};
  for (int64_t i = 0; i < n; i++) counts[(a[i].key - low) >> shift]++;
  uint64_t last = 0;
  for (int64_t seen = counts[0]; seen < k; seen += counts[last]) last++;
  int64_t kept = 0;
  for (int64_t i = 0; i < n; i++) {
    a[kept] = a[i];
    kept += (a[i].key - low) >> shift <= last;
  }
  return kept;
}

#define COPY_CASE(bytes, type) \
  case bytes: \
    for (int64_t i = 0; i < k; i++) ((type *)values)[i * inner] = ((const type *)x)[sorted[i].index * inner]; \
    break;

void RML_KERNEL(sort)(const rml_args *args) {
#define KEYS(name, type) keys_##name,
#define BYTES(name, type) sizeof(type),
  static void (*const keys[])(entry *, const void *, int64_t, int64_t, uint64_t) = {
      keys_U8, RML_INTEGERS(KEYS) keys_F32, keys_F64, keys_F16};
  static const int64_t sizes[] = {RML_TYPES(BYTES) 2};
  const int64_t *p = args->p, n = p[1], inner = p[2], k = p[3], type = p[4], item = sizes[type];
  int64_t workers = args->threads < p[7] ? args->threads : p[7], begin, end;
  if (args->thread >= workers) return;
  rml_share(p[0] * inner, args->thread, (int)workers, &begin, &end);
  entry *a = (entry *)args->ptr[3] + args->thread * 2 * n, *b = a + n;
  for (int64_t line = begin; line < end; line++) {
    int64_t o = line / inner, column = line % inner, first = o * k * inner + column;
    const char *x = (const char *)args->ptr[2] + (o * n * inner + column) * item;
    char *values = (char *)args->ptr[0] + first * item;
    keys[type](a, x, n, inner, p[5] ? ~UINT64_C(0) : 0);
    entry *sorted = sort_entries(a, b, n > MANY && 2 * k < n ? select_few(a, n, k) : n);
    switch (item) {
      COPY_CASE(1, uint8_t)
      COPY_CASE(2, uint16_t)
      COPY_CASE(4, uint32_t)
      COPY_CASE(8, uint64_t)
    }
    for (int64_t i = 0; i < k; i++) {
      if (p[6] == 4) ((int32_t *)args->ptr[1])[first + i * inner] = (int32_t)sorted[i].index;
      else ((int64_t *)args->ptr[1])[first + i * inner] = sorted[i].index;
    }
  }
}
