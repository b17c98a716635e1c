// Matrix product with a packed right side: C[m, n] = A[m, k] B[k, n] + bias[n], f32, row-major, batched.
//
// gemm     A rows are lda apart and k contiguous floats each; C rows ldc apart; any alignment. C is written, never read. No operand
//          but the residual of epilogue.h may overlap C. Only the m x k, m x n and n elements named are touched. b_batch_stride 0: one B
//          for the whole batch.
// pack_b   B with any row and column stride into the format of gemm.h.
//
// Loops, outermost first: blocks of about 192 rows, panels of B, row tiles. A panel is read once from far away and then from L2 by every
// row tile. No packing of A and no blocking over k: a 6x64 tile needs 11 bytes of B a cycle, which even L3 delivers.
#include "gemm.h"

#include "transpose.h"

// One row times several whole panels at once, where one panel has too few accumulators to hide the latency of FMA. Where a panel's row is a
// line at most, and the panels as many slow streams, lines are fetched a few rows ahead.
#if W == 16
#define ROW_PANELS 2
#define ROWS_AHEAD 0
#elif defined(RML_USE_NEON)
#define ROW_PANELS 2
#define ROWS_AHEAD 0
#else
#define ROW_PANELS 4
#define ROWS_AHEAD 4
#endif

#ifdef VF_HALVES
// gemm_multiply of a tile with nv vectors, of which `halves` halves have columns. A broadcast from memory per multiply-add is what a whole
// vector would wait for, and 24 columns would pay for 32.
INL void multiply_halves(gemm_accumulators c, const float *const *a, const float *b, int64_t k, const int mr, const int nv, const int halves) {
  vh h[GEMM_MR][2 * GEMM_NV];
  UNROLL(6)
  for (int i = 0; i < mr; i++) {
    UNROLL(4)
    for (int j = 0; j < halves; j++) h[i][j] = vf_half(c[i][j / 2], j & 1);
  }
  for (int64_t l = 0; l < k; l++, b += nv * W) {
    vh row[2 * GEMM_NV];
    UNROLL(4)
    for (int j = 0; j < halves; j++) row[j] = vh_load(b + j * (W / 2));
    UNROLL(6)
    for (int i = 0; i < mr; i++) {
      vh x = vh1(a[i][l]);
      UNROLL(4)
      for (int j = 0; j < halves; j++) h[i][j] = vh_fma(x, row[j], h[i][j]);
    }
  }
  UNROLL(6)
  for (int i = 0; i < mr; i++) {
    UNROLL(4)
    for (int j = 0; j < nv; j++) c[i][j] = vf_join(h[i][2 * j], 2 * j + 1 < halves ? h[i][2 * j + 1] : vh1(0));
  }
}
#endif

// gemm_multiply by whole vectors, or by halves where their number is not 0.
INL void multiply(gemm_accumulators c, const float *const *a, const float *b, int64_t k, const float *ahead, const int mr, const int nv,
                  const int halves) {
#ifdef VF_HALVES
  if (halves) {
    multiply_halves(c, a, b, k, mr, nv, halves);
    return;
  }
#endif
  (void)halves;
  gemm_multiply(c, a, b, k, ahead, mr, nv);
}

// One tile: rows and vectors are in the function's name.
typedef struct tile {
  int64_t k, lda;
  const float *a, *b, *bias;
  const float *ahead;  // of gemm_multiply
  gemm_target to;
} tile;

