// Dense elements of one type as another, for the pairs that the elementwise interpreter, whose lanes have 32 bits, does not do: integers of
// any width among each other (the low bits stay) and to floats, f32 and f64, anything to bool (x != 0, so NaN is true), and f32 and f64 to
// integers, toward zero; NaN and what is out of range become what the last parameter says.
#include <math.h>

#include "isa.h"
#include "types.h"

enum { SERIAL_ELEMENTS = 16384 };
enum { SATURATE, WRAP_X86, REFUSE };   // what becomes of a float that the integer type lacks

#define CONVERT(from, to) \
  for (int64_t i = begin; i < end; i++) ((to *)y)[i] = (to)((const from *)x)[i]

// The whole number as the x86 conversions to a 32-bit or 64-bit register give it: the lowest integer where it does not fit.
static inline int64_t in_register(double whole, bool wide) {
  double half = wide ? 0x1p63 : 0x1p31;
  return whole >= -half && whole < half ? (int64_t)whole : wide ? INT64_MIN : INT32_MIN;
}

static inline uint64_t in_unsigned_register(double whole) {
  return whole >= 0x1p63 ? (uint64_t)in_register(whole - 0x1p63, true) ^ (uint64_t)1 << 63 : (uint64_t)in_register(whole, true);
}

// The whole number, or what has its sign and is out of range of types of up to 32 bits as well; NaN is 0. Its branches are foreseen, where
// limits of the type would often not be.
static inline int64_t in_wide_range(double whole) {
  return fabs(whole) < 0x1p62 ? (int64_t)whole : whole > 0 ? INT64_MAX : whole < 0 ? INT64_MIN : 0;
}

#define EACH_WHOLE(from, statement) \
  for (int64_t i = begin; i < end; i++) { \
    double whole = trunc((double)((const from *)x)[i]); \
    statement; \
  }

// Returns false from the function if there is an element that the type lacks and f2i refuses.
#define TRUNCATE(from, to) \
  do { \
    const double lowest = (double)RML_LOWEST(to), above = 2 * (double)(RML_HIGHEST(to) / 2 + 1); \
    const bool wide = sizeof(to) == 8 || (sizeof(to) == 4 && !RML_IS_SIGNED(to)); \
    to *result = y; \
    if (f2i == WRAP_X86 && sizeof(to) == 8 && !RML_IS_SIGNED(to)) { \
      EACH_WHOLE(from, result[i] = (to)in_unsigned_register(whole)) \
    } else if (f2i == WRAP_X86) { \
      EACH_WHOLE(from, result[i] = (to)in_register(whole, wide)) \
    } else if (f2i == REFUSE) { \
      EACH_WHOLE(from, if (!(whole >= lowest && whole < above)) return false; result[i] = (to)whole) \
    } else if (sizeof(to) == 8) { \
      EACH_WHOLE(from, result[i] = whole < lowest ? RML_LOWEST(to) : whole >= above ? RML_HIGHEST(to) : whole == whole ? (to)whole : 0) \
    } else { \
      const int64_t low = (int64_t)lowest, high = (int64_t)above - 1; \
      EACH_WHOLE(from, int64_t v = in_wide_range(whole); v = v < low ? low : v; result[i] = (to)(v > high ? high : v)) \
    } \
  } while (0)

// One function per type to convert to; the types to convert from are its cases.
#define CASE(name, from) \
  case TYPE_##name: CONVERT(from, TARGET); break;
#define TO_INTEGER(name, type) \
  static bool to_##name(void *y, const void *x, int64_t begin, int64_t end, int64_t from, int64_t f2i) { \
    typedef type TARGET; \
    switch (from) { \
      CASE(BOOL, bool) \
      RML_INTEGERS(CASE) \
      case TYPE_F32: TRUNCATE(float, type); break; \
      case TYPE_F64: TRUNCATE(double, type); break; \
    } \
    return true; \
  }
#define TO_ANY(name, type) \
  static bool to_##name(void *y, const void *x, int64_t begin, int64_t end, int64_t from, int64_t f2i) { \
    typedef type TARGET; \
    (void)f2i; \
    switch (from) { RML_TYPES(CASE) } \
    return true; \
  }
TO_INTEGER(U8, uint8_t)
TO_INTEGER(U16, uint16_t)
TO_INTEGER(U32, uint32_t)
TO_INTEGER(U64, uint64_t)
TO_INTEGER(I8, int8_t)
TO_INTEGER(I16, int16_t)
TO_INTEGER(I32, int32_t)
TO_INTEGER(I64, int64_t)
TO_ANY(BOOL, bool)
TO_ANY(F32, float)
TO_ANY(F64, double)

void RML_KERNEL(convert)(const rml_args *args) {
#define FUNCTION(name, type) to_##name,
  static bool (*const functions[])(void *, const void *, int64_t, int64_t, int64_t, int64_t) = {RML_TYPES(FUNCTION)};
  const int64_t *p = args->p;
  int64_t begin, end;
  rml_share(p[0], args->thread, args->threads, &begin, &end);
  if (p[0] < SERIAL_ELEMENTS) {
    if (args->thread) return;
    begin = 0, end = p[0];
  }
  if (!functions[p[1]](args->ptr[0], args->ptr[1], begin, end, p[2], p[3])) rml_decline(args);
}
