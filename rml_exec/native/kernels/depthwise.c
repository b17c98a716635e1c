// Depthwise 2-D convolution over channels-last tensors, f32:
//   y[line, column, c] = bias[c] + sum over taps (i, j) of x[line * stride_y - pad_y + i * dilation_y, ...][c] w[i, j, c]
// steps.def lists the parameters. Taps are summed in order by fused multiply-add from the bias; a tap on padding is a product with zero.
// The epilogue has no residual. No operand may overlap y; only the elements named are touched.
//
// 3x3 kernels without dilation and with a stride of 1 or 2 both ways work on tiles of 2 lines x a few columns: line by line of the inputs,
// tap by tap of the kernel rows that an input line meets, so that an input is loaded once for both lines of outputs. Every other kernel
// takes a few pixels of a line and two vectors of channels at a time, tap by tap.
#include "epilogue.h"
#include "isa.h"
#include "simd.h"

typedef struct geometry {
  int64_t lines, columns, kernel_y, kernel_x, channels, height, width, stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
} geometry;

// Number of parts of n of at most `most`, and where part i begins: parts differ by one at most.
static int64_t parts_of(int64_t n, int64_t most) { return (n + most - 1) / most; }
static int64_t part_begin(int64_t n, int64_t parts, int64_t i) { return n / parts * i + (i < n % parts ? i : n % parts); }

// Input pixel (line, column) of an image, or zeros where that is padding.
static const float *pixel(const geometry *g, const float *x, const float *zeros, int64_t line, int64_t column) {
  return line < 0 || line >= g->height || column < 0 || column >= g->width ? zeros : x + (line * g->width + column) * g->channels;
}

// ---- 3x3 tiles
enum { K = 3, TILE_LINES = 2, MOST_INPUTS = 5 };   // lines of inputs under two lines of outputs with stride 2
#if W == 8
enum { MOST_COLUMNS = 5, WEIGHTS_STAY = 0 };   // 16 registers: ten sums, a weight per line of outputs, inputs
#else
enum { MOST_COLUMNS = 7, WEIGHTS_STAY = 1 };   // 32: fourteen sums, nine weights, inputs
#endif

typedef struct tile {
  int64_t channels, line_floats, input_line_floats;
  const float *weights[TILE_LINES];   // the same for every line; a compiler that knew would load them once and spill sums
  const float *bias;
  const float *x;   // the first input, where all of them lie in the image
  const float *inputs[MOST_INPUTS * (2 * MOST_COLUMNS + 1)];   // each of them, where some are padding
  float *y;
  epilogue finish;
} tile;

INL void tile_run(const tile *t, const int lines, const int columns, const int stride, const int padded) {
  const int input_lines = (lines - 1) * stride + K, input_columns = (columns - 1) * stride + K;
  const int64_t channels = t->channels;
  for (int64_t c = 0; c < channels; c += W) {
    if (c + W > channels) c = channels - W;   // the last vector overlaps the one before: what is computed twice is the same
    vf sum[TILE_LINES][MOST_COLUMNS], held[K * K], seed = t->bias ? vf_load(t->bias + c) : vf1(0);
    const float *next[TILE_LINES] = {t->weights[0] + c, t->weights[1] + c}, *from = t->x + c;
    if (WEIGHTS_STAY) {
      UNROLL(9)
      for (int tap = 0; tap < K * K; tap++) held[tap] = vf_load(next[0] + tap * channels);
    }
    UNROLL(2)
    for (int i = 0; i < lines; i++) {
      UNROLL(7)
      for (int j = 0; j < columns; j++) sum[i][j] = seed;
    }
    UNROLL(5)
    for (int line = 0; line < input_lines; line++) {
      const float *left = from;
      UNROLL(3)
      for (int kx = 0; kx < K; kx++, left += channels) {
        vf weight[TILE_LINES];
        UNROLL(2)
        for (int i = 0; i < lines; i++) {
          int ky = line - i * stride;
          if (ky >= 0 && ky < K) weight[i] = WEIGHTS_STAY ? held[ky * K + kx] : vf_load(next[i]), next[i] += channels;
        }
        const float *at = left;
        UNROLL(7)
        for (int j = 0; j < columns; j++, at += stride * channels) {
          vf x = vf_load(padded ? t->inputs[line * input_columns + j * stride + kx] + c : at);
          UNROLL(2)
          for (int i = 0; i < lines; i++) {
            int ky = line - i * stride;
            if (ky >= 0 && ky < K) sum[i][j] = vf_fma(x, weight[i], sum[i][j]);
          }
        }
      }
      from += t->input_line_floats;
    }
    UNROLL(2)
    for (int i = 0; i < lines; i++) {
      float *y = t->y + i * t->line_floats + c;
      if (epilogue_is_short(&t->finish)) {
        UNROLL(7)
        for (int j = 0; j < columns; j++) vf_store(y + j * channels, epilogue_short(&t->finish, sum[i][j], 0));
      } else {
        float sums[MOST_COLUMNS * W];
        UNROLL(7)
        for (int j = 0; j < columns; j++) vf_store(sums + j * W, sum[i][j]);
        RML_KERNEL(epilogue_finish)(&t->finish, y, 0, sums, columns, W, W, channels);
      }
    }
  }
}

