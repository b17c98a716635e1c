// The one kernel of all elementwise steps: an interpreter of straight-line programs over 32-bit lanes (elementwise.def lists the
// instructions, steps.def the parameters). Threaded code: an instruction handles STEP elements, which it gets and hands on in vector
// registers as arguments t0.. (the accumulator), and jumps to the next one by a sibling call. A build without sibling calls (-O0,
// sanitizers) only uses one stack frame per instruction. Everything else a program needs stands in memory: operands, constants, and slots
// of STEP elements for values that wait for their second use.
//
// A step runs over `elements` positions in C order, cut into rows; every output is dense. An input is read where it lies if, along a row,
// its elements are adjacent or one and the same; else a segment of it is gathered first. An output may share its memory with an input of
// the same shape and item size that lies densely: the program stores nothing before the last load of such inputs.
#include <stdbool.h>

#include "isa.h"
#include "vmath.h"

#define VECTORS 8                  // accumulator registers; the System V and AArch64 conventions pass eight vectors in registers
#define STEP (VECTORS * W)
#define MAX_OPERANDS 128           // outputs + inputs + constants + slots; these limits are known to lower_elementwise.py
#define MAX_TENSORS 32             // outputs + inputs
#define MAX_GATHERED 16
#define MAX_SLOTS 32
#define MAX_INSTRUCTIONS 1024
#define MAX_RANK 16
#define SEGMENT 1024               // longest piece that is gathered at once

typedef struct {
  char *base;       // address of the segment's first element
  int64_t stride;   // bytes from element to element: the item size, or 0 for constants, slots and inputs that are constant along a row
} operand;

typedef struct instruction instruction;
#define STATE const instruction *at, const operand *operands, int64_t i, vf t0, vf t1, vf t2, vf t3, vf t4, vf t5, vf t6, vf t7
#define ACCUMULATOR t0, t1, t2, t3, t4, t5, t6, t7
typedef void (*instruction_fn)(STATE);
struct instruction {
  instruction_fn run;
  int32_t m, n;   // operand numbers
};

// ---- instructions ----------------------------------------------------------------------------------------------------------------------
#define NEXT return at[1].run(at + 1, operands, i, ACCUMULATOR)
#define ADDRESS(number) (operands[number].base + i * operands[number].stride)

typedef uint32_t vu __attribute__((vector_size(W * 4)));
#define INT(x) vi_bits(x)
#define UINT(x) ((vu)vi_bits(x))
#define AS_MASK(lanes) vi_lt(vi_bits(lanes), vi1(0))
#define AS_LANES(mask) vf_bits(vi_sel(mask, vi1(-1), vi1(0)))

// Runs `statement` for each accumulator register, called t, with k its number.
#define REGISTER(number, statement) { enum { k = number }; vf t = t##number; statement; t##number = t; }
#define EACH(statement) \
  REGISTER(0, statement) REGISTER(1, statement) REGISTER(2, statement) REGISTER(3, statement) \
  REGISTER(4, statement) REGISTER(5, statement) REGISTER(6, statement) REGISTER(7, statement)
// The same as a loop over groups of 4, for long expressions: half the code; a group hides the latency of its chains and loads the constants
// once, where one vector at a time costs 1.1 to 1.4 times as much.
#define EACH_IN_TURN(statement) \
  vf v[VECTORS] = {ACCUMULATOR}; \
  UNROLL(1) for (int group = 0; group < VECTORS; group += 4) \
    UNROLL(4) for (int k = group; k < group + 4; k++) { \
      vf t = v[k]; \
      statement; \
      v[k] = t; \
    } \
  t0 = v[0], t1 = v[1], t2 = v[2], t3 = v[3], t4 = v[4], t5 = v[5], t6 = v[6], t7 = v[7];

INL vi saturate(vf x) {   // toward zero; NaN becomes 0, out of range the nearest limit
  vi inside = vf_to_vi(vf_trunc(vf_sel(vf_lt(vf_abs(x), vf1(0x1p31f)), x, vf1(0))));
  return vi_sel(vf_ge(x, vf1(0x1p31f)), vi1(INT32_MAX), vi_sel(vf_le(x, vf1(-0x1p31f)), vi1(INT32_MIN), inside));
}