INL void tile_run(const tile *t, const int mr, const int nv, const int halves) {
  gemm_accumulators c;
  float total[GEMM_MR * GEMM_NR];
  const float *a[GEMM_MR], *b = t->b, *ahead = t->ahead;
  for (int i = 0; i < mr; i++) a[i] = t->a + i * t->lda;
  gemm_fetch_target(&t->to, mr, nv);
  gemm_seed(c, t->bias, t->to.last, mr, nv);
  int64_t left = t->k;
  int blocks = 0;
  for (; left > GEMM_KB; left -= GEMM_KB) {
    multiply(c, a, b, GEMM_KB, ahead, mr, nv, halves);
    gemm_flush(c, total, !blocks++, mr, nv);
    for (int i = 0; i < mr; i++) a[i] += GEMM_KB;
    b += GEMM_KB * nv * W;
    ahead += GEMM_KB * LINE;
  }
  multiply(c, a, b, left, ahead, mr, nv, halves);
  gemm_store(c, blocks ? total : 0, &t->to, mr, nv);
}

#define TILE(mr, nv) \
  static void tile_##mr##x##nv(const tile *t) { tile_run(t, mr, nv, 0); }
TILES(TILE)
typedef void (*tile_function)(const tile *);
static const tile_function tile_functions[GEMM_MR + 1][GEMM_NV + 1] = TILE_TABLE;

#ifdef VF_HALVES
// Tiles of at most 16 and of 17 to 24 columns.
#define NARROW(mr) \
  static void narrow_##mr##x1(const tile *t) { tile_run(t, mr, 1, 2); } \
  static void narrow_##mr##x2(const tile *t) { tile_run(t, mr, 2, 3); }
#define NARROW_NAMES(mr) {0, narrow_##mr##x1, narrow_##mr##x2}
NARROW(1) NARROW(2) NARROW(3) NARROW(4) NARROW(5) NARROW(6)
static const tile_function narrow_functions[GEMM_MR + 1][3] = {{0},             NARROW_NAMES(1), NARROW_NAMES(2), NARROW_NAMES(3),
                                                               NARROW_NAMES(4), NARROW_NAMES(5), NARROW_NAMES(6)};
#endif

static tile_function tile_of(int64_t rows, gemm_columns columns) {
#ifdef VF_HALVES
  if (columns.vectors == 1 || (columns.vectors == 2 && columns.last <= W / 2)) return narrow_functions[rows][columns.vectors];
#endif
  return tile_functions[rows][columns.vectors];
}

// One row times ROW_PANELS whole panels.
static void row_times_panels(const tile *t) {
  enum { NV = ROW_PANELS * GEMM_NV };
  vf c[NV], total[NV];
  for (int j = 0; j < NV; j++) c[j] = t->bias ? vf_load(t->bias + j * W) : vf1(0);
  for (int64_t k0 = 0;;) {
    int64_t end = t->k - k0 > GEMM_KB ? k0 + GEMM_KB : t->k;
    for (int64_t k = k0; k < end; k++) {
      vf x = vf1(t->a[k]);
      if (ROWS_AHEAD) {
        UNROLL(4)
        for (int j = 0; j < ROW_PANELS; j++) __builtin_prefetch(t->b + (j * t->k + k + ROWS_AHEAD) * GEMM_NR, 0, 3);
      }
      UNROLL(16)
      for (int j = 0; j < NV; j++) c[j] = vf_fma(x, vf_load(t->b + (j / GEMM_NV * t->k + k) * GEMM_NR + j % GEMM_NV * W), c[j]);
    }
    UNROLL(16)
    for (int j = 0; j < NV; j++) {
      total[j] = k0 ? total[j] + c[j] : c[j];
      c[j] = vf1(0);
    }
    if (end == t->k) break;
    k0 = end;
  }
  float sums[NV * W];
  for (int j = 0; j < NV; j++) vf_store(sums + j * W, total[j]);
  RML_KERNEL(epilogue_finish)(t->to.finish, t->to.y, t->to.residual, sums, 1, NV * W, NV * W, 0);
}

// Cycles per k that the thread with most work needs: one FMA a cycle, and 16 bytes a cycle for the rows and columns it reads.
static int64_t share_cost(int64_t tiles, int64_t panels) {
  return tiles * panels * GEMM_MR * GEMM_NV + (tiles * GEMM_MR + panels * GEMM_NR) / 4;
}

