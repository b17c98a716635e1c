// Stable order of elements by 64-bit keys. Shared by sort.c and nms.c.
#ifndef RML_SORTING_H
#define RML_SORTING_H
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct entry {
  uint64_t key;
  int64_t index;
} entry;

// The key of a float of `bits` bits whose pattern is given: in order of value, zeros of either sign equal, NaN above all numbers.
static inline uint64_t float_key(uint64_t pattern, int bits, int mantissa) {
  const uint64_t sign = UINT64_C(1) << (bits - 1), infinity = ((sign >> mantissa) - 1) << mantissa;
  uint64_t magnitude = pattern & (sign - 1);
  if (magnitude > infinity) return 2 * sign - 1;
  if (magnitude == 0) return sign;
  return pattern & sign ? sign - magnitude : sign + magnitude;
}

enum { FEW_ENTRIES = 32, DIGIT = 256 };

static inline void sort_few(entry *a, int64_t n) {
  for (int64_t i = 1; i < n; i++) {
    entry e = a[i];
    int64_t j = i;
    for (; j && a[j - 1].key > e.key; j--) a[j] = a[j - 1];
    a[j] = e;
  }
}

// Sorts n < 2^32 entries by key, equal ones as they stand: by digits of 8 bits from the lowest, those left out that all keys share. Returns
// where the result lies: a, or b, which has room for n.
static inline entry *sort_entries(entry *a, entry *b, int64_t n) {
  if (n <= FEW_ENTRIES) {
    sort_few(a, n);
    return a;
  }
  uint32_t counts[8][DIGIT];
  memset(counts, 0, sizeof counts);
  for (int64_t i = 0; i < n; i++)
    for (int digit = 0; digit < 8; digit++) counts[digit][a[i].key >> 8 * digit & (DIGIT - 1)]++;
  for (int digit = 0; digit < 8; digit++) {
    uint32_t *count = counts[digit], before = 0;
    if (count[a[0].key >> 8 * digit & (DIGIT - 1)] == n) continue;
    for (int i = 0; i < DIGIT; i++) {
      uint32_t here = count[i];
      count[i] = before;
      before += here;
    }
    for (int64_t i = 0; i < n; i++) b[count[a[i].key >> 8 * digit & (DIGIT - 1)]++] = a[i];
    entry *swap = a;
    a = b, b = swap;
  }
  return a;
}
#endif
