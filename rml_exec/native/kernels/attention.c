// softmax(scale * Q K^T + mask) V without a score matrix: a block of query rows meets all keys, its scores stay in the second-level cache,
// become weights there and meet the values. The weights are not divided by their sum, the result is. steps.def lists the parameters.
//
// Query heads that share keys and values are rows of one matrix: row r of an item is query r % length of head r / length.
#include <stdbool.h>

#include "gemm.h"
#include "lanes.h"
#include "softmax.h"
#include "vmath.h"

enum { MASK_NONE, MASK_BOOL, MASK_ADD, MASK_CAUSAL };
enum { MASKED_NAN, MASKED_ZERO, MASKED_UNIFORM };
enum { GROUP = 8 };  // rows whose passes overlap, as in rows.c

typedef struct attention {
  int64_t items, rows, keys, depth, width, length, q_item, q_row;
  float scale, softcap;
  int mask_kind, masked;
  int64_t mask_heads, mask_outer, mask_head, mask_row, mask_column;
  bool cut, plain;
  int64_t block;
  float *y;
  const float *q, *k, *v;
  const void *mask;
} attention;

static float real(int64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return (float)value;
}

// Keys that row r may attend to at most under a causal mask.
INL int64_t causal_keys(const attention *t, int64_t r) {
  int64_t allowed = r % t->length + 1;
  return allowed < t->keys ? allowed : t->keys;
}

// First element of the mask for a row of an item.
INL int64_t mask_at(const attention *t, int64_t item, int64_t r) {
  int64_t head = item * (t->rows / t->length) + r / t->length;
  return head / t->mask_heads * t->mask_outer + head % t->mask_heads * t->mask_head + r % t->length * t->mask_row;
}