#define TILE(lines, columns, stride) \
  static void inner_##lines##x##columns##_##stride(const tile *t) { tile_run(t, lines, columns, stride, 0); } \
  static void padded_##lines##x##columns##_##stride(const tile *t) { tile_run(t, lines, columns, stride, 1); }
#define INNER(lines, columns, stride) inner_##lines##x##columns##_##stride,
#define PADDED(lines, columns, stride) padded_##lines##x##columns##_##stride,
#if W == 8
#define EACH_WIDTH(X, lines, stride) \
  X(lines, 1, stride) X(lines, 2, stride) X(lines, 3, stride) X(lines, 4, stride) X(lines, 5, stride)
#else
#define EACH_WIDTH(X, lines, stride) \
  X(lines, 1, stride) X(lines, 2, stride) X(lines, 3, stride) X(lines, 4, stride) \
  X(lines, 5, stride) X(lines, 6, stride) X(lines, 7, stride)
#endif
EACH_WIDTH(TILE, 1, 1)
EACH_WIDTH(TILE, 2, 1)
EACH_WIDTH(TILE, 1, 2)
EACH_WIDTH(TILE, 2, 2)
#define NAMES(X) {{{0, EACH_WIDTH(X, 1, 1)}, {0, EACH_WIDTH(X, 2, 1)}}, {{0, EACH_WIDTH(X, 1, 2)}, {0, EACH_WIDTH(X, 2, 2)}}}
static void (*const tile_functions[2][2][TILE_LINES][MOST_COLUMNS + 1])(const tile *) = {   // [padded][stride - 1][lines - 1][columns]
    NAMES(INNER), NAMES(PADDED)};

static int tiled(const geometry *g) {
  return g->kernel_y == K && g->kernel_x == K && g->dilation_y == 1 && g->dilation_x == 1 && g->channels >= W &&
         g->stride_y == g->stride_x && g->stride_y <= 2;
}

// Measured: with stride 2 a large image comes from far away, and narrower tiles do a little better.
static int64_t tile_columns(const geometry *g) { return g->stride_x == 2 && g->columns > 28 ? 4 : MOST_COLUMNS; }

static void run_tiles(const rml_args *args, const geometry *g) {
  const float *x = args->ptr[1], *weights = args->ptr[2], *zeros = args->ptr[4];
  const int64_t stride = g->stride_x, across = parts_of(g->columns, tile_columns(g)), down = parts_of(g->lines, TILE_LINES);
  tile t = {.channels = g->channels, .line_floats = g->columns * g->channels, .input_line_floats = g->width * g->channels,
            .weights = {weights, weights}, .bias = args->ptr[3], .finish = epilogue_of(args->p + 14)};
  int64_t begin, end;
  rml_share(args->p[0] * down * across, args->thread, args->threads, &begin, &end);
  int64_t item = begin / (down * across), line = begin / across % down * TILE_LINES, part = begin % across;
  for (int64_t i = begin, column = part_begin(g->columns, across, part); i < end; i++) {
    const int64_t lines = g->lines - line < TILE_LINES ? g->lines - line : TILE_LINES;
    const int64_t columns = g->columns / across + (part < g->columns % across);   // as part_begin has it; a division less per tile
    const int64_t inputs = (columns - 1) * stride + K, first = column * stride - g->pad_x;
    const int64_t top = line * stride - g->pad_y, bottom = top + (lines - 1) * stride + K;
    const float *image = x + item * g->height * g->width * g->channels;
    const int padded = top < 0 || bottom > g->height || first < 0 || first + inputs > g->width;
    if (padded) {
      const float **input = t.inputs;
      for (int64_t from = top; from < bottom; from++, input += inputs) {
        const float *at = image + (from * g->width + first) * g->channels;
        int64_t left = from < 0 || from >= g->height ? inputs : first < 0 ? -first : 0, right = g->width - first;
        for (int64_t j = 0; j < inputs; j++) input[j] = at + j * g->channels;
        for (int64_t j = 0; j < left && j < inputs; j++) input[j] = zeros;
        for (int64_t j = right > 0 ? right : 0; j < inputs; j++) input[j] = zeros;
      }
    }
    t.x = image + (top * g->width + first) * g->channels;
    t.y = (float *)args->ptr[0] + ((item * g->lines + line) * g->columns + column) * g->channels;
    tile_functions[padded][stride - 1][lines - 1][columns](&t);
    column += columns;
    if (++part < across) continue;
    part = column = 0;
    if ((line += TILE_LINES) >= g->lines) line = 0, item++;
  }
}