// Quotient and remainder as NumPy's floor_divide and remainder (Python's // and %).
static float floor_quotient(float a, float b) {
  float quotient = a / b;
  if (b == 0) return quotient;
  float remainder = fmodf(a, b), exact = (a - remainder) / b;
  if (remainder != 0 && (b < 0) != (remainder < 0)) exact -= 1;
  if (exact == 0) return copysignf(0, quotient);
  float whole = floorf(exact);
  return exact - whole > 0.5f ? whole + 1 : whole;
}

static float floor_remainder(float a, float b) {
  float remainder = fmodf(a, b);
  if (remainder == 0) return copysignf(0, b);
  return (b < 0) != (remainder < 0) ? remainder + b : remainder;
}

INL vf per_lane(vf a, vf b, float (*function)(float, float)) {
  float x[W], y[W];
  vf_store(x, a);
  vf_store(y, b);
  for (int k = 0; k < W; k++) x[k] = function(x[k], y[k]);
  return vf_load(x);
}

#define DEFINE(name) static void run_##name(STATE)
enum { BYTES_load = 4, BYTES_load_s = 0, BYTES_load_bool = 1, BYTES_store = 4, BYTES_store_bool = 1 };   // per lane
#define LOAD(name, expression) \
  DEFINE(name) { const char *m = ADDRESS(at->m); EACH(const void *p = m + k * W * BYTES_##name; t = expression) NEXT; }
#define STORE(name, statement) \
  DEFINE(name) { char *m = ADDRESS(at->m); EACH(void *p = m + k * W * BYTES_##name; statement) NEXT; }
#define UNARY(name, expression) DEFINE(name) { EACH(t = expression) NEXT; }
#define LONG(name, expression) DEFINE(name) { EACH_IN_TURN(t = expression) NEXT; }
// One branch for all registers: behind one for each, the constants would be loaded again each time.
#define LONG_OR(name, rare, expression, otherwise) \
  LONG(name##_rare, otherwise) \
  DEFINE(name) { \
    vm any = rare(t0); \
    EACH(any = vm_or(any, rare(t))) \
    if (vm_any(any)) return run_##name##_rare(at, operands, i, ACCUMULATOR); \
    EACH_IN_TURN(t = expression) NEXT; \
  }
#define FROM_MEMORY(name, each, expression) \
  DEFINE(name) { const float *p = (const float *)ADDRESS(at->m); each(vf m = vf_load(p + k * W); t = expression) NEXT; }
#define FROM_SCALAR(name, each, expression) \
  DEFINE(name) { const vf m = vf1(*(const float *)ADDRESS(at->m)); each(t = expression) NEXT; }
#define BINARY(name, expression) FROM_MEMORY(name, EACH, expression) FROM_SCALAR(name##_s, EACH, expression)
#define LONG_BINARY(name, expression) FROM_MEMORY(name, EACH_IN_TURN, expression) FROM_SCALAR(name##_s, EACH_IN_TURN, expression)
#define TERNARY(name, expression) \
  DEFINE(name) { \
    const float *p = (const float *)ADDRESS(at->m), *q = (const float *)ADDRESS(at->n); \
    EACH(vf m = vf_load(p + k * W); vf n = vf_load(q + k * W); t = expression) NEXT; \
  }
#include "elementwise.def"
#undef LOAD
#undef STORE
#undef UNARY
#undef LONG
#undef LONG_OR
#undef BINARY
#undef LONG_BINARY
#undef TERNARY

static void run_end(STATE) {
  (void)at, (void)operands, (void)i, (void)t0, (void)t1, (void)t2, (void)t3, (void)t4, (void)t5, (void)t6, (void)t7;
}

static const instruction_fn by_number[] = {
#define LOAD(name, expression) run_##name,
#define STORE(name, statement) run_##name,
#define UNARY(name, expression) run_##name,
#define LONG(name, expression) run_##name,
#define LONG_OR(name, rare, expression, otherwise) run_##name,
#define BINARY(name, expression) run_##name, run_##name##_s,
#define LONG_BINARY(name, expression) run_##name, run_##name##_s,
#define TERNARY(name, expression) run_##name,
#include "elementwise.def"
};

// ---- one step --------------------------------------------------------------------------------------------------------------------------
enum { DIRECT, DENSE, GATHERED };   // how an input is read

typedef struct {
  char *data;
  int64_t item, column_stride;    // item size in bytes; elements from column to column
  const int64_t *row_strides;     // per outer axis, in elements; null for an output
  bool dense;                     // C order without gaps
  bool gathered, periodic;        // periodic: every segment of whole rows holds the same, so it is gathered once
  int64_t offset;                 // of the current row, in elements
} tensor;

typedef struct {
  int64_t elements, columns;      // in all; per row
  bool across_rows;               // segments run on into the next row: rows are too short to be worth one each
  bool any_gathered, walked;      // walked: the current row matters, not only the position
  int64_t grain;                  // fewest elements that are worth a thread
  int64_t outputs, inputs, constants, slots, instructions, rank;
  const int64_t *dims;            // outer axes
  tensor tensors[MAX_TENSORS];    // outputs, then inputs
  operand operands[MAX_OPERANDS]; // outputs, inputs, constants, slots
  float constant[MAX_OPERANDS];
  instruction code[MAX_INSTRUCTIONS + 1];
  int64_t index[MAX_RANK];        // of the current row
} step;

static void decode(step *s, const rml_args *args, float *slots) {
  const int64_t *p = args->p;
  s->elements = p[0], s->columns = p[1], s->across_rows = p[2], s->grain = p[3], s->any_gathered = s->walked = false;
  s->outputs = p[4], s->inputs = p[5], s->constants = p[6], s->slots = p[7], s->instructions = p[8], s->rank = p[9];
  s->dims = p + 10;
  p += 10 + s->rank;
  operand *next = s->operands;
  for (int64_t j = 0; j < s->outputs + s->inputs; j++, next++) {
    tensor *x = &s->tensors[j];
    if (j < s->outputs) {
      *x = (tensor){.data = args->ptr[j], .item = p[0], .column_stride = 1, .dense = true};
      p += 1;
    } else {
      *x = (tensor){.data = args->ptr[j], .item = p[0], .column_stride = p[2], .row_strides = p + 3};
      x->dense = p[1] == DENSE, x->gathered = p[1] == GATHERED;
      x->periodic = x->gathered && s->across_rows;
      for (int64_t axis = 0; axis < s->rank; axis++) x->periodic &= x->row_strides[axis] == 0;
      s->any_gathered |= x->gathered;
      s->walked |= s->across_rows ? x->gathered && !x->periodic : !x->dense;
      p += 3 + s->rank;
    }
    next->stride = x->gathered || x->column_stride ? x->item : 0;
  }
  for (int64_t j = 0; j < s->constants; j++, next++) {
    uint32_t bits = (uint32_t)*p++;
    memcpy(&s->constant[j], &bits, sizeof bits);
    *next = (operand){(char *)&s->constant[j], 0};
  }
  for (int64_t j = 0; j < s->slots; j++) *next++ = (operand){(char *)(slots + j * STEP), 0};
  for (int64_t j = 0; j < s->instructions; j++, p++)
    s->code[j] = (instruction){by_number[*p & 0xffff], (int32_t)(*p >> 16 & 0xffff), (int32_t)(*p >> 32)};
  s->code[s->instructions].run = run_end;
}

// Makes `row` the current row.
static void go_to_row(step *s, int64_t row) {
  for (int64_t axis = s->rank - 1; axis >= 0; axis--) {
    s->index[axis] = row % s->dims[axis];
    row /= s->dims[axis];
  }
  for (int64_t j = s->outputs; j < s->outputs + s->inputs; j++) {
    s->tensors[j].offset = 0;
    for (int64_t axis = 0; axis < s->rank; axis++) s->tensors[j].offset += s->index[axis] * s->tensors[j].row_strides[axis];
  }
}

// Makes the following row the current one; after the last one the first.
static void go_to_next_row(step *s) {
  int64_t axis = s->rank - 1;
  while (axis >= 0 && s->index[axis] + 1 == s->dims[axis]) {
    for (int64_t j = s->outputs; j < s->outputs + s->inputs; j++) s->tensors[j].offset -= s->index[axis] * s->tensors[j].row_strides[axis];
    s->index[axis--] = 0;
  }
  if (axis < 0) return;
  s->index[axis]++;
  for (int64_t j = s->outputs; j < s->outputs + s->inputs; j++) s->tensors[j].offset += s->tensors[j].row_strides[axis];
}

// Copies n elements of the current row from `column` on to dst.
static void gather(char *dst, const tensor *x, int64_t column, int64_t n) {
  int64_t stride = x->column_stride;
  const char *src = x->data + (x->offset + column * stride) * x->item;
  if (stride == 1) {
    memcpy(dst, src, n * x->item);
  } else if (x->item == 1) {
    for (int64_t j = 0; j < n; j++) dst[j] = src[j * stride];
  } else if (stride == 0) {
    for (int64_t j = 0; j < n; j++) ((int32_t *)dst)[j] = *(const int32_t *)src;
  } else {
    for (int64_t j = 0; j < n; j++) ((int32_t *)dst)[j] = ((const int32_t *)src)[j * stride];
  }
}

// Runs the program over n elements of the operands as they stand.
static void interpret(step *s, int64_t n) {
  const instruction *code = s->code;
  const vf zero = vf1(0);
  int64_t i = 0;
  for (; i + STEP <= n; i += STEP) code->run(code, s->operands, i, zero, zero, zero, zero, zero, zero, zero, zero);
  if (i == n) return;
  // The rest goes through padded copies, so that no byte behind a tensor is touched.
  char pads[MAX_TENSORS][STEP * 4] __attribute__((aligned(64))), *results[MAX_TENSORS];
  for (int64_t j = 0; j < s->outputs + s->inputs; j++) {
    operand *x = &s->operands[j];
    if (x->stride == 0) continue;
    char *rest = x->base + i * x->stride;
    if (j < s->outputs) {
      results[j] = rest;
    } else {
      int64_t bytes = (n - i) * x->stride;
      memcpy(pads[j], rest, bytes);
      memset(pads[j] + bytes, 0, STEP * x->stride - bytes);
    }
    x->base = pads[j];
  }
  code->run(code, s->operands, 0, zero, zero, zero, zero, zero, zero, zero, zero);
  for (int64_t j = 0; j < s->outputs; j++) memcpy(results[j], pads[j], (n - i) * s->operands[j].stride);
}

// Points the tensors at n elements from position `done` on, which is `column` of the current row, and gathers what has to be.
static void place(step *s, char (*segments)[SEGMENT * 4], int64_t done, int64_t column, int64_t n, bool first) {
  for (tensor *x = s->tensors; x < s->tensors + s->outputs + s->inputs; x++) {
    operand *placed = &s->operands[x - s->tensors];
    if (x->dense) {
      placed->base = x->data + done * x->item;
    } else if (!x->gathered) {
      placed->base = x->data + (x->offset + column * x->column_stride) * x->item;
    } else {
      placed->base = *segments++;
      if (!x->periodic) continue;
      for (int64_t filled = 0; first && filled < n; filled += s->columns) gather(placed->base + filled * x->item, x, 0, s->columns);
    }
  }
  if (!s->walked) return;
  for (int64_t filled = 0; filled < n;) {   // one round unless the segment runs across rows
    int64_t part = s->columns - column < n - filled ? s->columns - column : n - filled;
    for (tensor *x = s->tensors + s->outputs; x < s->tensors + s->outputs + s->inputs; x++)
      if (x->gathered && !x->periodic) gather(s->operands[x - s->tensors].base + filled * x->item, x, column, part);
    filled += part, column += part;
    if (column == s->columns) {
      column = 0;
      go_to_next_row(s);
    }
  }
}

void RML_KERNEL(elementwise)(const rml_args *args) {
  float slots[MAX_SLOTS * STEP] __attribute__((aligned(64)));
  char segments[MAX_GATHERED][SEGMENT * 4] __attribute__((aligned(64)));
  step s;
  if (args->p[0] == 0) return;
  decode(&s, args, slots);
  int64_t threads = s.elements / s.grain;
  threads = threads < 1 ? 1 : threads < args->threads ? threads : args->threads;
  if (args->thread >= threads) return;
  // Threads share units: whole cache lines, or segments of whole rows.
  int64_t unit = s.across_rows ? SEGMENT / s.columns * s.columns : 64, begin, end;
  rml_share((s.elements + unit - 1) / unit, args->thread, (int)threads, &begin, &end);
  begin *= unit, end *= unit;
  if (end > s.elements) end = s.elements;

  int64_t column = begin % s.columns, limit = s.across_rows ? unit : s.any_gathered ? SEGMENT : INT64_MAX;
  go_to_row(&s, begin / s.columns);
  for (int64_t done = begin; done < end;) {
    int64_t n = end - done < limit ? end - done : limit;
    if (!s.across_rows && n > s.columns - column) n = s.columns - column;
    place(&s, segments, done, column, n, done == begin);
    interpret(&s, n);
    done += n;
    column = s.across_rows || column + n == s.columns ? 0 : column + n;
  }
}