// Scores i .. i + lanes - 1 of a row, scaled, capped and masked. at: the row's place in the mask, or how many keys it sees.
INL vf weigh(const attention *t, vf s, int64_t at, int64_t i, int lanes, const int kind, const bool capped) {
  s = s * vf1(t->scale);
  if (capped) s = v_tanh(s) * vf1(t->softcap);
  const vf out = vf1(-VMATH_INF);
  int64_t from = at + i * t->mask_column;
  if (kind == MASK_ADD) {
    const float *mask = t->mask;
    s = s + (t->mask_column ? load_lanes(mask + from, lanes) : vf1(mask[from]));
  } else if (kind == MASK_BOOL) {
    const uint8_t *mask = t->mask;
    if (t->mask_column) s = vf_sel(vm_load_bool(mask + from, lanes), s, out);
    else s = mask[from] ? s : out;
  } else if (kind == MASK_CAUSAL) {
    static const float number[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (i + lanes > at) s = vf_sel(vf_lt(vf_load(number), vf1((float)(at - i))), s, out);
  }
  return t->masked == MASKED_UNIFORM ? vf_max(vf1(-0x1.fffffep127f), s) : s;
}

// The scores of one row become what softmax sees; returns the largest, as row_max.
INL vf weigh_row(const attention *t, float *s, int64_t at, int64_t keys, const int kind, const bool capped) {
  vf largest = vf1(-VMATH_INF);
  int64_t i = 0;
  for (; i + W <= keys; i += W) {
    vf x = weigh(t, vf_load(s + i), at, i, W, kind, capped);
    vf_store(s + i, x);
    largest = vf_max(largest, x);
  }
  if (i < keys) {
    int left = (int)(keys - i);
    vf x = weigh(t, vf_loadn(s + i, left), at, i, left, kind, capped);
    vf_storen(s + i, x, left);
    for (int j = 0; j < left; j++) largest = vf_max(largest, vf1(x[j]));
  }
  return lanes_within(LANES_MAX, largest);
}

// The largest of what softmax sees of a row. Where nothing but a scale stands between the scores and it, they stay as they are.
static vf prepare_row(const attention *t, float *s, int64_t item, int64_t r, int64_t keys) {
  if (t->plain) return row_max(s, keys);
  if (t->softcap > 0) {
    switch (t->mask_kind) {
      case MASK_ADD: return weigh_row(t, s, mask_at(t, item, r), keys, MASK_ADD, true);
      case MASK_BOOL: return weigh_row(t, s, mask_at(t, item, r), keys, MASK_BOOL, true);
      case MASK_CAUSAL: return weigh_row(t, s, causal_keys(t, r), keys, MASK_CAUSAL, true);
      default: return weigh_row(t, s, 0, keys, MASK_NONE, true);
    }
  }
  switch (t->mask_kind) {
    case MASK_ADD: return weigh_row(t, s, mask_at(t, item, r), keys, MASK_ADD, false);
    case MASK_BOOL: return weigh_row(t, s, mask_at(t, item, r), keys, MASK_BOOL, false);
    case MASK_CAUSAL: return weigh_row(t, s, causal_keys(t, r), keys, MASK_CAUSAL, false);
    default: return weigh_row(t, s, 0, keys, MASK_NONE, false);
  }
}

// Rows of scores become powers e^(score - largest); factor[] gets one over their sum.
static void powers(const attention *t, float *s, int64_t stride, int64_t item, int64_t row, int64_t rows, int64_t keys, float *factor) {
  const vf zero = vf1(0);
  for (int64_t r = 0; r < rows; r += GROUP) {
    int64_t last = rows - r < GROUP ? rows - r : GROUP;
    vf largest[GROUP], sum[GROUP];
    for (int64_t g = 0; g < last; g++) largest[g] = prepare_row(t, s + (r + g) * stride, item, row + r + g, keys);
    for (int64_t g = 0; g < last; g++) {
      float *x = s + (r + g) * stride;
      if (t->masked == MASKED_ZERO) largest[g] = vf_sel(vf_eq(largest[g], vf1(-VMATH_INF)), zero, largest[g]);
      sum[g] = t->plain ? exponentials(x, x, keys, largest[g], vf1(t->scale)) : exponentials(x, x, keys, largest[g], vf1(1));
    }
    for (int64_t g = 0; g < last; g++) {
      vf f = vf1(1) / sum[g];
      if (t->masked == MASKED_ZERO) f = vf_sel(vf_eq(sum[g], zero), zero, f);
      factor[r + g] = f[0];
    }
  }
}

static void scale_rows(float *y, int64_t rows, int64_t width, const float *factor) {
  for (int64_t r = 0; r < rows; r++, y += width) {
    const vf f = vf1(factor[r]);
    int64_t i = 0;
    for (; i + W <= width; i += W) vf_store(y + i, vf_load(y + i) * f);
    if (i < width) vf_storen(y + i, vf_loadn(y + i, (int)(width - i)) * f, (int)(width - i));
  }
}

// Rows [row, row + rows) of one item; scores holds rows * stride floats and a factor per row.
static void attend(const attention *t, int64_t item, int64_t row, int64_t rows, float *scores, int64_t stride) {
  int64_t keys = t->keys;
  if (keys == 0) {
    memset(t->y + (item * t->rows + row) * t->width, 0, (size_t)(rows * t->width) * sizeof(float));
    return;
  }
  if (t->cut && row / t->length == (row + rows - 1) / t->length) keys = causal_keys(t, row + rows - 1);
  const float *k = t->k + item * gemm_packed_floats(t->depth, t->keys), *v = t->v + item * gemm_packed_floats(t->keys, t->width);
  float *y = t->y + (item * t->rows + row) * t->width, *factor = scores + t->block * stride;
  RML_KERNEL(gemm_panel_range)(scores, stride, t->q + item * t->q_item + row * t->q_row, t->q_row, k, rows, t->keys, t->depth, 0,
                               gemm_panels(keys));
  powers(t, scores, stride, item, row, rows, keys, factor);
  for (int64_t column = 0; column < t->width; column += GEMM_NR) {
    int64_t columns = t->width - column < GEMM_NR ? t->width - column : GEMM_NR;
    RML_KERNEL(gemm_panel_range)(y + column, t->width, scores, stride, v + column * t->keys, rows, columns, keys, 0, 1);
  }
  scale_rows(y, rows, t->width, factor);
}

void RML_KERNEL(attention)(const rml_args *args) {
  const int64_t *p = args->p;
  attention t = {.items = p[0], .rows = p[1], .keys = p[2], .depth = p[3], .width = p[4], .length = p[5], .q_item = p[6], .q_row = p[7],
                 .scale = real(p[8]), .softcap = real(p[9]), .mask_kind = (int)p[10], .masked = (int)p[11], .mask_heads = p[12],
                 .mask_outer = p[13], .mask_head = p[14], .mask_row = p[15], .mask_column = p[16], .cut = p[17] && p[10] == MASK_CAUSAL,
                 .block = p[18], .y = args->ptr[0], .q = args->ptr[1], .k = args->ptr[2], .v = args->ptr[3], .mask = args->ptr[4]};
  if (t.softcap > 0) t.scale = (float)(real(p[8]) / real(p[9]));
  t.plain = t.mask_kind == MASK_NONE && !(t.softcap > 0) && t.masked != MASKED_UNIFORM && t.scale > 0;
  int64_t stride = p[19], blocks = (t.rows + t.block - 1) / t.block, begin, end;
  int workers = (int)p[20] < args->threads ? (int)p[20] : args->threads;  // threads that have a workspace
  if (args->thread >= workers) return;
  float *scores = (float *)args->ptr[5] + args->thread * t.block * (stride + 1);
  rml_share(t.items * blocks, args->thread, workers, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    int64_t row = i % blocks * t.block, left = t.rows - row;
    attend(&t, i / blocks, row, left < t.block ? left : t.block, scores, stride);
  }
}
