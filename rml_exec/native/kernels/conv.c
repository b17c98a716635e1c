// 2-D convolution over channels-last tensors (any number of spatial axes: the kernels see pixels and taps only), f32.
//
// A table of int32, built when the plan is made, gives for every output pixel and tap the offset (in floats) of the input pixel inside
// one batch item, or -1 where the tap falls on padding. Strides, dilations and asymmetric pads exist in that table alone; padding taps
// read a row of zeros (indirect convolution, as in XNNPACK). Sums run over taps, then channels, in the blocks of gemm.h; padding taps
// take part as products with zero, as they do in an im2col matrix.
//
// conv            y[pixel, oc] = bias[oc] + sum over taps, ic of x[offset(pixel, tap) + ic] w[tap, ic, oc], per group. Packed weights:
//                 for each group pack_b of its [taps * ic, oc] matrix, groups one after the other.
// conv_depthwise  y[pixel, c] = bias[c] + sum over taps of x[offset(pixel, tap) + c] w[tap, c]
// Output rows are y_pixel_stride apart; no operand may overlap y; only the elements named are touched.
#include "gemm.h"

typedef struct tile {
  int64_t taps, ic, ldc;
  const float *x, *zeros, *b, *bias;
  const int32_t *offsets;  // of the first row: [rows][taps]
  float *c;
  int last;
} tile;

INL void tile_run(const tile *t, const int mr, const int nv) {
  gemm_accumulators c;
  float total[GEMM_MR * GEMM_NR];
  const float *b = t->b;
  int64_t room = GEMM_KB;
  int blocks = 0;
  gemm_seed(c, t->bias, t->last, mr, nv);
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
      gemm_multiply(c, a, b, run, mr, nv);
      UNROLL(6)
      for (int i = 0; i < mr; i++) a[i] += run;
      b += run * nv * W;
      left -= run, room -= run;
    }
  }
  gemm_store(c, blocks ? total : 0, t->c, t->ldc, t->last, mr, nv);
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
  const float *bias = args->ptr[3];
  gemm_share share = RML_KERNEL(gemm_share_of)(batch * tiles, groups * panels, taps * ic, args->thread, args->threads);
  for (int64_t block = share.tile_begin; block < share.tile_end; block += GEMM_ROW_BLOCK_TILES) {
    int64_t block_end = share.tile_end - block < GEMM_ROW_BLOCK_TILES ? share.tile_end : block + GEMM_ROW_BLOCK_TILES;
    for (int64_t j = share.panel_begin; j < share.panel_end; j++) {
      int64_t group = j / panels, panel = j % panels, channel = group * oc + panel * GEMM_NR;
      gemm_columns columns = gemm_panel_columns(oc, panel);
      tile t = {.taps = taps, .ic = ic, .ldc = ldc, .zeros = args->ptr[5], .last = columns.last, .bias = bias ? bias + channel : 0,
                .b = (const float *)args->ptr[2] + group * group_floats + panel * GEMM_NR * taps * ic};
      for (int64_t i = block; i < block_end; i++) {
        int64_t item = i / tiles, row = gemm_tile_row(pixels, tiles, i % tiles), rows = gemm_tile_row(pixels, tiles, i % tiles + 1) - row;
        t.x = (const float *)args->ptr[1] + item * p[6] + group * ic;
        t.offsets = offsets + row * taps;
        t.c = (float *)args->ptr[0] + item * p[8] + row * ldc + channel;
        tile_functions[rows][columns.vectors](&t);
      }
    }
  }
}

// ---- depthwise: pixels x vectors of channels in registers; a weight vector is used for every pixel of the tile
enum { DEPTHWISE_PIXELS = 4, DEPTHWISE_TAPS = GEMM_KB };

typedef struct depthwise {
  int64_t channels, taps;              // taps of this block, at most DEPTHWISE_TAPS
  const float *weights, *bias;         // bias only in the first block of taps
  const float *x[DEPTHWISE_PIXELS][DEPTHWISE_TAPS];
  float *y;
  int add;                             // not the first block: add to y
} depthwise;

