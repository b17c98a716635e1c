// 2-D convolution over channels-last tensors (any number of spatial axes: the kernels see pixels and taps only), f32.
//
// A table of int32, built when the plan is made, gives for every output pixel and tap the offset (in floats) of the input pixel inside
// one batch item, or -1 where the tap falls on padding. Strides, dilations and asymmetric pads exist in that table alone; padding taps
// read a row of zeros (indirect convolution, as in XNNPACK). Sums run over taps, then channels, in the blocks of gemm.h; padding taps
// take part as products with zero, as they do in an im2col matrix.
//
// conv            y[pixel, oc] = bias[oc] + sum over taps, ic of x[offset(pixel, tap) + ic] w[tap, ic, oc], per group. Packed weights:
//                 for each group pack_b of its [taps * ic, oc] matrix, groups one after the other.
// conv_depthwise  y[pixel, c] = bias[c] + sum over taps of x[offset(pixel, tap) + c] w[tap, c]. `step` is how many input pixels the taps
//                 move from one pixel of an output row to the next (the stride) where the taps of a kernel row are neighbours (no
//                 dilation), else 0; with kw = 3 it lets neighbouring outputs share what they read.
// Output pixels are y_pixel_stride apart (depthwise: channels); no operand may overlap y; only the elements named are touched.
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

// ---- depthwise: a tile is a few neighbouring pixels of one output row, times 2 vectors of channels at a time
//
// The taps are taken in rows of KW. In a row, pixel i needs inputs i * STEP ... i * STEP + KW - 1, so a tile of P pixels reads
// (P - 1) * STEP + KW inputs once for all its pixels. A kernel without such neighbours (dilated, or not 3 wide) is rows of one tap each.
#if W == 16
enum { DEPTHWISE_PIXELS = 6 };
#else
enum { DEPTHWISE_PIXELS = 4 };
#endif
enum { DEPTHWISE_INPUTS = 2 * DEPTHWISE_PIXELS + 1, DEPTHWISE_TAPS = GEMM_KB };

typedef struct depthwise {
  int64_t channels, rows;     // rows of taps in this block
  const float *weights, *bias;
  const float *inputs[DEPTHWISE_TAPS * DEPTHWISE_INPUTS];  // [rows][(P - 1) * STEP + KW]
  float *y;
  int add;                    // not the first block of taps: add to y
} depthwise;

// Channels [c, c + (nv - 1) * W + last).
INL void depthwise_channels(const depthwise *d, int64_t c, int last, const int P, const int KW, const int STEP, const int nv) {
  vf sum[DEPTHWISE_PIXELS][2];
  const float *const *inputs = d->inputs, *w = d->weights + c;
  UNROLL(2)
  for (int j = 0; j < nv; j++) {
    vf seed = d->bias ? vf_loadn(d->bias + c + j * W, j < nv - 1 ? W : last) : vf1(0);
    UNROLL(6)
    for (int i = 0; i < P; i++) sum[i][j] = seed;
  }
  for (int64_t row = 0; row < d->rows; row++, inputs += (P - 1) * STEP + KW) {
    UNROLL(3)
    for (int tap = 0; tap < KW; tap++, w += d->channels) {
      UNROLL(2)
      for (int j = 0; j < nv; j++) {
        int partial = j == nv - 1 && last < W;
        vf weight = partial ? vf_loadn(w + j * W, last) : vf_load(w + j * W);
        UNROLL(6)
        for (int i = 0; i < P; i++) {
          const float *x = inputs[i * STEP + tap] + c + j * W;
          sum[i][j] = vf_fma(partial ? vf_loadn(x, last) : vf_load(x), weight, sum[i][j]);
        }
      }
    }
  }
  const int64_t channels = d->channels;
  const int add = d->add;
  float *y = d->y + c;
  UNROLL(6)
  for (int i = 0; i < P; i++, y += channels) {
    UNROLL(2)
    for (int j = 0; j < nv; j++) {
      int lanes = j < nv - 1 ? W : last;
      vf_storen(y + j * W, add ? vf_loadn(y + j * W, lanes) + sum[i][j] : sum[i][j], lanes);
    }
  }
}

