// Winograd convolution of 3x3 kernels with stride 1 over channels-last tensors, f32: F(4x4,3x3) with the points 0, 1, -1, 1/2, -2 and
// infinity (36 products for 16 outputs instead of 144), F(2x2,3x3) with 0, 1, -1 and infinity (16 for 4 instead of 36). Lavin and Gray,
// arXiv 1509.09308; these points have a third of the error of 0, 1, -1, 2, -2 (Barabasz et al., arXiv 1803.10986). steps.def lists the
// parameters; channels are multiples of 16.
//
// A tile of m x m outputs is A' [ (G w G') * (B' x B) ] A, summed over channels in the middle: one matrix product per point.
//   1. the (m + 2) x (m + 2) inputs of each tile become `inputs` [point][tile][ic]
//   2. a product with the packed weights of each point gives `sums` [point][tile][oc]
//   3. the sums of each tile become outputs
// `block` tiles at a time, so that what lies between the three stays in the second-level cache. Threads share the tiles, or, where these
// are few, the panels of output channels. The result of a tile depends on neither, nor on the block. An infinity or NaN among the
// inputs of a tile may reach all of its outputs. No operand but the residual
// of epilogue.h may overlap y.
#include "epilogue.h"
#include "gemm.h"
#include "transpose.h"

enum { MOST_POINTS = 36, FEW_TILES = 14, SERIAL_MACS = 32768 };

typedef struct layer {
  int64_t batch, lines, columns, ic, oc, height, width, pad_y, pad_x, block, workers;
} layer;

// ---- transforms along one axis
INL void input_transform(const vf *x, vf *r, const int m) {
  if (m == 2) {
    r[0] = x[2] - x[0], r[1] = x[1] + x[2], r[2] = x[2] - x[1], r[3] = x[1] - x[3];
    return;
  }
  const vf p = x[4] - x[2], q = x[3] - x[1], h = vf1(1.5f);
  r[0] = vf_fma(h, q, (x[0] - x[2]) + p);
  r[1] = vf_fma(h, x[2] + x[3], p + q);
  r[2] = vf_fma(h, x[3] - x[2], p - q);
  r[3] = vf_fma(vf1(2), q, p);
  r[4] = vf_fnma(vf1(0.5f), q, p);
  r[5] = vf_fma(h, p, (x[5] - x[3]) - q);
}

INL void output_transform(const vf *s, vf *y, const int m) {
  if (m == 2) {
    y[0] = s[0] + s[1] + s[2], y[1] = s[1] - s[2] - s[3];
    return;
  }
  const vf sum = s[1] + s[2], difference = s[1] - s[2];
  y[0] = (s[0] + sum) + (s[3] + s[4]);
  y[1] = vf_fnma(vf1(2), s[4], vf_fma(vf1(0.5f), s[3], difference));
  y[2] = vf_fma(vf1(4), s[4], vf_fma(vf1(0.25f), s[3], sum));
  y[3] = vf_fnma(vf1(8), s[4], vf_fma(vf1(0.125f), s[3], difference + s[5]));
}

// ---- tiles
// The inputs of a tile, at n x n pixel pointers, to `to` [point][..]: points are `point_stride` floats apart.
INL void tile_inputs(const float *const *pixels, int64_t ic, float *to, int64_t point_stride, const int m) {
  const int n = m + 2;
  for (int64_t c = 0; c < ic; c += W) {
    vf half[6][6];
    UNROLL(6)
    for (int j = 0; j < n; j++) {
      vf x[6], r[6];
      UNROLL(6)
      for (int i = 0; i < n; i++) x[i] = vf_load(pixels[i * n + j] + c);
      input_transform(x, r, m);
      UNROLL(6)
      for (int i = 0; i < n; i++) half[i][j] = r[i];
    }
    UNROLL(6)
    for (int i = 0; i < n; i++) {
      vf r[6];
      input_transform(half[i], r, m);
      UNROLL(6)
      for (int j = 0; j < n; j++) vf_store(to + (i * n + j) * point_stride + c, r[j]);
    }
  }
}

typedef struct target {
  const float *bias;
  float *y;
  const float *residual;   // or null
  epilogue finish;
  int64_t begin, end;      // channels
} target;