// ---- any kernel: a few neighbouring pixels of a line, tap by tap
#if W == 16
enum { MOST_PIXELS = 6 };
#else
enum { MOST_PIXELS = 4 };
#endif
enum { MOST_TAPS = 256 };   // as many pointers are kept; more taps are taken in rounds that add to y

typedef struct run {
  int64_t channels, taps;
  const float *weights, *bias;
  const float *inputs[MOST_TAPS * MOST_PIXELS];   // [taps][pixels]
  float *y;
  int add;           // not the first round
  epilogue finish;   // of the last round
} run;

// Channels [c, c + (vectors - 1) * W + last).
INL void pixels_channels(const run *r, int64_t c, int last, const int pixels, const int vectors) {
  vf sum[MOST_PIXELS][2];
  const float *const *inputs = r->inputs, *w = r->weights + c;
  UNROLL(2)
  for (int v = 0; v < vectors; v++) {
    vf seed = r->bias ? vf_loadn(r->bias + c + v * W, v < vectors - 1 ? W : last) : vf1(0);
    UNROLL(6)
    for (int i = 0; i < pixels; i++) sum[i][v] = seed;
  }
  for (int64_t tap = 0; tap < r->taps; tap++, inputs += pixels, w += r->channels) {
    UNROLL(2)
    for (int v = 0; v < vectors; v++) {
      int partial = v == vectors - 1 && last < W;
      vf weight = partial ? vf_loadn(w + v * W, last) : vf_load(w + v * W);
      UNROLL(6)
      for (int i = 0; i < pixels; i++) {
        const float *x = inputs[i] + c + v * W;
        sum[i][v] = vf_fma(partial ? vf_loadn(x, last) : vf_load(x), weight, sum[i][v]);
      }
    }
  }
  float *y = r->y + c;
  UNROLL(6)
  for (int i = 0; i < pixels; i++, y += r->channels) {
    UNROLL(2)
    for (int v = 0; v < vectors; v++) {
      int lanes = v < vectors - 1 ? W : last;
      float sums[W];
      vf_store(sums, r->add ? vf_loadn(y + v * W, lanes) + sum[i][v] : sum[i][v]);
      RML_KERNEL(epilogue_finish)(&r->finish, y + v * W, 0, sums, 1, lanes, W, 0);
    }
  }
}

INL void pixels_run(const run *r, const int pixels) {
  int64_t c = 0;
  for (; c + 2 * W <= r->channels; c += 2 * W) pixels_channels(r, c, W, pixels, 2);
  for (; c < r->channels; c += W) pixels_channels(r, c, r->channels - c < W ? (int)(r->channels - c) : W, pixels, 1);
}

#define PIXELS(n) \
  static void pixels_##n(const run *r) { pixels_run(r, n); }
PIXELS(1) PIXELS(2) PIXELS(3) PIXELS(4)
#if W == 16
PIXELS(5) PIXELS(6)
static void (*const pixels_functions[])(const run *) = {0, pixels_1, pixels_2, pixels_3, pixels_4, pixels_5, pixels_6};
#else
static void (*const pixels_functions[])(const run *) = {0, pixels_1, pixels_2, pixels_3, pixels_4};
#endif

static void run_pixels(const rml_args *args, const geometry *g) {
  const int64_t taps = g->kernel_y * g->kernel_x, across = parts_of(g->columns, MOST_PIXELS);
  int64_t begin, end;
  run r = {.channels = g->channels};
  rml_share(args->p[0] * g->lines * across, args->thread, args->threads, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    int64_t item = i / (g->lines * across), line = i / across % g->lines, column = part_begin(g->columns, across, i % across);
    int64_t pixels = part_begin(g->columns, across, i % across + 1) - column;
    const float *image = (const float *)args->ptr[1] + item * g->height * g->width * g->channels;
    r.y = (float *)args->ptr[0] + ((item * g->lines + line) * g->columns + column) * g->channels;
    for (int64_t first = 0; first == 0 || first < taps; first += MOST_TAPS) {
      r.taps = taps - first < MOST_TAPS ? taps - first : MOST_TAPS;
      r.weights = (const float *)args->ptr[2] + first * g->channels;
      r.bias = first ? 0 : args->ptr[3];
      r.add = first > 0;
      r.finish = first + r.taps < taps ? (epilogue){0} : epilogue_of(args->p + 14);
      const float **input = r.inputs;
      for (int64_t tap = first; tap < first + r.taps; tap++)
        for (int64_t j = 0; j < pixels; j++)
          *input++ = pixel(g, image, args->ptr[4], line * g->stride_y - g->pad_y + tap / g->kernel_x * g->dilation_y,
                           (column + j) * g->stride_x - g->pad_x + tap % g->kernel_x * g->dilation_x);
      pixels_functions[pixels](&r);
    }
  }
}

void RML_KERNEL(conv_depthwise)(const rml_args *args) {
  geometry g;
  memcpy(&g, args->p + 1, sizeof g);
  if (tiled(&g)) run_tiles(args, &g);
  else run_pixels(args, &g);
}
