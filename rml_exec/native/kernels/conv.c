// 2-D convolution over channels-last tensors (any number of spatial axes: the kernels see pixels and taps only), f32.
//
// A table of int32, built when the plan is made, gives for every output pixel and tap the offset (in floats) of the input pixel inside
// one batch item, or -1 where the tap falls on padding. Strides, dilations and asymmetric pads exist in that table alone; padding taps
// read a row of zeros (indirect convolution, as in XNNPACK). Sums run over taps, then channels, in the blocks of gemm.h; padding taps
// take part as products with zero, as they do in an im2col matrix.
//
// conv            y[pixel, oc] = bias[oc] + sum over taps, ic of x[offset(pixel, tap) + ic] w[tap, ic, oc], per group. Packed weights:
//                 for each group pack_b of its [taps * ic, oc] matrix, groups one after the other.
// Output pixels are y_pixel_stride apart; no operand but the residual of epilogue.h may overlap y; only the elements named are touched.
#include "gemm.h"

typedef struct tile {
  int64_t taps, ic;
  const float *x, *zeros, *b, *bias;
  const float *ahead;  // of gemm_multiply
  const int32_t *offsets;  // of the first row: [rows][taps]
  gemm_target to;
} tile;

INL void tile_run(const tile *t, const int mr, const int nv) {
  gemm_accumulators c;
  float total[GEMM_MR * GEMM_NR];
  const float *b = t->b, *ahead = t->ahead;
  int64_t room = GEMM_KB;
  int blocks = 0;
  gemm_fetch_target(&t->to, mr, nv);
  gemm_seed(c, t->bias, t->to.last, mr, nv);
  for (int64_t tap = 0; tap < t->taps; tap++) {
    const float *a[GEMM_MR];
    UNROLL(6)
    for (int i = 0; i < mr; i++) {
      int32_t offset = t->offsets[i * t->taps + tap];
      a[i] = offset < 0 ? t->zeros : t->x + offset;
    }
    for (int64_t left = t->ic; left;) {
      if (!room) {
        gemm_flush(c, total, !blocks++, mr, nv);
        room = GEMM_KB;
      }
      int64_t run = left < room ? left : room;
      gemm_multiply(c, a, b, run, ahead, mr, nv);
      UNROLL(6)
      for (int i = 0; i < mr; i++) a[i] += run;
      b += run * nv * W;
      ahead += run * LINE;
      left -= run, room -= run;
    }
  }
  gemm_store(c, blocks ? total : 0, &t->to, mr, nv);
}

#define TILE(mr, nv) \
  static void tile_##mr##x##nv(const tile *t) { tile_run(t, mr, nv); }
TILES(TILE)
static void (*const tile_functions[GEMM_MR + 1][GEMM_NV + 1])(const tile *) = TILE_TABLE;

void RML_KERNEL(conv)(const rml_args *args) {
  const int64_t *p = args->p;
  int64_t batch = p[0], pixels = p[1], taps = p[2], ic = p[3], oc = p[4], groups = p[5], ldc = p[7];
  int64_t tiles = gemm_tiles(pixels), panels = gemm_panels(oc), group_floats = gemm_packed_floats(taps * ic, oc);
  const int32_t *offsets = args->ptr[4];
  const float *bias = args->ptr[3], *residual = args->ptr[6];
  const epilogue finish = epilogue_of(p + 9);
  gemm_share share = RML_KERNEL(gemm_share_of)(batch * tiles, groups * panels, taps * ic, args->thread, args->threads);
  for (int64_t block = share.tile_begin; block < share.tile_end; block += GEMM_ROW_BLOCK_TILES) {
    int64_t block_end = share.tile_end - block < GEMM_ROW_BLOCK_TILES ? share.tile_end : block + GEMM_ROW_BLOCK_TILES;
    for (int64_t j = share.panel_begin; j < share.panel_end; j++) {
      int64_t group = j / panels, panel = j % panels, channel = group * oc + panel * GEMM_NR;
      gemm_columns columns = gemm_panel_columns(oc, panel);
      tile t = {.taps = taps, .ic = ic, .zeros = args->ptr[5], .bias = bias ? bias + channel : 0,
                .to = {.finish = &finish, .row_stride = ldc, .last = columns.last},
                .b = (const float *)args->ptr[2] + group * group_floats + panel * GEMM_NR * taps * ic};
      for (int64_t i = block; i < block_end; i++) {
        int64_t item = i / tiles, row = gemm_tile_row(pixels, tiles, i % tiles), rows = gemm_tile_row(pixels, tiles, i % tiles + 1) - row;
        t.x = (const float *)args->ptr[1] + item * p[6] + group * ic;
        t.ahead = gemm_ahead(t.b, taps * ic, i - share.tile_begin);
        t.offsets = offsets + row * taps;
        int64_t at = item * p[8] + row * ldc + channel;
        t.to.y = (float *)args->ptr[0] + at, t.to.residual = residual ? residual + at : 0;
        tile_functions[rows][columns.vectors](&t);
      }
    }
  }
}
