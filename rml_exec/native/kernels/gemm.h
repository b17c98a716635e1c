// The register tile and the packed format of matrix B, shared by the kernels that multiply matrices (gemm.c, conv.c).
//
// Packed B of a [k, n] matrix: panels of GEMM_NR columns, each k rows of GEMM_NR floats; the last panel is as wide as its columns need,
// rounded up to whole vectors and filled with zeros.
//
// Numerics, the same for every tile, thread count and (with FMA) instruction set: an element is summed with k ascending by fused
// multiply-add in blocks of GEMM_KB, each from 0, the first from the bias; block sums are added in order. One chain over a long k has
// about 2.5 times the rounding error.
#ifndef RML_GEMM_H
#define RML_GEMM_H
#include "epilogue.h"
#include "isa.h"
#include "simd.h"

// Tile of GEMM_MR rows x GEMM_NV vectors: 24 accumulators where there are 32 registers, 12 of 16 with FMA, 8 of 16 without (there a product
// needs a register of its own). AOCL, oneDNN and XNNPACK arrive at the same shapes.
#if W == 16 || defined(RML_USE_NEON)
#define GEMM_MR 6
#define GEMM_NV 4
#elif W == 8
#define GEMM_MR 6
#define GEMM_NV 2
#else
#define GEMM_MR 4
#define GEMM_NV 2
#endif
#define GEMM_NR (GEMM_NV * W)
#define GEMM_KB 256
#define LINE 16  // floats of a cache line
#define GEMM_ROW_BLOCK_TILES 32  // about 192 rows are finished before the next: their A stays in L2 while the panels pass

static inline int64_t gemm_panels(int64_t n) { return (n + GEMM_NR - 1) / GEMM_NR; }
static inline int64_t gemm_vectors(int64_t n) { return (n + W - 1) / W; }
static inline int64_t gemm_packed_floats(int64_t k, int64_t n) { return k * gemm_vectors(n) * W; }

// Rows are cut into ceil(m / GEMM_MR) tiles whose heights differ by one at most: 49 is 6,6,6,6,5,5,5,5,5. Returns the first row of tile i.
static inline int64_t gemm_tiles(int64_t m) { return (m + GEMM_MR - 1) / GEMM_MR; }
static inline int64_t gemm_tile_row(int64_t m, int64_t tiles, int64_t i) { return m / tiles * i + (i < m % tiles ? i : m % tiles); }

// A panel's columns of one output: how many vectors, and how many columns stand in the last one.
typedef struct gemm_columns {
  int vectors, last;
} gemm_columns;

static inline gemm_columns gemm_panel_columns(int64_t n, int64_t panel) {
  int64_t left = n - panel * GEMM_NR;
  if (left >= GEMM_NR) return (gemm_columns){GEMM_NV, W};
  int vectors = (int)gemm_vectors(left);
  return (gemm_columns){vectors, (int)left - (vectors - 1) * W};
}

// What tile i of a panel fetches while it works. The first tiles fetch the next panel, which lies behind this one, a line per row of the
// panel each, until all of it is on its way; the others fetch what is there.
static inline const float *gemm_ahead(const float *panel, int64_t k, int64_t i) {
  return i * LINE < GEMM_NR ? panel + (GEMM_NR + i * LINE) * k : panel;
}

// The part of a grid of row tiles x panels that a thread owns; chosen from the sizes alone.
typedef struct gemm_share {
  int64_t tile_begin, tile_end, panel_begin, panel_end;
} gemm_share;

gemm_share RML_KERNEL(gemm_share_of)(int64_t tiles, int64_t panels, int64_t k, int thread, int threads);
// Panels [panel_begin, panel_end) of C[m, n] = A[m, k] packed B, on the calling thread alone.
void RML_KERNEL(gemm_panel_range)(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t m, int64_t n, int64_t k,
                                  int64_t panel_begin, int64_t panel_end);
void RML_KERNEL(pack_b_matrix)(float *dst, const rml_matrix *b);

// ---- the tile: accumulators c of mr x nv vectors, both known at compile time
typedef vf gemm_accumulators[GEMM_MR][GEMM_NV];

INL void gemm_seed(gemm_accumulators c, const float *bias, int last, const int mr, const int nv) {
  UNROLL(4)
  for (int j = 0; j < nv; j++) {
    vf seed = !bias ? vf1(0) : j < nv - 1 || last == W ? vf_load(bias + j * W) : vf_loadn(bias + j * W, last);
    UNROLL(6)
    for (int i = 0; i < mr; i++) c[i][j] = seed;
  }
}

// c += rows a[i][0..k) times k rows of a panel; a cache line per row is fetched from `ahead`, which is needed soon.
INL void gemm_multiply(gemm_accumulators c, const float *const *a, const float *b, int64_t k, const float *ahead, const int mr,
                       const int nv) {
  for (int64_t l = 0; l < k; l++, b += nv * W) {
    __builtin_prefetch(ahead + l * LINE, 0, 2);
    vf row[GEMM_NV];
    UNROLL(4)
    for (int j = 0; j < nv; j++) row[j] = vf_load(b + j * W);
    UNROLL(6)
    for (int i = 0; i < mr; i++) {
      vf x = vf1(a[i][l]);
      UNROLL(4)
      for (int j = 0; j < nv; j++) c[i][j] = vf_fma(x, row[j], c[i][j]);
    }
  }
}

