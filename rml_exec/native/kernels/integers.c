// What the elementwise interpreter and reduce.c, whose lanes are of 32 bits and floats, leave out of integers: operations on two of any
// width, divisions, selections, and reductions. Truth values count as u8. Sums and products wrap. Operands are strided, results dense.
#include "indices.h"
#include "isa.h"
#include "types.h"

// Numbers known to lower_integers.py, as are those of the reductions below.
enum { ADD, SUB, MUL, LARGER, SMALLER, AND, OR, XOR, DIV_FLOOR, DIV_TRUNC, REM_DIVISOR, REM_DIVIDEND, EQ, NE, LT, LE, GT, GE };

#define WIDE(x) ((uint64_t)(x))

// One line of the result; the divisor is not 0. The lowest integer divided by -1 is itself.
#define EACH(result, expression) \
  for (int64_t i = 0; i < n; i++) { \
    TARGET a = p[i * a_step], b = q[i * b_step]; \
    ((result *)y)[i] = (result)(expression); \
  } \
  break
#define BY_MINUS_1 (RML_IS_SIGNED(TARGET) && b == (TARGET)-1)
#define DIVISION(result) (BY_MINUS_1 ? (TARGET)(0 - WIDE(a)) : (TARGET)(result))
#define REMAINDER(result) (BY_MINUS_1 ? (TARGET)0 : (TARGET)(result))
#define APART (RML_IS_SIGNED(TARGET) && a % b != 0 && (WIDE(a) ^ WIDE(b)) >> 63)   // the quotient is negative and not whole
#define OPERATIONS(name, type) \
  static void line_##name(void *y, const void *from_a, const void *from_b, int64_t n, int64_t a_step, int64_t b_step, int64_t op) { \
    typedef type TARGET; \
    const TARGET *p = from_a, *q = from_b; \
    switch (op) { \
      case ADD: EACH(TARGET, WIDE(a) + WIDE(b)); \
      case SUB: EACH(TARGET, WIDE(a) - WIDE(b)); \
      case MUL: EACH(TARGET, WIDE(a) * WIDE(b)); \
      case LARGER: EACH(TARGET, a > b ? a : b); \
      case SMALLER: EACH(TARGET, a < b ? a : b); \
      case AND: EACH(TARGET, a & b); \
      case OR: EACH(TARGET, a | b); \
      case XOR: EACH(TARGET, a ^ b); \
      case DIV_FLOOR: EACH(TARGET, DIVISION(a / b - APART)); \
      case DIV_TRUNC: EACH(TARGET, DIVISION(a / b)); \
      case REM_DIVISOR: EACH(TARGET, REMAINDER(a % b + (APART ? b : 0))); \
      case REM_DIVIDEND: EACH(TARGET, REMAINDER(a % b)); \
      case EQ: EACH(bool, a == b); \
      case NE: EACH(bool, a != b); \
      case LT: EACH(bool, a < b); \
      case LE: EACH(bool, a <= b); \
      case GT: EACH(bool, a > b); \
      default: EACH(bool, a >= b); \
    } \
  }
RML_INTEGERS(OPERATIONS)

// The lines along the last of `rank` axes that a thread does.
static void share_lines(const rml_args *args, const int64_t *dims, int64_t rank, int64_t *begin, int64_t *end) {
  int64_t lines = 1, columns = dims[rank - 1];
  for (int64_t axis = 0; axis < rank - 1; axis++) lines *= dims[axis];
  rml_share(lines, args->thread, args->threads, begin, end);
  if (lines * columns * 8 < SERIAL_BYTES) *begin = 0, *end = args->thread ? 0 : lines;
}

void RML_KERNEL(integers)(const rml_args *args) {
#define FUNCTION(name, type) line_##name,
#define BYTES(name, type) sizeof(type),
  static void (*const functions[])(void *, const void *, const void *, int64_t, int64_t, int64_t, int64_t) = {
      line_U8, RML_INTEGERS(FUNCTION)};
  static const int64_t sizes[] = {1, RML_INTEGERS(BYTES)};
  const int64_t *p = args->p, item = sizes[p[0]], result = p[1] >= EQ ? 1 : item, rank = p[2];
  const int64_t *dims = p + 3, *a_strides = dims + rank, *b_strides = a_strides + rank;
  int64_t last = rank - 1, begin, end;
  share_lines(args, dims, rank, &begin, &end);
  for (int64_t line = begin; line < end; line++) {
    const char *a = (const char *)args->ptr[1] + strided_offset(line, dims, a_strides, last) * item;
    const char *b = (const char *)args->ptr[2] + strided_offset(line, dims, b_strides, last) * item;
    functions[p[0]]((char *)args->ptr[0] + line * dims[last] * result, a, b, dims[last], a_strides[last], b_strides[last], p[1]);
  }
}