// The first `lines` x `columns` outputs of a tile, the first of which lies `at` floats behind the beginning of y.
INL void tile_outputs(const float *sums, int64_t point_stride, const layer *l, const target *to, int64_t at, int64_t lines, int64_t columns,
                      const int m) {
  const int n = m + 2;
  if (columns > m) columns = m;
  for (int64_t c = to->begin; c < to->end; c += W) {
    vf half[4][6], seed = to->bias ? vf_load(to->bias + c) : vf1(0);
    UNROLL(6)
    for (int j = 0; j < n; j++) {
      vf s[6], r[4];
      UNROLL(6)
      for (int i = 0; i < n; i++) s[i] = vf_load(sums + (i * n + j) * point_stride + c);
      output_transform(s, r, m);
      UNROLL(4)
      for (int i = 0; i < m; i++) half[i][j] = r[i];
    }
    UNROLL(4)
    for (int i = 0; i < m; i++) {
      if (i >= lines) break;
      vf r[4];
      output_transform(half[i], r, m);
      int64_t from = at + i * l->columns * l->oc + c;
      const float *residual = to->residual ? to->residual + from : 0;
      if (epilogue_is_short(&to->finish)) {
        UNROLL(4)
        for (int j = 0; j < m; j++)
          if (j < columns)
            vf_store(to->y + from + j * l->oc, epilogue_short(&to->finish, r[j] + seed, residual ? residual + j * l->oc : 0));
      } else {
        float line[4 * W];
        UNROLL(4)
        for (int j = 0; j < m; j++) vf_store(line + j * W, r[j] + seed);
        RML_KERNEL(epilogue_finish)(&to->finish, to->y + from, residual, line, columns, W, W, l->oc);
      }
    }
  }
}

INL void block_inputs(const layer *l, const float *x, const float *zeros, int64_t first, int64_t tiles, float *to, int64_t point_stride,
                      const int m) {
  const int n = m + 2;
  const int64_t across = (l->columns + m - 1) / m, down = (l->lines + m - 1) / m;
  for (int64_t t = 0; t < tiles; t++) {
    int64_t tile = first + t, item = tile / (down * across);
    int64_t line = tile / across % down * m - l->pad_y, column = tile % across * m - l->pad_x;
    const float *pixels[MOST_POINTS], *image = x + item * l->height * l->width * l->ic;
    for (int i = 0; i < n; i++)
      for (int j = 0; j < n; j++) {
        int inside = line + i >= 0 && line + i < l->height && column + j >= 0 && column + j < l->width;
        pixels[i * n + j] = inside ? image + ((line + i) * l->width + column + j) * l->ic : zeros;
      }
    tile_inputs(pixels, l->ic, to + t * l->ic, point_stride, m);
  }
}

INL void block_outputs(const layer *l, const float *sums, int64_t point_stride, int64_t first, int64_t tiles, const target *to,
                       const int m) {
  const int64_t across = (l->columns + m - 1) / m, down = (l->lines + m - 1) / m;
  for (int64_t t = 0; t < tiles; t++) {
    int64_t tile = first + t, item = tile / (down * across), line = tile / across % down * m, column = tile % across * m;
    int64_t at = ((item * l->lines + line) * l->columns + column) * l->oc;
    tile_outputs(sums + t * l->oc, point_stride, l, to, at, l->lines - line, l->columns - column, m);
  }
}

INL void winograd(const rml_args *args, const int m) {
  layer l;
  memcpy(&l, args->p, sizeof l);
  const int points = (m + 2) * (m + 2);
  const int64_t tiles = l.batch * ((l.lines + m - 1) / m) * ((l.columns + m - 1) / m), panels = gemm_panels(l.oc);
  const int64_t macs = tiles * points * l.ic * l.oc;
  int workers = macs < SERIAL_MACS ? 1 : args->threads < l.workers ? args->threads : (int)l.workers;
  if (args->thread >= workers) return;
  int by_panels = tiles < (int64_t)FEW_TILES * workers && panels >= workers;
  int64_t begin = 0, end = tiles, panel_begin = 0, panel_end = panels;
  if (by_panels) rml_share(panels, args->thread, workers, &panel_begin, &panel_end);
  else rml_share(tiles, args->thread, workers, &begin, &end);
  const target to = {.bias = args->ptr[3], .y = args->ptr[0], .residual = args->ptr[6], .finish = epilogue_of(args->p + 11),
                     .begin = panel_begin * GEMM_NR, .end = panel_end * GEMM_NR < l.oc ? panel_end * GEMM_NR : l.oc};

  // 16 floats between the points keep them from falling into the same lines of the first-level cache.
  const int64_t input_stride = l.block * l.ic + 16, sum_stride = l.block * l.oc + 16, weights_floats = gemm_packed_floats(l.ic, l.oc);
  float *inputs = (float *)args->ptr[5] + args->thread * points * (input_stride + sum_stride), *sums = inputs + points * input_stride;
  const float *weights = args->ptr[2];
  const int64_t blocks = (end - begin + l.block - 1) / l.block;
  for (int64_t i = 0; i < blocks; i++) {
    int64_t first = begin + (end - begin) * i / blocks, count = begin + (end - begin) * (i + 1) / blocks - first;
    block_inputs(&l, args->ptr[1], args->ptr[4], first, count, inputs, input_stride, m);
    for (int point = 0; point < points; point++)
      RML_KERNEL(gemm_panel_range)(sums + point * sum_stride, l.oc, inputs + point * input_stride, l.ic, weights + point * weights_floats,
                                   count, l.oc, l.ic, panel_begin, panel_end);
    block_outputs(&l, sums, sum_stride, first, count, &to, m);
  }
}

