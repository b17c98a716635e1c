// Walks one program from several caller threads at once, with and without worker threads, and compares every result with that of a walk
// alone. No Python: built with a sanitizer, every access of program.c, threads.c and the kernels is under its eyes. test_sanitizers.py
// builds and runs it; the first argument is how many runs each caller makes. Exits with 1 and a line on standard error if bits differ.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"
#include "program.h"

enum { SIZE = 13, IC = 35, OC = 80, PIXELS = SIZE * SIZE, TAPS = 9, COLUMNS = 90, CALLERS = 4, MOST_STEPS = 16, MOST_CONSTANTS = 16 };
enum { WORKERS = 3, POINTS = 36, BLOCK = 4, WORKSPACE = POINTS * (2 * BLOCK * OC + 32) };   // of a Winograd step
enum { A = 0, B = A + PIXELS * OC * 4, PANELS = B + PIXELS * OC * 4, ARENA_BYTES = PANELS + WORKERS * WORKSPACE * 4 };

#define LOAD(name, expression) EW_##name,
#define STORE(name, statement) EW_##name,
#define UNARY(name, expression) EW_##name,
#define LONG(name, expression) EW_##name,
#define BINARY(name, expression) EW_##name, EW_##name##_s,
#define LONG_BINARY(name, expression) EW_##name, EW_##name##_s,
#define TERNARY(name, expression) EW_##name,
enum {
#include "kernels/elementwise.def"
};

static rml_program program;
static rml_constant constants[MOST_CONSTANTS];
static int64_t steps_set;
static float input[PIXELS * IC];

static void *allocate(size_t bytes) {
  void *memory = malloc(bytes);
  if (!memory) exit(2);
  return memory;
}

static void fill(float *x, int64_t n) {
  static unsigned state = 1;
  for (int64_t i = 0; i < n; i++) x[i] = (float)((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1;
}

// Returns the place of new constant data.
static rml_place constant(void *data, int64_t bytes) {
  constants[program.constant_count] = (rml_constant){data, bytes};
  return (rml_place){RML_SPACE_CONSTANT, program.constant_count++, 0};
}

static rml_place random_constant(int64_t floats) {
  float *data = allocate((size_t)floats * sizeof *data);
  fill(data, floats);
  return constant(data, floats * 4);
}

static rml_place packed_constant(int64_t k, int64_t n) {
  size_t bytes = (size_t)program.isa->packed_b_floats(k, n) * sizeof(float);
  float *matrix = allocate((size_t)(k * n) * sizeof *matrix), *panels = allocate(bytes);
  fill(matrix, k * n);
  program.isa->pack_b(panels, &(rml_matrix){.data = matrix, .k = k, .n = n, .row_stride = n, .col_stride = 1, .taps = 1});
  free(matrix);
  return constant(panels, (int64_t)bytes);
}

// Offsets of the taps of a 3x3 convolution with padding 1 over [SIZE, SIZE, channels].
static rml_place offsets_constant(int channels) {
  int32_t *table = allocate(PIXELS * TAPS * sizeof *table);
  for (int i = 0; i < PIXELS * TAPS; i++) {
    int row = i / TAPS / SIZE + i % TAPS / 3 - 1, column = i / TAPS % SIZE + i % 3 - 1;
    table[i] = row < 0 || row >= SIZE || column < 0 || column >= SIZE ? -1 : (row * SIZE + column) * channels;
  }
  return constant(table, PIXELS * TAPS * 4);
}

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof *(array)))
#define STEP(kind, params, ...) add_step(kind, params, COUNT(params), (rml_place[]){__VA_ARGS__}, COUNT(((rml_place[]){__VA_ARGS__})))
// Epilogues; the limits of the first are the bits of 0 and infinity.
#define RELU 1, 0, INT64_C(0x7ff0000000000000), 0
#define GELU 2, 0, 0, 0
#define PARAMS(...) ((int64_t[]){__VA_ARGS__})

static void add_step(int64_t kind, const int64_t *params, int64_t param_count, const rml_place *places, int64_t place_count) {
  char error[RML_ERROR_BYTES];
  if (!rml_program_set_step(&program, steps_set++, kind, params, param_count, places, place_count, constants, error)) {
    fprintf(stderr, "%s\n", error);
    exit(2);
  }
}