gemm_share RML_KERNEL(gemm_share_of)(int64_t tiles, int64_t panels, int64_t k, int thread, int threads) {
  enum { SERIAL_MACS = 32768 };  // below, waking up the other core's cache costs more than it brings
  int rows = 1, columns = 1;
  if (tiles * panels * GEMM_MR * GEMM_NR * k >= SERIAL_MACS) {
    int64_t best = INT64_MAX;
    for (int across = 1; across <= threads; across++) {
      int down = threads / across;
      int64_t cost = share_cost((tiles + down - 1) / down, (panels + across - 1) / across);
      if (cost < best) best = cost, rows = down, columns = across;
    }
  }
  gemm_share share = {0};
  if (thread < rows * columns) {
    rml_share(tiles, thread / columns, rows, &share.tile_begin, &share.tile_end);
    rml_share(panels, thread % columns, columns, &share.panel_begin, &share.panel_end);
  }
  return share;
}

// Tiles [begin, end) of one matrix against the share's panels; b and bias are those of the whole matrix.
static void multiply_tiles(tile t, int64_t m, int64_t n, int64_t begin, int64_t end, const gemm_share *share) {
  const float *a = t.a, *b = t.b, *bias = t.bias, *residual = t.to.residual;
  float *y = t.to.y;
  int64_t tiles = gemm_tiles(m);
  for (int64_t block = begin; block < end; block += GEMM_ROW_BLOCK_TILES) {
    int64_t block_end = end - block < GEMM_ROW_BLOCK_TILES ? end : block + GEMM_ROW_BLOCK_TILES;
    for (int64_t panel = share->panel_begin, step; panel < share->panel_end; panel += step) {
      gemm_columns columns = gemm_panel_columns(n, panel);
      t.b = b + panel * GEMM_NR * t.k;
      t.bias = bias ? bias + panel * GEMM_NR : 0;
      t.to.last = columns.last;
      step = 1;
      if (m == 1 && share->panel_end - panel >= ROW_PANELS && n - panel * GEMM_NR >= ROW_PANELS * GEMM_NR) {
        t.a = a, t.to.y = y + panel * GEMM_NR, t.to.residual = residual ? residual + panel * GEMM_NR : 0;
        row_times_panels(&t);
        step = ROW_PANELS;
        continue;
      }
      for (int64_t i = block; i < block_end; i++) {
        int64_t row = gemm_tile_row(m, tiles, i), rows = gemm_tile_row(m, tiles, i + 1) - row;
        t.ahead = gemm_ahead(t.b, t.k, i - begin);
        t.a = a + row * t.lda;
        t.to.y = y + row * t.to.row_stride + panel * GEMM_NR;
        t.to.residual = residual ? residual + row * t.to.row_stride + panel * GEMM_NR : 0;
        tile_of(rows, columns)(&t);
      }
    }
  }
}

void RML_KERNEL(gemm_panel_range)(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t m, int64_t n, int64_t k,
                                  int64_t panel_begin, int64_t panel_end) {
  static const epilogue none;
  tile t = {.k = k, .lda = lda, .a = a, .b = b, .to = {.y = c, .finish = &none, .row_stride = ldc}};
  multiply_tiles(t, m, n, 0, gemm_tiles(m), &(gemm_share){.panel_begin = panel_begin, .panel_end = panel_end});
}