void RML_KERNEL(winograd4)(const rml_args *args) { winograd(args, 4); }
void RML_KERNEL(winograd2)(const rml_args *args) { winograd(args, 2); }

// ---- weights: G w G' in double precision, rounded once, straight into packed panels; w after a scale per output channel, if there is one
typedef double transform_matrix[6][3];

// Rows of the Cook-Toom construction: (1, p, p^2) over the product of p - other points for each point, then infinity.
static const transform_matrix weight_transforms[2] = {
    {{-1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}},
    {{1, 0, 0},
     {1.0 / 3, 1.0 / 3, 1.0 / 3},
     {-1.0 / 3, 1.0 / 3, -1.0 / 3},
     {-16.0 / 15, -8.0 / 15, -4.0 / 15},
     {1.0 / 15, -2.0 / 15, 4.0 / 15},
     {0, 0, 1}},
};
enum {
  OUTPUTS = 16,   // channels that are transformed together, ic and oc are multiples of it
  PIECE = GEMM_NR < OUTPUTS ? GEMM_NR : OUTPUTS
};

INL void transform_weights(const rml_args *args, const int m) {
  const int n = m + 2;
  const double(*g)[3] = weight_transforms[m == 4];
  const int64_t ic = args->p[0], oc = args->p[1], point_floats = gemm_packed_floats(ic, oc);
  const double *scale = args->ptr[2];
  float turned[9 * OUTPUTS][OUTPUTS];   // [input channel, tap][output channel] of as many inputs
  int64_t begin, end;
  rml_share(oc / OUTPUTS, args->thread, args->threads, &begin, &end);
  for (int64_t o = begin * OUTPUTS; o < end * OUTPUTS; o += OUTPUTS)
    for (int64_t i = 0; i < ic; i++) {
      if (i % OUTPUTS == 0) {
        for (int64_t row = 0; row < 9 * OUTPUTS; row += W)
          for (int64_t lane = 0; lane < OUTPUTS; lane += W)
            transpose_square(&turned[row][lane], OUTPUTS, (const float *)args->ptr[1] + ((o + lane) * ic + i) * 9 + row, ic * 9);
        for (int row = 0; scale && row < 9 * OUTPUTS; row++)
          for (int lane = 0; lane < OUTPUTS; lane++) turned[row][lane] = (float)(turned[row][lane] * scale[o + lane]);
      }
      double w[9][OUTPUTS], half[6][3][OUTPUTS];
      for (int tap = 0; tap < 9; tap++)
        for (int lane = 0; lane < OUTPUTS; lane++) w[tap][lane] = turned[i % OUTPUTS * 9 + tap][lane];
      for (int a = 0; a < n; a++)
        for (int column = 0; column < 3; column++)
          for (int lane = 0; lane < OUTPUTS; lane++)
            half[a][column][lane] = g[a][0] * w[column][lane] + g[a][1] * w[3 + column][lane] + g[a][2] * w[6 + column][lane];
      for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
          float u[OUTPUTS];
          for (int lane = 0; lane < OUTPUTS; lane++)
            u[lane] = (float)(g[b][0] * half[a][0][lane] + g[b][1] * half[a][1][lane] + g[b][2] * half[a][2][lane]);
          for (int lane = 0; lane < OUTPUTS; lane += PIECE) {
            int64_t panel = (o + lane) / GEMM_NR, column = (o + lane) % GEMM_NR, left = oc - panel * GEMM_NR;
            float *to = (float *)args->ptr[0] + (a * n + b) * point_floats + panel * GEMM_NR * ic;
            memcpy(to + i * (left < GEMM_NR ? left : GEMM_NR) + column, u + lane, sizeof(float[PIECE]));
          }
        }
    }
}

void RML_KERNEL(winograd4_weights)(const rml_args *args) { transform_weights(args, 4); }
void RML_KERNEL(winograd2_weights)(const rml_args *args) { transform_weights(args, 2); }