INL void depthwise_run(const depthwise *d, const int P, const int KW, const int STEP) {
  int64_t c = 0;
  for (; c + 2 * W <= d->channels; c += 2 * W) depthwise_channels(d, c, W, P, KW, STEP, 2);
  for (; c < d->channels; c += W) depthwise_channels(d, c, d->channels - c < W ? (int)(d->channels - c) : W, P, KW, STEP, 1);
}

// depthwise_<pixels>_<KW>_<STEP>, and the table of them.
#define DEPTHWISE(P, KW, STEP) \
  static void depthwise_##P##_##KW##_##STEP(const depthwise *d) { depthwise_run(d, P, KW, STEP); }
#define DEPTHWISE_NAME(P, KW, STEP) depthwise_##P##_##KW##_##STEP,
#if W == 16
#define DEPTHWISE_ALL(X, KW, STEP) X(1, KW, STEP) X(2, KW, STEP) X(3, KW, STEP) X(4, KW, STEP) X(5, KW, STEP) X(6, KW, STEP)
#else
#define DEPTHWISE_ALL(X, KW, STEP) X(1, KW, STEP) X(2, KW, STEP) X(3, KW, STEP) X(4, KW, STEP)
#endif
DEPTHWISE_ALL(DEPTHWISE, 1, 1)
DEPTHWISE_ALL(DEPTHWISE, 3, 1)
DEPTHWISE_ALL(DEPTHWISE, 3, 2)
static void (*const depthwise_functions[3][DEPTHWISE_PIXELS + 1])(const depthwise *) = {
    {0, DEPTHWISE_ALL(DEPTHWISE_NAME, 1, 1)}, {0, DEPTHWISE_ALL(DEPTHWISE_NAME, 3, 1)}, {0, DEPTHWISE_ALL(DEPTHWISE_NAME, 3, 2)}};

void RML_KERNEL(conv_depthwise)(const rml_args *args) {
  const int64_t *p = args->p;
  int64_t batch = p[0], lines = p[1], columns = p[2], taps = p[3], channels = p[4], kw = p[5], step = p[6], begin, end;
  const float *zeros = args->ptr[5];
  int variant = kw == 3 && (step == 1 || step == 2) && taps <= DEPTHWISE_TAPS ? (int)step : 0;
  if (!variant) kw = step = 1;
  int64_t tiles = (columns + DEPTHWISE_PIXELS - 1) / DEPTHWISE_PIXELS;
  rml_share(batch * lines * tiles, args->thread, args->threads, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    int64_t line = i / tiles, item = line / lines, first = gemm_tile_row(columns, tiles, i % tiles);
    int64_t pixels = gemm_tile_row(columns, tiles, i % tiles + 1) - first, reads = (pixels - 1) * step + kw;
    first += line % lines * columns;
    const float *x = (const float *)args->ptr[1] + item * p[7];
    const int32_t *offsets = (const int32_t *)args->ptr[4] + first * taps;
    depthwise d;
    d.channels = channels;
    d.y = (float *)args->ptr[0] + item * p[8] + first * channels;
    for (int64_t tap = 0; tap == 0 || tap < taps; tap += DEPTHWISE_TAPS) {
      int64_t block = taps - tap < DEPTHWISE_TAPS ? taps - tap : DEPTHWISE_TAPS;
      d.rows = block / kw;
      d.weights = (const float *)args->ptr[2] + tap * channels;
      d.bias = tap ? 0 : args->ptr[3];
      d.add = tap > 0;
      for (int64_t row = 0; row < d.rows; row++)
        for (int64_t pixel = 0; pixel < pixels; pixel++) {
          const int32_t *from = offsets + pixel * taps + tap + row * kw;
          for (int64_t l = 0; l < (pixel < pixels - 1 ? step : kw); l++)
            d.inputs[row * reads + pixel * step + l] = from[l] < 0 ? zeros : x + from[l];
        }
      depthwise_functions[variant][pixels](&d);
    }
  }
}