void RML_KERNEL(gemm)(const rml_args *args) {
  const int64_t *p = args->p;
  int64_t batch = p[0], m = p[1], n = p[2], k = p[3], tiles = gemm_tiles(m);
  const epilogue finish = epilogue_of(p + 9);
  const float *residual = args->ptr[4];
  gemm_share share = RML_KERNEL(gemm_share_of)(batch * tiles, gemm_panels(n), k, args->thread, args->threads);
  for (int64_t i = share.tile_begin; i < share.tile_end;) {
    int64_t item = i / tiles, begin = i % tiles, end = share.tile_end - item * tiles;
    if (end > tiles) end = tiles;
    gemm_target to = {.y = (float *)args->ptr[0] + item * p[8], .residual = residual ? residual + item * p[8] : 0, .finish = &finish,
                      .row_stride = p[5]};
    tile t = {.k = k, .lda = p[4], .a = (const float *)args->ptr[1] + item * p[6], .b = (const float *)args->ptr[2] + item * p[7],
              .bias = args->ptr[3], .to = to};
    multiply_tiles(t, m, n, begin, end, &share);
    i = item * tiles + end;
  }
}

// A block of `rows` x `columns` into rows of `width` floats: row by row where rows are contiguous; else column by column, in squares where
// columns are contiguous (a transposed matrix).
static void pack_block(float *dst, const float *b, int64_t rows, int64_t columns, int64_t width, int64_t row_stride, int64_t col_stride) {
  if (col_stride == 1) {
    for (int64_t i = 0; i < rows; i++) memcpy(dst + i * width, b + i * row_stride, (size_t)columns * sizeof(float));
  } else {
    int64_t j = 0;
    if (row_stride == 1 && rows % W == 0)
      for (; j + W <= columns; j += W)
        for (int64_t i = 0; i < rows; i += W) transpose_square(dst + i * width + j, width, b + i + j * col_stride, col_stride);
    for (; j < columns; j++)
      for (int64_t i = 0; i < rows; i++) dst[i * width + j] = b[i * row_stride + j * col_stride];
  }
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = columns; j < width; j++) dst[i * width + j] = 0;
}

// One panel, in blocks of rows, so that both sides stay in L1; of all taps, since they may lie between one another.
static void pack_panel(float *dst, const rml_matrix *b, int64_t column, int64_t columns) {
  enum { ROWS = 16 };
  const int64_t depth = b->k / b->taps, width = gemm_vectors(columns) * W;
  for (int64_t row = 0; row < depth; row += ROWS)
    for (int64_t tap = 0; tap < b->taps; tap++) {
      int64_t rows = depth - row < ROWS ? depth - row : ROWS;
      float *block = dst + (tap * depth + row) * width;
      const float *data = b->data + tap * b->tap_stride + row * b->row_stride + column * b->col_stride;
      pack_block(block, data, rows, columns, width, b->row_stride, b->col_stride);
      for (int64_t i = 0; b->scale && i < rows; i++)
        for (int64_t j = 0; j < columns; j++) block[i * width + j] = (float)(block[i * width + j] * b->scale[column + j]);
    }
}

static void pack_panels(float *dst, const rml_matrix *b, int64_t begin, int64_t end) {
  for (int64_t panel = begin; panel < end; panel++) {
    int64_t column = panel * GEMM_NR, columns = b->n - column < GEMM_NR ? b->n - column : GEMM_NR;
    pack_panel(dst + column * b->k, b, column, columns);
  }
}

void RML_KERNEL(pack_b_matrix)(float *dst, const rml_matrix *b) { pack_panels(dst, b, 0, gemm_panels(b->n)); }

void RML_KERNEL(pack_b)(const rml_args *args) {
  const int64_t *p = args->p;
  int64_t batch = p[0], k = p[1], n = p[2], panels = gemm_panels(n), begin, end;
  rml_share(batch * panels, args->thread, args->threads, &begin, &end);
  while (begin < end) {
    int64_t item = begin / panels, first = begin % panels, last = end - item * panels < panels ? end - item * panels : panels;
    float *dst = (float *)args->ptr[0] + item * gemm_packed_floats(k, n);
    rml_matrix b = {.data = (const float *)args->ptr[1] + item * p[3], .k = k, .n = n, .row_stride = p[4], .col_stride = p[5], .taps = 1};
    pack_panels(dst, &b, first, last);
    begin = item * panels + last;
  }
}
