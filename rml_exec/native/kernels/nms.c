// Non-maximum suppression of f32 boxes, two opposite corners each: boxes in order of their scores, each chosen unless its overlap with one
// chosen before is above the threshold. Overlaps are computed in double precision and compared without division, as the NumPy reference
// does. One thread does it all: every choice depends on those before.
#include <string.h>

#include "isa.h"
#include "sorting.h"

enum { BLOCK = 32 };

// NaN of either side stays.
static inline double lower(double a, double b) { return a != a || a <= b ? a : b; }
static inline double higher(double a, double b) { return a != a || a >= b ? a : b; }

typedef struct chosen_boxes {   // one line per property, so that a box is compared with neighbouring ones in vectors
  double *low_y, *low_x, *high_y, *high_x, *area;
} chosen_boxes;

typedef struct box {
  double low_y, low_x, high_y, high_x, area;
} box;

static box box_of(const float *corners) {
  box b = {lower(corners[0], corners[2]), lower(corners[1], corners[3]), higher(corners[0], corners[2]), higher(corners[1], corners[3]), 0};
  b.area = (b.high_y - b.low_y) * (b.high_x - b.low_x);
  return b;
}

static int is_suppressed(const chosen_boxes *c, int64_t count, box b, double threshold) {
  for (int64_t begin = 0; begin < count; begin += BLOCK) {
    int64_t end = count - begin < BLOCK ? count : begin + BLOCK;
    int64_t found = 0;
    for (int64_t i = begin; i < end; i++) {
      double height = higher(lower(b.high_y, c->high_y[i]) - higher(b.low_y, c->low_y[i]), 0);
      double width = higher(lower(b.high_x, c->high_x[i]) - higher(b.low_x, c->low_x[i]), 0);
      double shared = height * width;
      found |= shared > threshold * (b.area + c->area[i] - shared);
    }
    if (found) return 1;
  }
  return 0;
}

static void write_index(void *y, int64_t bytes, int64_t i, int64_t index) {
  if (bytes == 4) ((int32_t *)y)[i] = (int32_t)index;
  else ((int64_t *)y)[i] = index;
}

void RML_KERNEL(nms)(const rml_args *args) {
  if (args->thread) return;
  const int64_t *p = args->p, n = p[0], most = p[1], bytes = p[2];
  const float *boxes = args->ptr[2], *scores = args->ptr[3];
  double threshold, least;
  memcpy(&threshold, &p[3], sizeof threshold);
  memcpy(&least, &p[5], sizeof least);
  entry *a = args->ptr[4];
  double *lines = (double *)(a + 2 * n);
  chosen_boxes chosen = {lines, lines + most, lines + 2 * most, lines + 3 * most, lines + 4 * most};
  int64_t candidates = 0, count = 0;
  for (int64_t i = 0; i < n; i++) {
    uint32_t pattern;
    memcpy(&pattern, &scores[i], sizeof pattern);
    if (p[4] ? scores[i] > (float)least : scores[i] == scores[i]) a[candidates++] = (entry){~float_key(pattern, 32, 23), i};
  }
  const entry *sorted = sort_entries(a, a + n, candidates);
  for (int64_t i = 0; i < candidates && count < most; i++) {
    box b = box_of(boxes + 4 * sorted[i].index);
    if (is_suppressed(&chosen, count, b, threshold)) continue;
    chosen.low_y[count] = b.low_y, chosen.low_x[count] = b.low_x, chosen.high_y[count] = b.high_y, chosen.high_x[count] = b.high_x;
    chosen.area[count] = b.area;
    write_index(args->ptr[0], bytes, count++, sorted[i].index);
  }
  write_index(args->ptr[1], bytes, 0, count);
  for (int64_t i = count; i < most; i++) write_index(args->ptr[0], bytes, i, -1);
}