// Ends a block of GEMM_KB: moves the block's sum into the total, or adds it, and clears the accumulators.
INL void gemm_flush(gemm_accumulators c, float *total, int first, const int mr, const int nv) {
  UNROLL(6)
  for (int i = 0; i < mr; i++) {
    UNROLL(4)
    for (int j = 0; j < nv; j++) {
      float *sum = total + (i * nv + j) * W;
      vf_store(sum, first ? c[i][j] : vf_load(sum) + c[i][j]);
      c[i][j] = vf1(0);
    }
  }
}

// Where a tile goes.
typedef struct gemm_target {
  float *y;
  const float *residual;  // or null
  const epilogue *finish;
  int64_t row_stride;     // of both
  int last;               // columns in the last vector
} gemm_target;

// Fetches what the end of the tile reads and writes while its sums are computed.
INL void gemm_fetch_target(const gemm_target *to, const int mr, const int nv) {
  UNROLL(6)
  for (int i = 0; i < mr; i++) {
    UNROLL(4)
    for (int j = 0; j < nv * W; j += LINE) {
      __builtin_prefetch(to->y + i * to->row_stride + j, 1, 3);
      if (to->residual) __builtin_prefetch(to->residual + i * to->row_stride + j, 0, 3);
    }
  }
}

INL void gemm_add_residual(gemm_accumulators c, const gemm_target *to, const int mr, const int nv) {
  UNROLL(6)
  for (int i = 0; i < mr; i++) {
    UNROLL(4)
    for (int j = 0; j < nv; j++) {
      const float *r = to->residual + i * to->row_stride + j * W;
      c[i][j] += j < nv - 1 || to->last == W ? vf_load(r) : vf_loadn(r, to->last);
    }
  }
}

// Adds the sums of the blocks before, if there are any, finishes the tile and stores it. What calls a function comes last: accumulators
// that lived across a call would not stay in registers.
INL void gemm_store(gemm_accumulators c, const float *total, const gemm_target *to, const int mr, const int nv) {
  const epilogue *finish = to->finish;
  if (total) {
    UNROLL(6)
    for (int i = 0; i < mr; i++) {
      UNROLL(4)
      for (int j = 0; j < nv; j++) c[i][j] += vf_load(total + (i * nv + j) * W);
    }
  }
  if (!epilogue_is_short(finish)) {
    float sums[GEMM_MR * GEMM_NR];
    UNROLL(6)
    for (int i = 0; i < mr; i++) {
      UNROLL(4)
      for (int j = 0; j < nv; j++) vf_store(sums + (i * nv + j) * W, c[i][j]);
    }
    RML_KERNEL(epilogue_finish)(finish, to->y, to->residual, sums, mr, (nv - 1) * W + to->last, nv * W, to->row_stride);
    return;
  }
  if (to->residual && !finish->residual_after) gemm_add_residual(c, to, mr, nv);
  if (finish->activation == ACTIVATION_CLAMP) {
    UNROLL(6)
    for (int i = 0; i < mr; i++) {
      UNROLL(4)
      for (int j = 0; j < nv; j++) c[i][j] = epilogue_clamp(finish, c[i][j]);
    }
  }
  if (to->residual && finish->residual_after) gemm_add_residual(c, to, mr, nv);
  float *y = to->y;
  UNROLL(6)
  for (int i = 0; i < mr; i++, y += to->row_stride) {
    UNROLL(4)
    for (int j = 0; j < nv; j++) {
      if (j < nv - 1 || to->last == W)
        vf_store(y + j * W, c[i][j]);
      else
        vf_storen(y + j * W, c[i][j], to->last);
    }
  }
}

// TILE(mr, nv) for every tile of this instruction set, and TILE_TABLE: a table [rows][vectors] of the functions tile_<mr>x<nv>.
#if GEMM_NV == 4
#define TILE_ROW(TILE, mr) TILE(mr, 1) TILE(mr, 2) TILE(mr, 3) TILE(mr, 4)
#define TILE_NAMES(mr) {0, tile_##mr##x1, tile_##mr##x2, tile_##mr##x3, tile_##mr##x4}
#else
#define TILE_ROW(TILE, mr) TILE(mr, 1) TILE(mr, 2)
#define TILE_NAMES(mr) {0, tile_##mr##x1, tile_##mr##x2}
#endif
#if GEMM_MR == 6
#define TILES(TILE) TILE_ROW(TILE, 1) TILE_ROW(TILE, 2) TILE_ROW(TILE, 3) TILE_ROW(TILE, 4) TILE_ROW(TILE, 5) TILE_ROW(TILE, 6)
#define TILE_TABLE {{0}, TILE_NAMES(1), TILE_NAMES(2), TILE_NAMES(3), TILE_NAMES(4), TILE_NAMES(5), TILE_NAMES(6)}
#else
#define TILES(TILE) TILE_ROW(TILE, 1) TILE_ROW(TILE, 2) TILE_ROW(TILE, 3) TILE_ROW(TILE, 4)
#define TILE_TABLE {{0}, TILE_NAMES(1), TILE_NAMES(2), TILE_NAMES(3), TILE_NAMES(4)}
#endif
#endif