// A small network that has a step of every family: what one step writes, another thread reads in the next.
static void build(const rml_isa *isa) {
  const rml_place none = {RML_SPACE_ABSENT, 0, 0}, x = {RML_SPACE_INPUT, 0, 0}, y = {RML_SPACE_OUTPUT, 0, 0};
  const rml_place a = {RML_SPACE_ARENA, 0, A}, b = {RML_SPACE_ARENA, 0, B}, panels = {RML_SPACE_ARENA, 0, PANELS};
  const double eps = 1e-5;
  int64_t eps_bits;
  memcpy(&eps_bits, &eps, sizeof eps);
  program = (rml_program){.isa = isa, .step_count = 14, .input_count = 1, .output_count = 1, .arena_bytes = ARENA_BYTES};
  if (!rml_program_init(&program)) exit(2);
  steps_set = 0;
  rml_place zeros = constant(calloc(OC, 4), OC * 4);
  STEP(RML_STEP_copy, PARAMS(4, 2, PIXELS, IC, IC, 1, IC, 1), a, x);
  STEP(RML_STEP_conv, PARAMS(1, PIXELS, TAPS, IC, OC, 1, 0, OC, 0, RELU), b, a, packed_constant(TAPS * IC, OC), random_constant(OC),
       offsets_constant(IC), zeros, none);
  rml_place points = random_constant(POINTS * program.isa->packed_b_floats(OC, OC));
  STEP(RML_STEP_winograd4, PARAMS(1, SIZE, SIZE, OC, OC, SIZE, SIZE, 1, 1, BLOCK, WORKERS, GELU), a, b, points, random_constant(OC), zeros,
       panels, b);
  STEP(RML_STEP_conv_depthwise, PARAMS(1, SIZE, SIZE, 3, 3, OC, SIZE, SIZE, 1, 1, 1, 1, 1, 1, RELU), b, a, random_constant(TAPS * OC),
       random_constant(OC), zeros);
  STEP(RML_STEP_layer_norm, PARAMS(PIXELS, OC, eps_bits), b, b, random_constant(OC), none);
  STEP(-1, PARAMS(0), none);
  STEP(RML_STEP_elementwise,
       PARAMS(PIXELS * OC, PIXELS * OC, 0, 256, 1, 2, 0, 0, 3, 0, 4, 4, 1, 1, 4, 1, 1, EW_load | 1 << 16, EW_add | 2 << 16, EW_store),
       a, a, b);
  STEP(RML_STEP_pool, PARAMS(1, OC, 0, 0, 1, 1, 1, 1, 0, 1, SIZE, SIZE, 3, 1, 1, 1, SIZE, SIZE, 3, 1, 1, 1), b, a);
  STEP(RML_STEP_pack_b, PARAMS(1, OC, PIXELS, 0, 1, OC), panels, b);
  STEP(RML_STEP_gemm, PARAMS(1, OC, PIXELS, OC, OC, PIXELS, 0, 0, 0, GELU), a, b, panels, none, none);
  STEP(RML_STEP_softmax, PARAMS(OC, PIXELS, 1, 0, 0), a, a);
  STEP(RML_STEP_gemm, PARAMS(1, OC, COLUMNS, PIXELS, PIXELS, COLUMNS, 0, 0, 0, RELU), b, a, packed_constant(PIXELS, COLUMNS),
       random_constant(COLUMNS), none);
  STEP(RML_STEP_reduce, PARAMS(1, OC, COLUMNS, 0, 0), a, b);
  STEP(RML_STEP_copy, PARAMS(4, 2, COLUMNS, 1, 1, 1, 1, 1), y, a);
}

static int host(void *context, int64_t step) {
  *(int64_t *)context += step;
  return 0;
}

// One run on buffers of its own.
static void run(float *y, int threads) {
  char *arena = allocate(ARENA_BYTES), *bases[] = {0, arena, (char *)input, (char *)y};
  int64_t host_steps = 0, times_ns[MOST_STEPS];
  memset(arena, 0xff, ARENA_BYTES);
  rml_run state = {.program = &program, .bases = bases, .host = host, .context = &host_steps, .times_ns = threads == 2 ? times_ns : 0};
  if (!rml_program_run(&state, threads) || host_steps != 5) exit(2);
  free(arena);
}

static float expected[COLUMNS];
static int runs;

static void *call(void *argument) {
  for (int i = 0; i < runs; i++) {
    float y[COLUMNS];
    run(y, 1 + (i + (int)(intptr_t)argument) % 4);
    if (memcmp(y, expected, sizeof y)) {
      fprintf(stderr, "%s: caller %d, run %d differs\n", program.isa->name, (int)(intptr_t)argument, i);
      exit(1);
    }
  }
  return 0;
}

int main(int count, char **arguments) {
  const rml_isa *isas[RML_MAX_ISAS];
  runs = count > 1 ? atoi(arguments[1]) : 1;
  fill(input, COUNT(input));
  for (int i = rml_isas(isas) - 1; i >= 0; i--) {
    pthread_t callers[CALLERS];
    build(isas[i]);
    run(expected, 1);
    for (int64_t caller = 0; caller < CALLERS; caller++)
      if (pthread_create(&callers[caller], 0, call, (void *)(intptr_t)caller)) exit(2);
    for (int caller = 0; caller < CALLERS; caller++) pthread_join(callers[caller], 0);
    for (int64_t c = 0; c < program.constant_count; c++) free(constants[c].data);
    rml_program_free(&program);
  }
  return 0;
}