// Channels [c, c + nv * W) of `pixels` pixels, the last vector only `last` lanes of it.
INL void depthwise_tile(const depthwise *d, int64_t c, int last, const int pixels, const int nv) {
  vf sum[DEPTHWISE_PIXELS][GEMM_NV];
  UNROLL(4)
  for (int j = 0; j < nv; j++) {
    vf seed = d->bias ? vf_loadn(d->bias + c + j * W, j < nv - 1 ? W : last) : vf1(0);
    UNROLL(4)
    for (int i = 0; i < pixels; i++) sum[i][j] = seed;
  }
  for (int64_t tap = 0; tap < d->taps; tap++) {
    UNROLL(4)
    for (int j = 0; j < nv; j++) {
      int partial = j == nv - 1 && last < W;
      const float *w = d->weights + tap * d->channels + c + j * W;
      vf weight = partial ? vf_loadn(w, last) : vf_load(w);
      UNROLL(4)
      for (int i = 0; i < pixels; i++) {
        const float *x = d->x[i][tap] + c + j * W;
        sum[i][j] = vf_fma(partial ? vf_loadn(x, last) : vf_load(x), weight, sum[i][j]);
      }
    }
  }
  UNROLL(4)
  for (int i = 0; i < pixels; i++) {
    UNROLL(4)
    for (int j = 0; j < nv; j++) {
      float *y = d->y + i * d->channels + c + j * W;
      int lanes = j < nv - 1 ? W : last;
      vf_storen(y, d->add ? vf_loadn(y, lanes) + sum[i][j] : sum[i][j], lanes);
    }
  }
}

INL void depthwise_pixels(const depthwise *d, const int pixels) {
  int64_t c = 0;
  for (; c + GEMM_NR <= d->channels; c += GEMM_NR) depthwise_tile(d, c, W, pixels, GEMM_NV);
  for (; c + W <= d->channels; c += W) depthwise_tile(d, c, W, pixels, 1);
  if (c < d->channels) depthwise_tile(d, c, (int)(d->channels - c), pixels, 1);
}

void RML_KERNEL(conv_depthwise)(const rml_args *args) {
  const int64_t *p = args->p;
  int64_t batch = p[0], pixels = p[1], taps = p[2], channels = p[3], begin, end;
  const int32_t *offsets = args->ptr[4];
  const float *zeros = args->ptr[5], *weights = args->ptr[2];
  int64_t tiles = (pixels + DEPTHWISE_PIXELS - 1) / DEPTHWISE_PIXELS;
  rml_share(batch * tiles, args->thread, args->threads, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    int64_t item = i / tiles, first = i % tiles * DEPTHWISE_PIXELS;
    int rows = (int)(pixels - first < DEPTHWISE_PIXELS ? pixels - first : DEPTHWISE_PIXELS);
    const float *x = (const float *)args->ptr[1] + item * p[4];
    depthwise d;
    d.channels = channels;
    d.y = (float *)args->ptr[0] + item * p[5] + first * channels;
    for (int64_t tap = 0; tap == 0 || tap < taps; tap += DEPTHWISE_TAPS) {
      d.taps = taps - tap < DEPTHWISE_TAPS ? taps - tap : DEPTHWISE_TAPS;
      d.weights = weights + tap * channels;
      d.bias = tap ? 0 : args->ptr[3];
      d.add = tap > 0;
      for (int row = 0; row < rows; row++)
        for (int64_t l = 0; l < d.taps; l++) {
          int32_t offset = offsets[(first + row) * taps + tap + l];
          d.x[row][l] = offset < 0 ? zeros : x + offset;
        }
      switch (rows) {
        case 1: depthwise_pixels(&d, 1); break;
        case 2: depthwise_pixels(&d, 2); break;
        case 3: depthwise_pixels(&d, 3); break;
        default: depthwise_pixels(&d, 4); break;
      }
    }
  }
}