#define SELECT_CASE(bytes, type) \
  case bytes: \
    for (int64_t i = 0; i < n; i++) \
      ((type *)y)[i] = c[i * c_strides[last]] ? ((const type *)a)[i * a_strides[last]] : ((const type *)b)[i * b_strides[last]]; \
    break;

void RML_KERNEL(select)(const rml_args *args) {
  const int64_t *p = args->p, item = p[0], rank = p[1], *dims = p + 2;
  const int64_t *c_strides = dims + rank, *a_strides = c_strides + rank, *b_strides = a_strides + rank;
  int64_t last = rank - 1, n = dims[last], begin, end;
  share_lines(args, dims, rank, &begin, &end);
  for (int64_t line = begin; line < end; line++) {
    char *y = (char *)args->ptr[0] + line * n * item;
    const uint8_t *c = (const uint8_t *)args->ptr[1] + strided_offset(line, dims, c_strides, last);
    const char *a = (const char *)args->ptr[2] + strided_offset(line, dims, a_strides, last) * item;
    const char *b = (const char *)args->ptr[3] + strided_offset(line, dims, b_strides, last) * item;
    switch (item) {
      SELECT_CASE(1, uint8_t)
      SELECT_CASE(2, uint16_t)
      SELECT_CASE(4, uint32_t)
      SELECT_CASE(8, uint64_t)
    }
  }
}

enum { SUM, PROD, MAX, MIN };
enum { COLUMNS = 64 };

#define TOTAL(start, expression) \
  if (columns == 1) { \
    TARGET a = start; \
    for (int64_t i = 0; i < n; i++) { \
      TARGET b = x[i * step]; \
      a = (TARGET)(expression); \
    } \
    y[0] = a; \
  } else { \
    TARGET total[COLUMNS]; \
    for (int64_t c = 0; c < columns; c++) total[c] = start; \
    for (int64_t i = 0; i < n; i++) \
      for (int64_t c = 0; c < columns; c++) { \
        TARGET a = total[c], b = x[i * step + c]; \
        total[c] = (TARGET)(expression); \
      } \
    for (int64_t c = 0; c < columns; c++) y[c] = total[c]; \
  } \
  break
#define REDUCTIONS(name, type) \
  static void reduce_##name(void *to, const void *from, int64_t n, int64_t step, int64_t columns, int64_t kind) { \
    typedef type TARGET; \
    TARGET *y = to; \
    const TARGET *x = from; \
    switch (kind) { \
      case SUM: TOTAL(0, WIDE(a) + WIDE(b)); \
      case PROD: TOTAL(1, WIDE(a) * WIDE(b)); \
      case MAX: TOTAL(RML_LOWEST(TARGET), a > b ? a : b); \
      default: TOTAL(RML_HIGHEST(TARGET), a < b ? a : b); \
    } \
  }
RML_INTEGERS(REDUCTIONS)

// Over the middle axis of [outer, n, inner]. Any is the largest of truth values, all the smallest.
void RML_KERNEL(reduce_integers)(const rml_args *args) {
#define REDUCTION(name, type) reduce_##name,
  static void (*const functions[])(void *, const void *, int64_t, int64_t, int64_t, int64_t) = {reduce_U8, RML_INTEGERS(REDUCTION)};
  static const int64_t sizes[] = {1, RML_INTEGERS(BYTES)};
  const int64_t *p = args->p, n = p[1], inner = p[2], item = sizes[p[4]];
  int64_t pieces = (inner + COLUMNS - 1) / COLUMNS, begin, end;   // per outer index
  rml_share(p[0] * pieces, args->thread, args->threads, &begin, &end);
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t o = piece / pieces, column = piece % pieces * COLUMNS, columns = inner - column < COLUMNS ? inner - column : COLUMNS;
    char *y = (char *)args->ptr[0] + (o * inner + column) * item;
    const char *x = (const char *)args->ptr[1] + (o * n * inner + column) * item;
    functions[p[4]](y, x, n, inner, columns, p[3]);
  }
}
